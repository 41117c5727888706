"""Engines that run a finished model fast."""
