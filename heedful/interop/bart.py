"""BART (Lewis 2020) as transformers stores it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from heedful.interop.bart_layers import (
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
from heedful.interop.table import Table, same
from heedful.models.family import ModelSpec
from heedful.models.spec import TranslatorSpec
from heedful.nn.spec import EmbeddingSpec, NormSpec, PositionSpec

MODEL_TYPES = ("bart",)
FORMS = ()

_UNUSED_ROWS = 2
_FRAME = 2  # the tokens around a source


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
    fields.refuse_unless("normalize_embedding", [True], True)
    fields.refuse_unless("static_position_embeddings", [False], False)
    vocabulary, positions = fields.integer("vocab_size"), fields.integer("max_position_embeddings")
    with sizes_checked(where):
        return TranslatorSpec(
            width=fields.integer("d_model"),
            source_vocabulary=vocabulary,
            target_vocabulary=vocabulary,
            share_embeddings="all" if fields.flag("tie_word_embeddings", True) else "inputs",
            embedding=EmbeddingSpec(
                scale=fields.flag("scale_embedding", False),
                positions=PositionSpec(
                    kind="learned", max_length=positions, unused_rows=_UNUSED_ROWS
                ),
                norm=NormSpec(),
                dropout=fields.number("dropout", 0.1),
            ),
            encoder=read_stack(fields, "encoder"),
            decoder=read_stack(fields, "decoder"),
            output_bias=has_bias(names),
            max_length=positions - _FRAME,
        )


def write_config(spec: TranslatorSpec) -> dict[str, Any]:
    """The config.json of a model that `fits`; special ids are the published models' by default."""
    return {
        "model_type": "bart",
        "architectures": ["BartForConditionalGeneration"],
        **write_stacks(spec),
        "vocab_size": spec.target_vocabulary,
        "max_position_embeddings": spec.embedding.positions.max_length,
        "tie_word_embeddings": spec.share_embeddings == "all",
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
    for side, ours in (("encoder", "source_input"), ("decoder", "target_input")):
        rules.append(same(f"{prefix}{side}.embed_positions.weight", f"{ours}.positions.weight"))
        for kind in ("weight", "bias"):
            rules.append(same(f"{prefix}{side}.layernorm_embedding.{kind}", f"{ours}.norm.{kind}"))
    rules += layer_rules(spec, prefix)
    return Table(tuple(rules), tuple(copies), ignored=(r"(model\.)?(encoder|decoder)\.version",))
