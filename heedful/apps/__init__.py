"""Applications of the core: servers, documents, checks, the studio, comparisons, charts, pruning.

The core imports none of them (`tests/law/test_layers.py`), so readers of the Transformer can skip
this folder.
"""
