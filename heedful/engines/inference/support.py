"""The specs that each engine can run: every field is honoured, or named in a refusal.

The tables below list the fields that an engine honours. A field that no table knows is refused as
soon as its value is not the default, so a new feature of the definition is never skipped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from heedful.config import Config
from heedful.engines.inference.lowering import head_counts
from heedful.kernels.library import ACTIVATIONS, MIXERS, kernels
from heedful.models.model_spec import ModelSpec, TranslatorSpec
from heedful.models.stack_spec import BlockSpec, StackSpec, SubLayerSpec
from heedful.nn.mixer_spec import AverageAttentionSpec, SSRUSpec
from heedful.nn.spec import (
    GATED,
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
)


class Refusal(NamedTuple):
    """A field of a spec that an engine does not honour.

    Args:
        field: its path, such as `decoder.block.self_attention.softcap`.
        reason: a clause for people.
    """

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


@dataclass(frozen=True)
class _Rule:
    """A field that an engine honours.

    Args:
        accepts: tells the values that it honours.
        reason: why others are refused.
        within: look into the value's own fields.
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
"""The definition computes it, and kernels in C take the result."""

_BLOCKS: _Rules = {
    SubLayerSpec: {
        **_honour("name", "part", "norm", "dropout"),
        "norm_placement": _one_of("before", "after", reason="kernels norm before or after a part"),
        "residual": _one_of(True, reason="kernels always add the residual"),
        "residual_scale": _one_of(1.0, reason="kernels do not scale the residual sum"),
    },
    AttentionSpec: {
        **_honour("kind", "over", "num_heads", "num_kv_heads", "head_width", "bias"),
        **_honour("output_bias", "scale", "dropout", "rotary", "kept_heads"),
        "softcap": _one_of(None, reason="kernels have no soft cap"),
        "query_key_norm": _one_of(None, reason="kernels do not norm queries and keys"),
        "mask": _BY_DEFINITION,
        "position_bias": _BY_DEFINITION,
        "relative_values": _one_of(None, reason="kernels add nothing to values"),
        "global_tokens": _one_of(None, reason="kernels project all tokens alike"),
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
        "unit_offset": _one_of(False, reason="kernels take a norm's weight as its factor"),
    },
    RotarySpec: {  # `frequencies` and `temperature` are those of the definition
        **_honour("base", "width", "scaling", "factor", "original_length"),
        **_honour("beta_fast", "beta_slow", "temperature"),
        "layout": _one_of("halves", "pairs", reason="kernels have no such layout"),
    },
}
"""Blocks by kernels in C, one at a time."""

_ONE_NORM = {**_BLOCKS[NormSpec], **_honour("unit_offset")}
"""A norm that the definition hands to kernels, with its factor."""

_STACKS: _Rules = {
    StackSpec: {
        **_honour("num_layers", "final_norm", "final_dropout"),
        "pattern": _BY_DEFINITION,  # each block has rules of its own
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
"""Translators of one sentence by kernels in C from NumPy."""


_SELF = ("self_attention", "attention", "input")
_CROSS = ("cross_attention", "attention", "memory")
_NETWORK = ("feedforward", "feedforward", None)
_RECURRENT = [("mixer", kind, None) for kind in MIXERS if kind != "attention"]
_ORDERS = [[mixer, *cross, _NETWORK] for mixer in (_SELF, *_RECURRENT) for cross in ([], [_CROSS])]
"""The name and kind of a block's parts, and what they attend over, in the order of the kernels."""

_MASKS = {
    "encoder": {"self_attention": "everything"},
    "decoder": {"self_attention": "causal", "cross_attention": "everything"},
}


def embedding_refusals(spec: EmbeddingSpec, where: str) -> list[Refusal]:
    """The fields of an input embedding that kernels in C do not honour."""
    return list(_refusals(spec, _EMBEDDINGS, where))


def stack_refusals(spec: StackSpec, where: str) -> list[Refusal]:
    """The fields of a stack, its blocks aside, that kernels in C do not honour."""
    return list(_refusals(spec, _STACKS, where))


def block_refusals(spec: BlockSpec, width: int, where: str) -> list[Refusal]:
    """The fields of a block that kernels in C do not honour.

    Args:
        spec: of the block.
        width: D.
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
    if len({each.norm_placement for each in spec.sublayers}) > 1:
        refusals.append(Refusal(f"{where}.sublayers", "kernels place all norms alike"))
    if kernels() is None:
        return [Refusal(where, "kernels in C were not compiled"), *refusals]
    for path, _, attention in _attentions(spec, where):
        refusals += _head_refusals(attention, width, path)
    return refusals


def one_call_refusals(spec: StackSpec, width: int, where: str) -> list[Refusal]:
    """The fields of a stack whose blocks kernels in C run one by one, not all in one call."""
    refusals: list[Refusal] = []
    biased = "the definition computes biases for each block"
    if spec.shared_position_bias is not None:
        refusals.append(Refusal(f"{where}.shared_position_bias", biased))
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
    """The fields of a model that kernels in C do not honour; the definition computes those parts.

    Args:
        spec: of a model of any kind.
    """
    embedding: EmbeddingSpec | None = getattr(spec, "embedding", None)
    refusals = [] if embedding is None else embedding_refusals(embedding, "embedding")
    for name, stack in spec.stacks().items():
        refusals += stack_refusals(stack, name)
        for number, block in enumerate(stack.pattern):
            refusals += block_refusals(block, spec.width, f"{name}.pattern.{number}")
    return refusals


def explain(spec: ModelSpec) -> str:
    """Say which engine runs a model of this spec on a processor, and why not another.

    Args:
        spec: of a model of any kind.
    """
    lines = []
    by_definition, one_by_one = cpu_refusals(spec), []
    for name, stack in spec.stacks().items():
        one_by_one += one_call_refusals(stack, spec.width, name)
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
    """The fields of a model that the NumPy runtime of single sentences does not honour."""
    refusals = list(_refusals(spec, _SENTENCES, ""))
    if refusals or spec.kind != "translator":
        return refusals or [Refusal("kind", "it is no translator")]
    for name, stack in spec.stacks().items():
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
    """Path, name and spec of each attention of a block."""
    for number, sublayer in enumerate(block.sublayers):
        if sublayer.part.kind == "attention":
            yield f"{where}.sublayers.{number}.part", sublayer.name, sublayer.part


def _head_refusals(spec: AttentionSpec, width: int, where: str) -> Iterator[Refusal]:
    lanes = kernels().heedful_lanes()
    if spec.width_of_heads(width) % lanes:
        reason = f"kernels need heads of a multiple of {lanes} numbers"
        yield Refusal(f"{where}.head_width", reason)
    if spec.kept_heads is not None:
        shared = spec.num_heads // (spec.num_kv_heads or spec.num_heads)
        key_heads = [head // shared for head in spec.kept_heads]
        if len({key_heads.count(each) for each in key_heads}) > 1:
            reason = "kernels need equally many heads for each key head"
            yield Refusal(f"{where}.kept_heads", reason)


def _in_common(spec: AttentionSpec, width: int) -> tuple[object, ...]:
    """Settings that one call has once for all layers."""
    return spec.mask, spec.rotary, head_counts(spec)[1], spec.width_of_heads(width)
