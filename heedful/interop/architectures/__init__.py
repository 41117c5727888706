"""Hugging Face's architectures, one module for each, named by its `model_type`."""
