"""Hugging Face's architectures: a module for each, of the name of its `model_type`."""
