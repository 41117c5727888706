"""M2M-100 (Fan 2020) and NLLB-200 (Costa-jussà 2022): pre-norm translators of many languages.

Their sinusoids have other frequencies than those of Vaswani (2017), so they become a table of
positions here. The files do not hold it; an export checks that it still has these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.translators.bart import (
    INERT,
    read_translator,
    stack_rules,
    write_translator,
)
from heedful.interop.config_fields import Fields
from heedful.interop.tensor_table import Rule, Table
from heedful.models.model_spec import TranslatorSpec
from heedful.nn.spec import PositionSpec

# Positions are counted from the one after the padding id 1.
_UNUSED_ROWS = 2


def _read(fields: Fields, names: Names) -> TranslatorSpec:
    fields.refuse_unless("normalize_embedding", [False], False)
    fields.refuse_unless("static_position_embeddings", [True], True)
    fields.refuse_unless("pad_token_id", [_UNUSED_ROWS - 1], _UNUSED_ROWS - 1)
    positions = fields.integer("max_position_embeddings", 1024)
    return read_translator(
        fields,
        PositionSpec(kind="learned", max_length=positions, unused_rows=_UNUSED_ROWS),
        positions - 2,
        pre_norm=True,
        activation="relu",
        scale=True,
    )


def _write(spec: TranslatorSpec) -> dict[str, Any]:
    config = write_translator(spec, "M2M100ForConditionalGeneration")
    return {**config, "pad_token_id": _UNUSED_ROWS - 1}


def _table(spec: TranslatorSpec, names: Names) -> Table:
    rules, copies = stack_rules(spec, names)
    number = (spec.embedding.positions.max_length or 0) + _UNUSED_ROWS
    rules += [
        _sinusoid_rule(f"{side}_input.positions.weight", number, spec.width)
        for side in ("source", "target")
    ]
    # Buffers of the first conversions.
    ignored = (r"(model\.)?(encoder|decoder)\.(version|embed_positions\.weights?)",)
    return Table(tuple(rules), tuple(copies), ignored)


def _sinusoid_rule(name: str, number: int, width: int) -> Rule:
    def check(tensors: Sequence[Tensor]) -> list[Tensor]:
        if not torch.allclose(tensors[0].float(), _sinusoids(number, width), atol=2e-3):
            raise ModelError(
                f"{name} was trained, and M2M-100 computes its positions",
                remedy="Freeze it in training, or export another model",
            )
        return []

    return Rule((), (name,), lambda _: [_sinusoids(number, width)], check)


def _sinusoids(number: int, width: int) -> Tensor:
    """Return the sinusoids [number, D] float32 that transformers computes, rounded as there."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half).float() * -(math.log(10_000) / (half - 1)))
    angles = torch.arange(number).float()[:, None] * frequencies
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    table[_UNUSED_ROWS - 1] = 0.0
    return table


ARCHITECTURE = Architecture(
    model_type="m2m_100",
    kind="translator",
    read=_read,
    write=_write,
    tensors=_table,
    classes=("M2M100ForConditionalGeneration", "M2M100Model"),
    inert=INERT,
)
