"""Sounds as models of speech read them."""
