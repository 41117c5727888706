"""Corpora in many files (shards): translated by one or many machines, and written for training."""
