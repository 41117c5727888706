"""Pipelines of models of sounds."""
