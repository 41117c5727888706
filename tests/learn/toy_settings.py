"""Settings of the small translators that learn toy languages, as flags of `heedful train`."""

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
