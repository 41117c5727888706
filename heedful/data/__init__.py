"""Corpora turned into batches. Nothing is imported here, so that the spec loads quickly."""
