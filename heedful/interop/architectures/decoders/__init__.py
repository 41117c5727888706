"""Decoders: language models."""
