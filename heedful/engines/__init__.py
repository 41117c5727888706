"""Engines: ways to run a finished model fast, beside its definition."""
