"""Corpora and batches made of them. This file imports nothing, so that the spec loads quickly."""
