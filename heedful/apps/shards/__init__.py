"""Corpora in many files (shards): translation on one or many machines, and writing for training."""
