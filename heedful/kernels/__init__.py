"""Kernels in C and their Python bindings; without them PyTorch computes everything."""
