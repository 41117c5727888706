"""Attention: definition, plan and kernels; masks, biases and caches."""
