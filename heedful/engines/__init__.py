"""Engines that compute a model faster than its definition, for inference and for training."""
