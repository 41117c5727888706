"""Engines beside the definition: one wing for inference, one for training."""
