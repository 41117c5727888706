"""Corpora in many files, the shards: each translated once, by one process or by many machines."""
