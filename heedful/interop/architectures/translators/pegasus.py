"""PEGASUS (Zhang 2020): a pre-norm translator with Marian's sinusoids and one table for both sides.

It computes what a translator trained here with `--model.norm-placement pre` does.
"""

from __future__ import annotations

import functools
from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.translators.bart import (
    INERT,
    has_bias,
    read_translator,
    write_translator,
)
from heedful.interop.architectures.translators.marian import sinusoid_table
from heedful.interop.config_fields import Fields
from heedful.interop.rewrites import sinusoids_in_halves
from heedful.models.model_spec import TranslatorSpec
from heedful.nn.spec import PositionSpec


def _read(fields: Fields, names: Names) -> TranslatorSpec:
    fields.refuse_unless("normalize_embedding", [False], False)
    fields.refuse_unless("static_position_embeddings", [True], True)
    longest = fields.integer("max_position_embeddings", 1024) - 1
    positions = PositionSpec(layout="halves")
    return read_translator(fields, positions, longest, pre_norm=True, output_bias=has_bias(names))


def _write(spec: TranslatorSpec) -> dict[str, Any]:
    config = write_translator(spec, "PegasusForConditionalGeneration", spec.max_length + 1)
    # The default of their class would end every text of the longest length by the token 1.
    return {**config, "forced_eos_token_id": None}


ARCHITECTURE = Architecture(
    model_type="pegasus",
    kind="translator",
    read=_read,
    write=_write,
    # Their loader would report the tables as missing, and compute them.
    tensors=functools.partial(sinusoid_table, written=True),
    rewrites=(sinusoids_in_halves,),
    classes=("PegasusForConditionalGeneration", "PegasusModel"),
    inert=INERT,
)
