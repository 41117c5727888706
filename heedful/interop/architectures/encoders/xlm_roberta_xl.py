"""XLM-RoBERTa-XL (Goyal 2021): RoBERTa with norms before the sub-layers, and one after the last.

It computes what the encoders that are trained here do: `masked_lm`, `classify`, `tag`, `answer`.
"""

from __future__ import annotations

from heedful.interop.architectures.encoders.roberta import roberta_names

ARCHITECTURE = roberta_names("xlm-roberta-xl", "XLMRobertaXL", pre_norm=True).architecture()
