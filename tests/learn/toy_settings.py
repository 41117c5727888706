"""The small translators that learn toy languages: their settings, as flags of `heedful train`."""

from __future__ import annotations

TOY_SETTINGS: dict[str, object] = {
    "model.encoder-layers": 2,
    "model.decoder-layers": 2,
    "model.num-heads": 4,
    "model.dropout": 0,
    "model.norm": "rms",
    "model.norm-placement": "pre",
    "model.positions": "rotary",
    "model.activation": "swiglu",
    "objective.label-smoothing": 0,
    "schedule.kind": "cosine",
    "schedule.peak-learning-rate": 0.006,
    "precision": "fp32",
    "seed": 3,
}

WORDS = {"ab": "no", "cd": "pq", "ef": "rs", "gh": "tu", "ij": "vw", "kl": "xy"}
"""A toy language's words, beside which sentences have parts that are new each time."""

WORD_SETTINGS = TOY_SETTINGS | {
    "model.width": 48,
    "model.feedforward": 96,
    "schedule.warmup-steps": 40,
}
"""Settings with which these are learned."""
