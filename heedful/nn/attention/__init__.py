"""Attention: what is computed, its plan and kernels, masks, biases and caches."""
