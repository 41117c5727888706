"""Estimates of training on many devices (memory, messages, time, cost), and fitting batch sizes."""
