"""Tokenization of text. This file imports nothing, so that the spec loads quickly."""
