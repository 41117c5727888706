"""Attention, positions, norms: the parts a block is made of. One idea a file.

Nothing is imported here, so that `heedful.nn.spec` can be read without loading torch.
"""
