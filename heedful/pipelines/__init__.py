"""Pipelines from raw text or images to results.

Import them from their modules: this file imports none, so that each loads only what it needs.
"""
