"""MPNet (Song 2020): BERT with biases of distances beside positions, as in T5."""

from __future__ import annotations

from dataclasses import replace

from heedful.interop.architectures.encoders.roberta import roberta_names

ARCHITECTURE = replace(
    roberta_names("mpnet", "MPNet"),
    prefix="mpnet.",
    layer={
        "attention.attn.q": "self_attention.query",
        "attention.attn.k": "self_attention.key",
        "attention.attn.v": "self_attention.value",
        "attention.attn.o": "self_attention.output",
        "attention.LayerNorm": "self_attention_norm",
        "intermediate.dense": "feedforward.up",
        "output.dense": "feedforward.down",
        "output.LayerNorm": "feedforward_norm",
    },
    relative="encoder.relative_attention_bias",
    segments=False,
).architecture()
