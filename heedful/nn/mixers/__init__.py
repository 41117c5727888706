"""Mixers other than attention: each a part through which tokens exchange information."""
