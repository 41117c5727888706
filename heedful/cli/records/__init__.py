"""Verbs that turn other things into records of token sequences, and back."""
