"""Kernels in C for decoding on a processor; without them PyTorch's operations do the same."""
