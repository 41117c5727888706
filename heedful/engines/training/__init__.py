"""Engines that train a model fast: by kernels for processors, by compiled graphs for GPUs."""
