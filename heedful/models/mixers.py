"""The mixers of a stack's layers, and options that contradict them.

A mixer lets tokens exchange information (`heedful.nn.mixer`); its spec says how it follows from a
shape. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from heedful.config import ADDED_POSITIONS, open_class
from heedful.errors import ConfigError
from heedful.nn.mixer_spec import ChannelMixSpec
from heedful.nn.spec import PARTS, AttentionSpec, PartSpec

if TYPE_CHECKING:
    from heedful.models.shape import TranslatorShape
    from heedful.models.stack_spec import StackSpec


def mixer_spec(shape: TranslatorShape, name: str, causal: bool) -> PartSpec:
    """Return the mixer of a name, as it follows from the options.

    Args:
        shape: options of the architecture.
        name: kind of the mixer, the package's own or a registered one.
        causal: restriction of every token to those before it.

    Raises:
        ConfigError: when options contradict the mixer.
    """
    spec = open_class("mixer", name, PARTS)
    if spec.is_one_way and not causal:
        raise ConfigError(
            f"{name} reads in one direction, and an encoder's tokens are to know what follows them",
            where="model.encoder_mixer",
            remedy="Use attention or linear_attention",
        )
    mixer: PartSpec = spec.of_shape(shape, causal)  # type: ignore[assignment]
    return mixer


def layer_mixers(
    shape: TranslatorShape, name: str, *, num_layers: int, causal: bool
) -> list[PartSpec]:
    """Return the mixers of a stack's pattern.

    Args:
        shape: options of the architecture.
        name: kind of the mixer.
        num_layers: number of layers of the stack.
        causal: restriction of every token to those before it.

    Returns:
        One mixer, or `shape.attention_every` of which the last is attention.

    Raises:
        ConfigError: when the stack has fewer layers than that.
    """
    mixer, every = mixer_spec(shape, name, causal), shape.attention_every
    if every is None or name == "attention":
        return [mixer]
    if every > num_layers:
        raise ConfigError(
            f"Of {num_layers} layers none would have attention, which is in every {every}th",
            where="model.attention_every",
            remedy=f"Set it to {num_layers} or less, or leave it out",
        )
    return [mixer] * (every - 1) + [AttentionSpec.of_shape(shape, causal)]


def channel_mix(shape: TranslatorShape) -> ChannelMixSpec | None:
    """Return the network of RWKV, which also sees the previous token; None without a network.

    Args:
        shape: options of the architecture.

    Raises:
        ConfigError: when there are to be experts.
    """
    if not shape.feedforward:
        return None
    if shape.num_experts is not None:
        raise ConfigError(
            "Experts are networks of each token alone, which channel_mix is not",
            where="model.num_experts",
            remedy="Leave it out, or set model.network to feedforward",
        )
    return ChannelMixSpec(width=shape.feedforward)


def refuse_idle_options(shape: TranslatorShape, stacks: Iterable[StackSpec]) -> None:
    """Refuse options of self-attention for a model that has none.

    Args:
        shape: options of the architecture.
        stacks: stacks of the model by name.

    Raises:
        ConfigError: when positions or a mask would change nothing.
    """
    stacks = list(stacks)
    if any(stack.has_self_attention for stack in stacks):
        return
    # An option without effect is refused: comparing its values would compare equal models.
    names = ", ".join(sorted({part.kind for stack in stacks for part in stack.mixers()}))
    for option in ("window", "mask", "global_tokens", "relative_values"):
        if getattr(shape, option) is not None:
            raise ConfigError(
                f"{option} is of attention, and this model has {names} only",
                where=f"model.{option}",
                remedy="Leave it out, or set model.attention_every",
            )
    if shape.positions not in ADDED_POSITIONS:
        raise ConfigError(
            f"Positions of the kind {shape.positions} change the scores of attention, and this "
            f"model has {names} only",
            where="model.positions",
            remedy="Use sinusoidal, learned or none, or set model.attention_every",
        )


def with_memory(shape: TranslatorShape) -> TranslatorShape:
    """Let each token see as many earlier tokens as a memory holds, wherever segments begin.

    Args:
        shape: the options of a language model.

    Raises:
        ConfigError: when other options contradict a memory.
    """
    memory = shape.memory
    if memory is None:
        return shape
    # Tokens of two segments would have the same positions (Dai 2019, section 3.3).
    if shape.positions in ADDED_POSITIONS and shape.positions != "none":
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
    # A token sees itself and as many before it as the memory has. Otherwise a token at the end of a
    # segment would see more than one at its beginning, and states would depend on where segments
    # begin.
    return shape.model_copy(update={"window": memory + 1})


def refuse_memory(shape: TranslatorShape, reads: str) -> None:
    """Refuse a memory for a model without segments that follow each other.

    Args:
        shape: options of the architecture.
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
