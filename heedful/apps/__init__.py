"""Applications of the core: servers, documents, checks, the studio, comparisons, plans, shards.

The core knows none of them (`tests/law/test_layers.py`), so whoever reads the Transformer need not
open this folder.
"""
