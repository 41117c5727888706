"""Estimates of training on many devices (memory, messages, time, cost), and batches that fit."""
