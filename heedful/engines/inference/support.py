"""Checks of specs by inference engines: an engine supports every field, or refuses it by name.

The tables below list the fields that an engine supports. An engine refuses a field that is in none
of its tables and does not have its default value, so it never silently ignores a new feature of the
definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from heedful.config import GATED, Config
from heedful.engines.inference.lowering import head_counts
from heedful.kernels.library import ACTIVATIONS, MIXERS, kernels
from heedful.models.model_spec import ModelSpec, TranslatorSpec
from heedful.models.stack_spec import BlockSpec, StackSpec, SubLayerSpec
from heedful.nn.mixer_spec import AverageAttentionSpec, SSRUSpec
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
)


class Refusal(NamedTuple):
    """A field of a spec that an engine does not support.

    Args:
        field: path of the field, such as `decoder.block.self_attention.softcap`.
        reason: clause for people.
    """

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


@dataclass(frozen=True)
class _Rule:
    """A field that an engine supports.

    Args:
        accepts: predicate of the values that the engine supports.
        reason: reason for refusing other values.
        within: flag that the value's own fields are checked too.
    """

    accepts: Callable[[Any], bool] = lambda value: True
    reason: str = ""
    within: bool = True


_Rules = Mapping[type[Config], Mapping[str, _Rule]]


def _honour(*names: str) -> dict[str, _Rule]:
    return dict.fromkeys(names, _Rule())


def _one_of(*values: Any, reason: str) -> _Rule:
    return _Rule(lambda value: value in values, reason)


_BY_DEFINITION = _Rule(within=False)
"""The rule of a field that the definition computes, for kernels in C to use the result."""

_BLOCKS: _Rules = {
    SubLayerSpec: {
        **_honour("name", "part", "norm", "dropout"),
        "norm_placement": _one_of("before", "after", reason="kernels norm before or after a part"),
        "residual": _one_of(True, reason="kernels always add the residual"),
        "residual_scale": _one_of(1.0, reason="kernels do not scale the residual sum"),
        "parallel": _one_of(False, reason="kernels run sub-layers one after the other"),
    },
    AttentionSpec: {
        **_honour("kind", "over", "num_heads", "num_kv_heads", "head_width", "bias"),
        # Dropout does nothing in a finished model, so it may have any value.
        **_honour("output_bias", "scale", "dropout", "rotary", "kept_heads"),
        "softcap": _one_of(None, reason="kernels have no soft cap"),
        "query_key_norm": _one_of(None, reason="kernels do not norm queries and keys"),
        "query_key_norm_over": _one_of("head", reason="kernels do not norm queries and keys"),
        # PyTorch makes a tensor of visible pairs or of biases, which C reads: all kinds are
        # supported.
        "mask": _BY_DEFINITION,
        "position_bias": _BY_DEFINITION,
        "relative_values": _one_of(None, reason="kernels add nothing to values"),
        "global_tokens": _one_of(None, reason="kernels project all tokens alike"),
        "latent": _one_of(None, reason="kernels project keys and values from the input"),
    },
    AverageAttentionSpec: _honour("kind", "feedforward", "gate", "causal"),
    SSRUSpec: _honour("kind", "bias", "causal"),
    FeedForwardSpec: {
        **_honour("kind", "width", "bias", "dropout"),
        "activation": _one_of(*ACTIVATIONS, *GATED, reason="kernels have no such activation"),
        "experts": _one_of(None, reason="kernels have no experts"),
    },
    NormSpec: {
        **_honour("epsilon"),
        "kind": _one_of("layer", "rms", reason="kernels have no such norm"),
        # Gemma's factor is 1 + weight, and a block's struct has the address of the weight.
        "unit_offset": _one_of(False, reason="kernels take a norm's weight as its factor"),
    },
    RotarySpec: {  # the definition computes the angles
        **_honour("base", "width", "scaling", "factor", "original_length"),
        **_honour("beta_fast", "beta_slow", "temperature"),
        "layout": _one_of("halves", "pairs", reason="kernels have no such layout"),
    },
}
"""Blocks by kernels in C, one at a time."""

_ONE_NORM = {**_BLOCKS[NormSpec], **_honour("unit_offset")}
"""Rules of a single norm, whose factor the definition computes before the call."""

_STACKS: _Rules = {
    StackSpec: {
        **_honour("num_layers", "final_norm", "final_dropout"),
        "pattern": _BY_DEFINITION,  # blocks are checked one by one
        "shared_position_bias": _BY_DEFINITION,
    },
    NormSpec: _ONE_NORM,
}

_EMBEDDINGS: _Rules = {
    EmbeddingSpec: {
        **_honour("scale", "norm", "dropout"),
        "num_segments": _BY_DEFINITION,
        "positions": _BY_DEFINITION,
    },
    NormSpec: _ONE_NORM,
}

_SENTENCES: _Rules = {
    **_BLOCKS,
    BlockSpec: _honour("sublayers"),
    TranslatorSpec: {
        **_honour("kind", "width", "source_vocabulary", "target_vocabulary", "max_length"),
        **_honour("embedding", "encoder", "decoder", "output_bias", "output_scale"),
        "share_embeddings": _one_of("all", "inputs", "target", "none", reason="no such sharing"),
        "logits_softcap": _one_of(None, reason="only the definition caps logits"),
    },
    EmbeddingSpec: {
        **_honour("scale", "norm", "dropout", "positions"),
        "num_segments": _one_of(None, reason="one sentence has no segments"),
    },
    PositionSpec: {
        **_honour("max_length", "unused_rows", "layout"),
        "axes": _one_of(None, reason="only the definition has axes"),
        "kind": _one_of("sinusoidal", "learned", "none", reason="no such positions"),
    },
    StackSpec: {
        **_honour("num_layers", "pattern", "final_norm", "final_dropout"),
        "shared_position_bias": _one_of(None, reason="only the definition computes biases"),
    },
    AttentionSpec: {
        **_BLOCKS[AttentionSpec],
        "kept_heads": _one_of(None, reason="heads were pruned"),
        "position_bias": _one_of(None, reason="only the definition computes biases"),
    },
}
"""Translators of single sentences by kernels in C from NumPy."""


_SELF = ("self_attention", "attention", "input")
_CROSS = ("cross_attention", "attention", "memory")
_NETWORK = ("feedforward", "feedforward", None)
_RECURRENT = [("mixer", kind, None) for kind in MIXERS if kind != "attention"]
_ORDERS = [[mixer, *cross, _NETWORK] for mixer in (_SELF, *_RECURRENT) for cross in ([], [_CROSS])]
"""Name, kind and attended input of a block's parts, in each order that the kernels support."""

_MASKS = {
    "encoder": {"self_attention": "everything"},
    "decoder": {"self_attention": "causal", "cross_attention": "everything"},
}


def embedding_refusals(spec: EmbeddingSpec, where: str) -> list[Refusal]:
    """Return the fields of an input embedding that kernels in C do not support."""
    return list(_refusals(spec, _EMBEDDINGS, where))


def stack_refusals(spec: StackSpec, where: str) -> list[Refusal]:
    """Return the fields of a stack, without its blocks, that kernels in C do not support."""
    return list(_refusals(spec, _STACKS, where))


def block_refusals(spec: BlockSpec, width: int, where: str) -> list[Refusal]:
    """Return the fields of a block that kernels in C do not support.

    Args:
        spec: spec of the block.
        width: width of the model, D.
        where: path of the block.
    """
    refusals: list[Refusal] = []
    for number, sublayer in enumerate(spec.sublayers):
        refusals += _refusals(sublayer, _BLOCKS, f"{where}.sublayers.{number}")
    parts = [(each.name, each.part) for each in spec.sublayers]
    if [(name, part.kind, getattr(part, "over", None)) for name, part in parts] not in _ORDERS:
        reason = (
            "kernels run self-attention, average attention or an SSRU, then cross-attention if "
            "any, then a feed-forward network"
        )
        refusals.append(Refusal(f"{where}.sublayers", reason))
    # A layer's struct has one flag for the placement of its norms.
    if len({each.norm_placement for each in spec.sublayers}) > 1:
        refusals.append(Refusal(f"{where}.sublayers", "kernels place all norms alike"))
    if kernels() is None:
        return [Refusal(where, "kernels in C were not compiled"), *refusals]
    # Head widths are checked last, as only the library knows the width of its registers.
    for path, _, attention in _attentions(spec, where):
        refusals += _head_refusals(attention, width, path)
    return refusals


def one_call_refusals(spec: StackSpec, width: int, where: str) -> list[Refusal]:
    """Return the fields of a stack for which kernels in C need one call per block."""
    refusals: list[Refusal] = []
    biased = "the definition computes biases for each block"
    if spec.shared_position_bias is not None:
        refusals.append(Refusal(f"{where}.shared_position_bias", biased))
    # The first attention of each name in the stack, which all others are compared with.
    first: dict[str, AttentionSpec] = {}
    for block in spec.pattern:
        first = block.attentions() | first
    for number, block in enumerate(spec.pattern):
        for path, name, attention in _attentions(block, f"{where}.pattern.{number}"):
            if attention.over == "input" and attention.position_bias is not None:
                refusals.append(Refusal(f"{path}.position_bias", biased))
            if attention.over == "input" and attention.kept_heads == ():
                refusals.append(Refusal(f"{path}.kept_heads", "it has no heads"))
            if _in_common(attention, width) != _in_common(first[name], width):
                reason = "layers differ in mask, rotation, or the number or size of key heads"
                refusals.append(Refusal(path, reason))
    return refusals


def cpu_refusals(spec: ModelSpec) -> list[Refusal]:
    """Return the fields of a model that kernels in C do not support.

    The definition computes the parts with these fields.
    """
    embedding: EmbeddingSpec | None = getattr(spec, "embedding", None)
    refusals = [] if embedding is None else embedding_refusals(embedding, "embedding")
    for name, stack in spec.stacks().items():
        refusals += stack_refusals(stack, name)
        for number, block in enumerate(stack.pattern):
            refusals += block_refusals(block, spec.width, f"{name}.pattern.{number}")
    return refusals


def explain(spec: ModelSpec) -> str:
    """Name the engine that runs a model of this spec on a processor, and the reasons."""
    lines = []
    by_definition, one_by_one = cpu_refusals(spec), []
    for name, stack in spec.stacks().items():
        one_by_one += one_call_refusals(stack, spec.width, name)
    # The model has no decoding steps, where kernels in C save passes over memory
    # between small matmuls.
    if not spec.generates:
        lines.append("the definition; kernels in C in 8 bits")
    elif by_definition:
        lines.append("kernels in C, except parts that the definition computes:")
    elif one_by_one:
        lines.append("kernels in C, block by block:")
    else:
        lines.append("kernels in C, a stack in one call")
    lines += [f"  {refusal}" for refusal in by_definition or one_by_one]
    alone = sentence_refusals(spec)
    lines.append("a single sentence: " + ("as a batch" if alone else "NumPy, also without PyTorch"))
    lines += [f"  {refusal}" for refusal in alone]
    return "\n".join(lines)


def sentence_refusals(spec: ModelSpec) -> list[Refusal]:
    """Return the fields of a model that the NumPy runtime of single sentences does not support."""
    refusals = list(_refusals(spec, _SENTENCES, ""))
    if refusals or spec.kind != "translator":
        return refusals or [Refusal("kind", "it is no translator")]
    for name, stack in spec.stacks().items():
        # One sentence has no padding, and its decoder sees its past by the order of slots: the
        # masks below are implied, and no others are possible.
        kinds = _MASKS[name]
        for number, block in enumerate(stack.pattern):
            where = f"{name}.pattern.{number}"
            refusals += block_refusals(block, spec.width, where)
            if name == "decoder" and block.cross_attention is None:
                refusals.append(Refusal(f"{where}.sublayers", "each layer must read the sentence"))
            for path, part, attention in _attentions(block, where):
                if attention.mask.kind != kinds.get(part):
                    reason = f"in a sentence the mask is {kinds.get(part)}"
                    refusals.append(Refusal(f"{path}.mask", reason))
        refusals += one_call_refusals(stack, spec.width, name)
    return refusals


def _refusals(spec: Config, rules: _Rules, where: str) -> Iterator[Refusal]:
    known = rules.get(type(spec))
    if known is None:
        yield Refusal(where or "kind", f"{type(spec).__name__} is unknown to the engine")
        return
    for name, field in type(spec).model_fields.items():
        value, path = getattr(spec, name), f"{where}.{name}" if where else name
        rule = known.get(name)
        if rule is None:
            # An unknown field has no effect as long as it has its default value.
            if value != field.get_default(call_default_factory=True):
                yield Refusal(path, "unknown to the engine")
        elif not rule.accepts(value):
            yield Refusal(path, rule.reason)
        elif rule.within and isinstance(value, Config):
            yield from _refusals(value, rules, path)
        elif rule.within and isinstance(value, tuple):
            for number, each in enumerate(value):
                if isinstance(each, Config):
                    yield from _refusals(each, rules, f"{path}.{number}")


def _attentions(block: BlockSpec, where: str) -> Iterator[tuple[str, str, AttentionSpec]]:
    """Yield path, name and spec of each attention of a block."""
    attentions = block.attentions()
    for number, sublayer in enumerate(block.sublayers):
        if sublayer.name in attentions:
            yield f"{where}.sublayers.{number}.part", sublayer.name, attentions[sublayer.name]


def _head_refusals(spec: AttentionSpec, width: int, where: str) -> Iterator[Refusal]:
    lanes = kernels().heedful_lanes()
    # Dot products of heads run over whole registers, without a remainder.
    if spec.width_of_heads(width) % lanes:
        reason = f"kernels need heads of a multiple of {lanes} numbers"
        yield Refusal(f"{where}.head_width", reason)
    # Kernels find a query head's key head by a division.
    if len(set(Counter(spec.heads_of_keys).values())) > 1:
        reason = "kernels need equally many heads for each key head"
        yield Refusal(f"{where}.kept_heads", reason)


def _in_common(spec: AttentionSpec, width: int) -> tuple[object, ...]:
    """Return the settings that a call for several layers passes only once."""
    return spec.mask, spec.rotary, head_counts(spec)[1], spec.width_of_heads(width)
