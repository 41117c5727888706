"""Translators of Marian (Junczys-Dowmunt 2018; OPUS-MT: Tiedemann 2020).

Sinusoidal positions are computed, not read; a file with other position tables is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.translators.bart import (
    INERT,
    has_bias,
    read_stack,
    stack_rules,
    write_stacks,
)
from heedful.interop.config_fields import Fields
from heedful.interop.rewrites import sinusoids_in_halves
from heedful.interop.tensor_table import Rule, Table, prefix_of
from heedful.models.model_spec import Sharing, TranslatorSpec
from heedful.nn.spec import EmbeddingSpec, PositionSpec

_SHARE: dict[tuple[bool, bool], Sharing] = {
    (True, True): "all",
    (True, False): "inputs",
    (False, True): "target",
    (False, False): "none",
}
"""Sharing by two flags: shared embedding tables, tied output projection."""
# Files in float16 or bfloat16 hold rounded sinusoids.
_HALF_PRECISION = 2e-3


def _read(fields: Fields, names: Names) -> TranslatorSpec:
    fields.refuse_unless("normalize_embedding", [False], False)
    fields.refuse_unless("static_position_embeddings", [True], True)
    source = fields.integer("vocab_size")
    # Models with one vocabulary for both sides leave it out.
    target = fields.integer("decoder_vocab_size", source)
    shared = fields.flag("share_encoder_decoder_embeddings", True)
    if shared and source != target:
        raise fields.wrong("decoder_vocab_size", f"vocab_size is {source}, and they are shared")
    return TranslatorSpec(
        width=fields.integer("d_model"),
        source_vocabulary=source,
        target_vocabulary=target,
        share_embeddings=_SHARE[shared, fields.flag("tie_word_embeddings", True)],
        embedding=EmbeddingSpec(
            scale=fields.flag("scale_embedding", False),
            # All sines, then all cosines, where Vaswani (2017) alternates them.
            positions=PositionSpec(layout="halves"),
            dropout=fields.number("dropout", 0.1),
        ),
        encoder=read_stack(fields, "encoder"),
        decoder=read_stack(fields, "decoder"),
        output_bias=has_bias(names),
        # </s> takes one of the positions.
        max_length=fields.integer("max_position_embeddings") - 1,
    )


def _write(spec: TranslatorSpec) -> dict[str, Any]:
    """Return a config.json with the special ids of Marian's vocabularies."""
    # Transformers appends <pad> to Marian's vocabulary, which has none; </s> is its first entry.
    pad = spec.source_vocabulary - 1
    share = spec.share_embeddings
    return {
        "architectures": ["MarianMTModel"],
        **write_stacks(spec),
        "vocab_size": spec.source_vocabulary,
        "decoder_vocab_size": spec.target_vocabulary,
        "max_position_embeddings": spec.max_length + 1,
        "share_encoder_decoder_embeddings": share in ("all", "inputs"),
        "tie_word_embeddings": share in ("all", "target"),
        "pad_token_id": pad,
        "eos_token_id": 0,
        # Marian starts from a zero embedding; the padding row is all zeros and takes its place.
        "decoder_start_token_id": pad,
    }


def sinusoid_table(spec: TranslatorSpec, names: Names, *, written: bool = False) -> Table:
    """Return the tensor table of a translator whose sinusoids are computed, not read.

    Args:
        spec: spec of the model.
        names: names of the files' tensors.
        written: flag of sinusoids that an export contains.
    """
    rules, copies = stack_rules(spec, names)
    for side in spec.stacks():
        name = f"{prefix_of(names, 'model.')}{side}.embed_positions.weight"
        # Most files do not hold the table, since it is computed when a model is built.
        if name in names or (written and not names):
            rules.append(_sinusoid_rule(name, spec))
    return Table(tuple(rules), tuple(copies))


def _sinusoid_rule(name: str, spec: TranslatorSpec) -> Rule:
    def check(tensors: Sequence[Tensor]) -> list[Tensor]:
        (stored,) = tensors
        if stored.shape != (spec.max_length + 1, spec.width):
            # The table turns this error into a line of its list of problems.
            raise RuntimeError("another shape")
        if not torch.allclose(stored.float(), _sinusoids(spec), rtol=0.0, atol=_HALF_PRECISION):
            raise ModelError(
                f"{name} holds other numbers than Marian's sinusoids",
                remedy="Only models with fixed sinusoidal positions can be imported",
            )
        return []

    return Rule((name,), (), check, lambda x: [_sinusoids(spec)])


def _sinusoids(spec: TranslatorSpec) -> Tensor:
    """Return the sinusoids [max_length + 1, D] float32 that transformers computes."""
    positions = torch.arange(spec.max_length + 1, dtype=torch.float64)
    frequencies = 10_000.0 ** (torch.arange(0, spec.width, 2, dtype=torch.float64) / spec.width)
    # Computed in float64 like theirs: float32 angles would change the sines of late positions.
    angles = positions[:, None] / frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, : spec.width].float()


ARCHITECTURE = Architecture(
    model_type="marian",
    kind="translator",
    read=_read,
    write=_write,
    tensors=sinusoid_table,
    rewrites=(sinusoids_in_halves,),
    classes=("MarianMTModel", "MarianModel"),
    inert=INERT,
)
