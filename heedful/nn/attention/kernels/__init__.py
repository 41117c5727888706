"""Kernels of attention: the definition, and faster ways to the same result."""
