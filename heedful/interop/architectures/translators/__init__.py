"""Encoder-decoders."""
