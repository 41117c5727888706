"""Outputs of a model directory: the same calls in version 0.1 and in the present code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import heedful
from heedful.models.checkpoint import load_model

TEXTS = ["ab ba cab", "d", "bad dab ab ab", "c d a"]
BEAM = 3
NEW_TOKENS = 6


def outputs(directory: Path) -> dict[str, Any]:
    """Return logits on fixed ids, and the texts and scores that the pipelines give."""
    model: Any = load_model(directory)[0]
    with torch.no_grad():
        results = _OUTPUTS[model.spec.kind](model)
    logits = {name: tensor.double().tolist() for name, tensor in results.items()}
    return {"logits": logits, "texts": _texts(model.spec.kind, directory)}


def _ids(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return ids [2, 7] and positions; the second row has padding."""
    ids = (torch.arange(14) * 5 + 3).reshape(2, 7) % vocabulary
    positions = torch.arange(7).repeat(2, 1)
    positions[1, 5:] = -1
    return ids, positions


def _translator(model: Any) -> dict[str, Tensor]:
    source, positions = _ids(model.spec.source_vocabulary)
    target, target_positions = _ids(model.spec.target_vocabulary)
    hidden = model(source, positions, target[:, :5], target_positions[:, :5])
    return {"next": model.logits(hidden)}


def _causal_lm(model: Any) -> dict[str, Tensor]:
    ids, positions = _ids(model.spec.vocabulary)
    logits = model.logits(model(ids, positions))
    return {"next": logits[0], "next of the padded row": logits[1, :5]}


def _encoder(model: Any) -> dict[str, Tensor]:
    ids, positions = _ids(model.spec.vocabulary)
    states = model(ids, positions)
    real = positions >= 0
    return {
        "states": states[real],
        "masked": model.masked_lm_logits(states)[real],
        "labels": model.sequence_logits(states, positions),
        "tokens": model.token_logits(states)[real],
        "span": model.span_logits(states)[real],
    }


def _vision(model: Any) -> dict[str, Tensor]:
    side, channels = model.spec.image_size, model.spec.channels
    image = torch.linspace(-1, 1, channels * side * side).reshape(1, channels, side, side)
    states = model(torch.cat([image, image.flip(-1)]))
    return {"states": states, "classes": model.class_logits(states)}


_OUTPUTS = {
    "translator": _translator,
    "causal_lm": _causal_lm,
    "encoder": _encoder,
    "vision": _vision,
}


def _texts(kind: str, directory: Path) -> list[dict[str, Any]]:
    if kind == "translator":
        translator = heedful.load(directory, device="cpu", precision="fp32")
        found: Any = [
            *translator.translate(TEXTS, beam=BEAM, max_length=NEW_TOKENS),
            *translator.translate(TEXTS, beam=1, max_length=NEW_TOKENS),
        ]
    elif kind == "causal_lm":
        writer: Any = heedful.load(directory, device="cpu", precision="fp32")
        found = writer.generate(TEXTS, beam=BEAM, max_length=NEW_TOKENS)
    else:
        return []
    return [
        {"text": str(getattr(each, "text", each)), "score": cast("float", each.score)}
        for each in found
    ]
