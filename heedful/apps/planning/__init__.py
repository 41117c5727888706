"""Estimates of training on many devices: memory, communication, time and cost of each layout."""
