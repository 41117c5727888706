"""Whether another project's config.json says all there is to say about a model, and what it does
not say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from heedful.errors import UserError
from heedful.models.family import CausalLMSpec, ModelSpec
from heedful.models.spec import BlockSpec, StackSpec, TranslatorSpec
from heedful.nn.spec import AllOfSpec, AttentionSpec, CausalSpec, SegmentSpec


def misfits(spec: ModelSpec, read_again: Callable[[], ModelSpec]) -> list[str]:
    """What a config.json of theirs leaves out or says otherwise.

    Args:
        spec: of the model.
        read_again: writes the config.json for it and reads that.

    Returns:
        A line for each difference; none when they are the same model.
    """
    try:
        again = read_again()
    except UserError as error:  # a value has no name there
        return [error.what]
    ours, theirs = _flat(_essence(spec).plain()), _flat(_essence(again).plain())
    return [
        f"{key} is {_show(ours, key)} here and {_show(theirs, key)} there"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def _essence(spec: ModelSpec) -> ModelSpec:
    """Without what only training asks for, and with every default written out.

    Dropout is for training and segments are for packed texts; the longest text of a language model
    is advice.
    """
    if isinstance(spec, CausalLMSpec):
        return spec.model_copy(
            update={
                "decoder": _stack(spec.decoder, spec.width),
                "embedding": spec.embedding.model_copy(update={"dropout": 0.0}),
                "max_length": None,
            }
        )
    if isinstance(spec, TranslatorSpec):
        return spec.model_copy(
            update={
                "encoder": _stack(spec.encoder, spec.width),
                "decoder": _stack(spec.decoder, spec.width),
                "embedding": spec.embedding.model_copy(update={"dropout": 0.0}),
            }
        )
    return spec


def _stack(stack: StackSpec, width: int) -> StackSpec:
    return stack.model_copy(update={"block": _block(stack.block, width), "final_dropout": 0.0})


def _block(block: BlockSpec, width: int) -> BlockSpec:
    cross = block.cross_attention
    return block.model_copy(
        update={
            "self_attention": _attention(block.self_attention, width),
            "cross_attention": None if cross is None else _attention(cross, width),
            "feedforward": block.feedforward.model_copy(update={"dropout": 0.0}),
            "dropout": 0.0,
        }
    )


def _attention(attention: AttentionSpec, width: int) -> AttentionSpec:
    mask = attention.mask
    if isinstance(mask, AllOfSpec) and set(map(type, mask.parts)) == {CausalSpec, SegmentSpec}:
        mask = CausalSpec()
    head_width = attention.head_width or width // attention.num_heads
    output_bias = attention.output_bias
    return attention.model_copy(
        update={
            "mask": mask,
            "dropout": 0.0,
            "num_kv_heads": attention.num_kv_heads or attention.num_heads,
            "head_width": head_width,
            "scale": attention.scale or head_width**-0.5,
            "output_bias": attention.bias if output_bias is None else output_bias,
        }
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return dict(_leaves(values, prefix))


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _show(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "not"
