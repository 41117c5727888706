"""Translation of a few sentences without PyTorch.

To load PyTorch takes longer than to translate a page, and most of what a command line is asked for
is a sentence. Here the kernels in C that PyTorch's models run on too (`heedful.nn.native`) are
called from NumPy, for the models and searches that need nothing else. What they give is what
`heedful.decode` gives for a sentence by itself, to the last bit.
"""
