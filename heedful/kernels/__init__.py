"""Kernels in C and their Python bindings; where they are not built, PyTorch does the same."""
