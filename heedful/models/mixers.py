"""The registry of mixers that a shape names: from its options to the parts of a stack's layers.

A mixer lets tokens exchange information (`heedful.nn.mixer`). A new one is a name in `MixerName`
and a function here. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from heedful.errors import ConfigError
from heedful.nn.mask_spec import AllOfSpec, CausalSpec, EverythingSpec, MaskSpec, WindowSpec
from heedful.nn.mask_text import parse_mask
from heedful.nn.mixer_spec import (
    AverageAttentionSpec,
    LinearAttentionSpec,
    LinformerSpec,
    MambaSpec,
    RWKVSpec,
    S4DSpec,
    SSRUSpec,
)
from heedful.nn.spec import (
    LAYER_BIASES,
    AttentionSpec,
    MixerName,
    PartSpec,
    RotarySpec,
)

if TYPE_CHECKING:
    from heedful.models.shape import TranslatorShape
    from heedful.models.stack_spec import StackSpec

MakeMixer = Callable[["TranslatorShape", bool], PartSpec]
"""Makes the spec of a mixer from the options, and from whether tokens see only those before."""


def attention_spec(shape: TranslatorShape) -> AttentionSpec:
    """Return attention with the heads of a shape, over everything."""
    return AttentionSpec(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_width=shape.head_width,
        scale=shape.attention_scale,
        bias=shape.bias,
        dropout=shape.attention_dropout,
    )


def self_attention_spec(shape: TranslatorShape, causal: bool) -> AttentionSpec:
    """Return attention over the input, with the mask and positions of a shape."""
    mask: MaskSpec = CausalSpec() if causal else EverythingSpec()
    if (own := _mask(shape)) is not None:
        mask = AllOfSpec(parts=(mask, own)) if causal else own
    bias = LAYER_BIASES.get(shape.positions)
    return attention_spec(shape).model_copy(
        update={
            "mask": mask,
            "rotary": _rotary(shape),
            "position_bias": bias() if bias else None,
            "relative_values": shape.relative_values,
            "global_tokens": shape.global_tokens,
        }
    )


def _mask(shape: TranslatorShape) -> MaskSpec | None:
    if shape.window is not None:
        return WindowSpec(size=shape.window)
    return None if shape.mask is None else parse_mask(shape.mask, where="model.mask")


def _linear_attention(shape: TranslatorShape, causal: bool) -> LinearAttentionSpec:
    kind = shape.features or "elu"
    # A text may have an end token.
    length = {"length": shape.max_length + 1} if kind == "cosine" else {}
    options = {"causal": causal, "features": {"kind": kind} | length}
    return LinearAttentionSpec.parse(_heads(shape) | options, where="model")


def _linformer(shape: TranslatorShape, causal: bool) -> LinformerSpec:
    if causal:
        raise ConfigError(
            "Every sum of Linformer is over the whole text, so it cannot hide later tokens from a "
            "model that writes",
            where="model.mixer",
            remedy="Use it as model.encoder_mixer; linear_attention is cheap and writes",
        )
    length = shape.max_length + 1  # a text may have an end token
    options = {"length": length, "rank": min(128, length)}
    return LinformerSpec.parse(_heads(shape) | options, where="model")


def _average_attention(shape: TranslatorShape, causal: bool) -> AverageAttentionSpec:
    _refuse_later_tokens("average_attention", causal)
    return AverageAttentionSpec()


def _ssru(shape: TranslatorShape, causal: bool) -> SSRUSpec:
    _refuse_later_tokens("ssru", causal)
    return SSRUSpec(bias=shape.bias)


def _heads(shape: TranslatorShape) -> dict[str, Any]:
    return {"num_heads": shape.num_heads, "head_width": shape.head_width, "bias": shape.bias}


def _s4d(shape: TranslatorShape, causal: bool) -> S4DSpec:
    _refuse_later_tokens("s4d", causal)
    return S4DSpec.parse({"bias": shape.bias} | _state_size(shape), where="model")


def _mamba(shape: TranslatorShape, causal: bool) -> MambaSpec:
    _refuse_later_tokens("mamba", causal)
    return MambaSpec.parse(_state_size(shape), where="model")


def _rwkv(shape: TranslatorShape, causal: bool) -> RWKVSpec:
    _refuse_later_tokens("rwkv", causal)
    return RWKVSpec()


def _refuse_later_tokens(name: MixerName, causal: bool) -> None:
    if not causal:
        raise ConfigError(
            f"{name} reads in one direction, and an encoder's tokens are to know what follows them",
            where="model.encoder_mixer",
            remedy="Use attention or linear_attention",
        )


def _state_size(shape: TranslatorShape) -> dict[str, Any]:
    return {} if shape.state_size is None else {"state_size": shape.state_size}


MIXERS: Mapping[MixerName, MakeMixer] = {
    "attention": self_attention_spec,
    "linear_attention": _linear_attention,
    "linformer": _linformer,
    "average_attention": _average_attention,
    "ssru": _ssru,
    "s4d": _s4d,
    "mamba": _mamba,
    "rwkv": _rwkv,
}
"""For each name the function that makes its spec; the spec's `kind` is the name."""


def layer_mixers(
    shape: TranslatorShape, name: MixerName, *, num_layers: int, causal: bool
) -> list[PartSpec]:
    """Return the mixers of a stack's pattern.

    Args:
        shape: the options.
        name: of the mixer.
        num_layers: of the stack.
        causal: whether tokens see only those before.

    Returns:
        One mixer, or `shape.attention_every` of which the last is attention.

    Raises:
        ConfigError: when the stack has fewer layers than that.
    """
    mixer, every = MIXERS[name](shape, causal), shape.attention_every
    if every is None or name == "attention":
        return [mixer]
    if every > num_layers:
        raise ConfigError(
            f"Of {num_layers} layers none would have attention, which is in every {every}th",
            where="model.attention_every",
            remedy=f"Set it to {num_layers} or less, or leave it out",
        )
    return [mixer] * (every - 1) + [self_attention_spec(shape, causal)]


def refuse_idle_options(shape: TranslatorShape, stacks: Iterable[StackSpec]) -> None:
    """Refuse options of self-attention for a model that has none.

    Args:
        shape: the options.
        stacks: of the model.

    Raises:
        ConfigError: when positions or a mask would change nothing.
    """
    stacks = list(stacks)
    if any(stack.has_self_attention for stack in stacks):
        return
    parts = [part for stack in stacks for block in stack.pattern for part in block.mixers()]
    names = ", ".join(sorted({part.kind for part in parts}))
    for option in ("window", "mask", "global_tokens", "relative_values"):
        if getattr(shape, option) is not None:
            raise ConfigError(
                f"{option} is of attention, and this model has {names} only",
                where=f"model.{option}",
                remedy="Leave it out, or set model.attention_every",
            )
    if shape.positions not in ("sinusoidal", "learned", "none"):
        raise ConfigError(
            f"Positions of the kind {shape.positions} change the scores of attention, and this "
            f"model has {names} only",
            where="model.positions",
            remedy="Use sinusoidal, learned or none, or set model.attention_every",
        )


def with_memory(shape: TranslatorShape) -> TranslatorShape:
    """Let each token see as many before it as a memory holds, in whichever segment they stand.

    Args:
        shape: the options of a language model.

    Raises:
        ConfigError: when other options contradict a memory.
    """
    memory = shape.memory
    if memory is None:
        return shape
    if shape.positions in ("sinusoidal", "learned"):
        raise ConfigError(
            f"Each segment reads a memory at other distances, and positions that are "
            f"{shape.positions} are part of the states in it",
            where="model.positions",
            remedy="Use transformer_xl (or rotary, alibi, kerple, t5, relative_keys, none)",
        )
    if shape.mixer != "attention":
        raise ConfigError(
            f"A memory is read as keys and values, which {shape.mixer} does not have",
            where="model.memory",
            remedy="Leave it out, or leave model.mixer out",
        )
    for option in ("window", "mask"):
        if getattr(shape, option) is not None:
            raise ConfigError(
                f"A memory of {memory} tokens is a window already: of them and the token itself",
                where=f"model.{option}",
                remedy="Leave it out",
            )
    return shape.model_copy(update={"window": memory + 1})


def refuse_memory(shape: TranslatorShape, reads: str) -> None:
    """Refuse a memory for a model without segments that follow each other.

    Args:
        shape: the options.
        reads: the way in which the model reads, as a sentence.

    Raises:
        ConfigError: when a memory was set.
    """
    if shape.memory is not None:
        raise ConfigError(
            f"{reads}, so nothing goes before it that could be remembered",
            where="model.memory",
            remedy="Leave it out; language models (task = causal_lm) have one",
        )


def rotary_options(shape: TranslatorShape) -> dict[str, Any]:
    """Return the options of rotary scaling that were set, as fields of `RotarySpec`."""
    names = {name: f"rotary_{name}" for name in ("scaling", "factor", "original_length")}
    is_set = {name: getattr(shape, option) for name, option in names.items()}
    defaults = {"scaling": "none", "factor": 1.0, "original_length": None}
    return {name: value for name, value in is_set.items() if value != defaults[name]}


def _rotary(shape: TranslatorShape) -> RotarySpec | None:
    if shape.positions != "rotary":
        return None
    scaling = rotary_options(shape)
    if not scaling:
        return RotarySpec()
    return RotarySpec.parse({"original_length": shape.max_length} | scaling)
