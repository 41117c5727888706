"""Marian's translators (Junczys-Dowmunt 2018; OPUS-MT: Tiedemann 2020) as transformers stores them.

Their sinusoids are fixed, so they are not read; a file that holds others is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.interop.bart_layers import (
    Share,
    bias_rules,
    has_bias,
    layer_rules,
    prefix_of,
    read_stack,
    their_names,
    vocabulary_rules,
    write_stacks,
)
from heedful.interop.fields import Fields, sizes_checked
from heedful.interop.fitting import misfits
from heedful.interop.forms import sinusoids_in_halves
from heedful.interop.table import Rule, Table
from heedful.models.family import ModelSpec
from heedful.models.spec import TranslatorSpec
from heedful.nn.spec import EmbeddingSpec, PositionSpec

MODEL_TYPES = ("marian",)
FORMS = (sinusoids_in_halves,)

_SHARE: dict[tuple[bool, bool], Share] = {
    (True, True): "all",
    (True, False): "inputs",
    (False, True): "target",
    (False, False): "none",
}
"""By whether the embedding tables are shared and whether the output projection is tied."""
_HALF_PRECISION = 2e-3  # what sinusoids lose in float16


def read_config(
    config: Mapping[str, Any], *, where: str, names: Collection[str] = ()
) -> TranslatorSpec:
    """The spec that a config.json describes.

    Args:
        config: its content.
        where: the file, for error messages.
        names: the tensors' names. Files may leave out the bias of the logits, which a
            configuration does not tell; without names there is one.

    Raises:
        ModelError: naming a setting that is missing, wrong or without a counterpart here.
    """
    fields = Fields(config, where)
    fields.refuse_unless("normalize_embedding", [False], False)
    fields.refuse_unless("static_position_embeddings", [True], True)
    source = fields.integer("vocab_size")
    target = fields.integer("decoder_vocab_size", source)
    shared = fields.flag("share_encoder_decoder_embeddings", True)
    if shared and source != target:
        raise fields.wrong("decoder_vocab_size", f"vocab_size is {source}, and they are shared")
    with sizes_checked(where):
        return TranslatorSpec(
            width=fields.integer("d_model"),
            source_vocabulary=source,
            target_vocabulary=target,
            share_embeddings=_SHARE[shared, fields.flag("tie_word_embeddings", True)],
            embedding=EmbeddingSpec(
                scale=fields.flag("scale_embedding", False),
                positions=PositionSpec(layout="halves"),
                dropout=fields.number("dropout", 0.1),
            ),
            encoder=read_stack(fields, "encoder"),
            decoder=read_stack(fields, "decoder"),
            output_bias=has_bias(names),
            max_length=fields.integer("max_position_embeddings") - 1,  # its end takes one
        )


def write_config(spec: TranslatorSpec) -> dict[str, Any]:
    """The config.json of a model that `fits`, with special ids as Marian's vocabularies have."""
    pad = spec.source_vocabulary - 1
    share = spec.share_embeddings
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        **write_stacks(spec),
        "vocab_size": spec.source_vocabulary,
        "decoder_vocab_size": spec.target_vocabulary,
        "max_position_embeddings": spec.max_length + 1,
        "share_encoder_decoder_embeddings": share in ("all", "inputs"),
        "tie_word_embeddings": share in ("all", "target"),
        "pad_token_id": pad,
        "eos_token_id": 0,
        "decoder_start_token_id": pad,
    }


def differences(spec: ModelSpec) -> list[str] | None:
    """What of a spec `write_config` cannot say; None for another kind of model."""
    if not isinstance(spec, TranslatorSpec):
        return None
    names = their_names(table(spec))
    return misfits(spec, lambda: read_config(write_config(spec), where="", names=names))


def fits(spec: ModelSpec) -> bool:
    """Whether `write_config` can say all of a spec."""
    return differences(spec) == []


def table(spec: TranslatorSpec, names: Collection[str] = ()) -> Table:
    """The tensors, of files with these names; of an export if there are none."""
    prefix = prefix_of(names)
    rules, copies = vocabulary_rules(spec.share_embeddings, prefix)
    rules += bias_rules(spec)
    rules += layer_rules(spec, prefix)
    for side in ("encoder", "decoder"):
        name = f"{prefix}{side}.embed_positions.weight"
        if name in names:
            rules.append(_sinusoid_rule(name, spec))
    return Table(tuple(rules), tuple(copies))


def _sinusoid_rule(name: str, spec: TranslatorSpec) -> Rule:
    def check(tensors: Sequence[Tensor]) -> list[Tensor]:
        held, wanted = tensors[0], _sinusoids(spec)
        if held.shape != wanted.shape:
            raise RuntimeError("another shape")  # told by the table, with all that is wrong
        if not torch.allclose(held.float(), wanted, rtol=0.0, atol=_HALF_PRECISION):
            raise ModelError(
                f"{name} holds other numbers than Marian's sinusoids",
                remedy="Only models with fixed sinusoidal positions can be imported",
            )
        return []

    return Rule((name,), (), check, lambda x: [_sinusoids(spec)])


def _sinusoids(spec: TranslatorSpec) -> Tensor:
    """The table [max_length + 1, D] float32 that transformers keeps."""
    positions = torch.arange(spec.max_length + 1, dtype=torch.float64)
    frequencies = 10_000.0 ** (torch.arange(0, spec.width, 2, dtype=torch.float64) / spec.width)
    angles = positions[:, None] / frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, : spec.width].float()
