"""What CTranslate2 computes of what a model of ours may do. Its package is not needed to know."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.errors import ModelError
from heedful.models.family import CausalLMSpec, ModelSpec
from heedful.models.spec import StackSpec, TranslatorSpec
from heedful.nn.spec import (
    AlibiSpec,
    AllOfSpec,
    AttentionSpec,
    CausalSpec,
    EverythingSpec,
    MaskSpec,
    NormSpec,
    SegmentSpec,
    T5BiasSpec,
)


def unsupported(spec: TranslatorSpec | CausalLMSpec) -> list[str]:
    """The settings of a model that it has no counterpart for, each in a few words."""
    found = list(_in_embedding(spec))
    if isinstance(spec, TranslatorSpec):
        stacks = {"encoder": spec.encoder, "decoder": spec.decoder}
        if spec.output_scale not in (None, spec.width**-0.5):
            found.append(f"output_scale = {spec.output_scale}")
    else:
        stacks = {"decoder": spec.decoder}
    for side, stack in stacks.items():
        found += _in_stack(stack, side)
        found += _in_positions(spec, stack, side)
    epsilons = {norm.epsilon for stack in stacks.values() for norm in _norms(stack)}
    if spec.embedding.norm is not None:
        epsilons.add(spec.embedding.norm.epsilon)
    if len(epsilons) > 1:
        found.append(f"norms with different epsilons: {', '.join(map(str, sorted(epsilons)))}")
    return found


def unsupported_kind(spec: ModelSpec, where: str) -> ModelError:
    """The error about a model that generates no text, to be raised."""
    return ModelError(
        f"A model of the kind {spec.kind!r} cannot be exported to CTranslate2",
        where=where,
        remedy="Give a translator or a causal language model; encoders go to --format onnx or hf",
    )


def _in_embedding(spec: TranslatorSpec | CausalLMSpec) -> Iterator[str]:
    if spec.embedding.num_segments is not None:
        yield "embedding.num_segments"


def _norms(stack: StackSpec) -> Iterator[NormSpec]:
    yield stack.block.norm
    if stack.final_norm is not None:
        yield stack.final_norm


def _in_stack(stack: StackSpec, side: str) -> Iterator[str]:
    block = stack.block
    if stack.kept_heads is not None:
        yield f"{side}.kept_heads (layers with unequal heads, from pruning)"
    if block.norm_placement == "post" and stack.final_norm is not None:
        yield f"{side}.final_norm after post-norm blocks"
    if len({norm.kind for norm in _norms(stack)}) > 1:
        yield f"{side}.final_norm of another kind than the blocks' norm"
    if block.feedforward.experts is not None:
        yield f"{side}.block.feedforward.experts (mixture of experts)"
    own = block.self_attention
    yield from _in_attention(own, f"{side}.block.self_attention")
    if not _sees_usually(own.mask, causal=side == "decoder"):
        yield f"{side}.block.self_attention.mask = {own.mask.kind}"
    cross = block.cross_attention
    if cross is not None:
        place = f"{side}.block.cross_attention"
        yield from _in_attention(cross, place)
        for name in ("num_heads", "num_kv_heads", "head_width"):
            if getattr(cross, name) != getattr(own, name):
                yield f"{place}.{name} that differs from that of self_attention"
        if not isinstance(cross.mask, EverythingSpec):
            yield f"{place}.mask = {cross.mask.kind}"
        if cross.rotary is not None or cross.position_bias is not None:
            yield f"{place} with positions"


def _in_positions(
    spec: TranslatorSpec | CausalLMSpec, stack: StackSpec, side: str
) -> Iterator[str]:
    """It has one kind of positions at a time; the encoder none that penalises distance."""
    attention = stack.block.self_attention
    bias = attention.position_bias
    ways = {
        "embedding.positions": spec.embedding.positions.kind != "none",
        "rotary": attention.rotary is not None,
        "position_bias": bias is not None,
        "shared_position_bias": stack.shared_position_bias is not None,
    }
    used = [name for name, is_used in ways.items() if is_used]
    if len(used) > 1:
        yield f"{side}: {' with '.join(used)}"
    shared = stack.shared_position_bias
    if shared is not None and shared.kind != "t5":
        yield f"{side}.shared_position_bias = {shared.kind}"
    if isinstance(bias, AlibiSpec) and isinstance(spec, TranslatorSpec):
        yield f"{side}.block.self_attention.position_bias = alibi in a translator"
    if isinstance(bias, T5BiasSpec):
        yield f"{side}.block.self_attention.position_bias = t5 that layers do not share"


def _in_attention(attention: AttentionSpec, place: str) -> Iterator[str]:
    if attention.softcap is not None:
        yield f"{place}.softcap"
    rotary = attention.rotary
    if rotary is None:
        return
    if rotary.scaling not in ("none", "linear"):
        yield f"{place}.rotary.scaling = {rotary.scaling}"
    if rotary.temperature not in (None, 1.0):
        yield f"{place}.rotary.temperature"


def _sees_usually(mask: MaskSpec, *, causal: bool) -> bool:
    """Whether a decoder sees what came before, an encoder everything; texts are never packed."""
    if isinstance(mask, AllOfSpec):
        parts = [part for part in mask.parts if not isinstance(part, SegmentSpec)]
        return len(parts) == 1 and _sees_usually(parts[0], causal=causal)
    return isinstance(mask, CausalSpec if causal else EverythingSpec)
