"""The protocol of mixers, the parts of a block that mix tokens, and the modules of their specs.

A mixer is, for instance, attention of any mask, linear attention, a recurrent cell or a
convolution. Over a whole sequence it is called as a function. Token by token it carries a state,
which is opaque to its callers: keys and values, a vector, a matrix for each head. A cross mixer
attends to an encoder's output, from which its state is made once.

Shapes: B sentences, W beams of each, L length, S length of the memory, K key/value heads, E and Ev
width of a key head and of a value head, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from pydantic import ValidationError
from torch import Tensor, nn

from heedful.config import validation_error
from heedful.errors import ConfigError
from heedful.nn.mixer_spec import CommonPartSpec
from heedful.nn.positions import NOTHING_HERE, Positions
from heedful.nn.spec import AttentionSpec, BiasSpec, PartSpec

if TYPE_CHECKING:
    from heedful.nn.attention.relative_positions import Bias
    from heedful.nn.capture import Capture

MakeCache = Callable[[Tensor, Tensor], "KeyValueCache"]
"""A function that makes an empty cache for keys and values like its arguments [B, K, 0, E]."""


@dataclass(frozen=True)
class Context:
    """The positions and the capture of one pass, shared by all blocks of a stack.

    Args:
        positions: positions of the input, for mixers of the input itself.
        memory_positions: positions of the input as queries and of the memory as keys, for cross
            mixers.
        biases: position biases that all blocks share.
        capture: capture of the pass; None if no tensor is wanted.
        address: address of the part that runs, such as `decoder.3.self`; empty without a capture.
        embedding: embedded tokens, the input of the stack; as x.
    """

    positions: Positions
    memory_positions: Positions | None = None
    biases: Sequence[Bias] = ()
    capture: Capture | None = None
    address: str = ""
    embedding: Tensor | None = None

    @classmethod
    def whole(cls, x: Tensor, real: Tensor | None = None) -> Context:
        """Return the context of whole sequences, counted from 0, for parts in another model.

        Args:
            x: [B, L, D].
            real: [B, L] bool, false at padding; no padding if None.
        """
        if real is None:
            return cls(Positions.counting(x.shape[0], x.shape[1], x.device))
        places = real.long().cumsum(-1) - 1
        return cls(Positions.of_self(places.masked_fill(~real.bool(), NOTHING_HERE)))

    def at(self, name: str) -> Context:
        """Return the context of a part by its name inside this one."""
        if self.capture is None:  # without addresses one context serves every block
            return self
        return replace(self, address=f"{self.address}.{name}" if self.address else name)

    def offer(self, name: str, value: Tensor) -> None:
        """Keep a tensor at `{address}.{name}`, if the capture wants it."""
        if self.wants(name):
            self.keep(name, value)

    def wants(self, name: str) -> bool:
        """Return whether the capture wants the tensor at `{address}.{name}`."""
        return self.capture is not None and self.capture.wants(f"{self.address}.{name}")

    def keep(self, name: str, value: Tensor) -> None:
        """Keep a tensor that the capture wants at `{address}.{name}`."""
        # Callers ask `wants` first, so that tensors that nobody wants are never computed.
        assert self.capture is not None
        self.capture.keep(f"{self.address}.{name}", value)


@dataclass(frozen=True)
class Memory:
    """An encoder's output.

    Args:
        states: [B, S, D].
        positions: [B, S] int64; −1 is padding.
        embedding: [B, S, D], input of the encoder, which convolutional decoders add to the values
            (Gehring 2017, section 3.3); None for other models.
        segments: [B, S] int64, the sequence of each token where a row packs several.
    """

    states: Tensor
    positions: Tensor
    embedding: Tensor | None = None
    segments: Tensor | None = None


@dataclass(frozen=True)
class Reordering:
    """A choice of beams and sentences with which decoding continues.

    Args:
        rows: [B', W'] int64, the chosen beam of each new one as `sentence · W + beam`. All entries
            of a row are beams of one sentence.
        sentences: [B'] int64, the sentence of each row; None if all sentences stay in order.
        slots: [B', S'] int64, the cache slots that some beam still attends to, of rows that beams
            share; None if all stay.
    """

    # One index for sentence and beam: a state flattened to [B · W, …] is reordered at once.
    rows: Tensor
    sentences: Tensor | None = None
    slots: Tensor | None = None


@dataclass(frozen=True)
class ScanState:
    """The state of a mixer that keeps tensors of a fixed size for each beam.

    Args:
        tensors: [B, W, ...] each.
    """

    tensors: tuple[Tensor, ...]

    def reorder(self, choice: Reordering) -> ScanState:
        """Return the state of the chosen beams."""
        # `rows` alone: sentences that were dropped have no beam in it.
        return ScanState(tuple(each.flatten(0, 1)[choice.rows] for each in self.tensors))


class MixerState(Protocol):
    """The state of a mixer after the tokens so far: a value, never changed in place."""

    def reorder(self, choice: Reordering) -> Self:
        """Return the state of the chosen beams and sentences."""


class Mixer(Protocol):
    """A part that lets the tokens of a sequence exchange information."""

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        """Mix the tokens of whole sequences x [B, L, D] into the same shape."""

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> MixerState:
        """Return the state before the first token.

        Args:
            rows: number of sentences B.
            like: tensor of the dtype and the device that the state is to have.
            make_cache: maker of the cache, for mixers that keep keys and values; None for a cache
                whose rows all beams of a sentence share.
        """

    def step(self, x: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """Mix more tokens.

        Args:
            x: [B, W, D], one token of each beam; or [B, n, D], n tokens of the only beam.
            state: state from `initial_state`, `step` or `reorder`.
            context: positions of these tokens and of all tokens that attention may see.

        Returns:
            The output in the shape of x, and the state after these tokens.
        """


class CrossMixer(Protocol):
    """A part that lets tokens attend to a memory."""

    def read(self, memory: Memory) -> MixerState:
        """Project a memory once for all steps, for instance to keys and values."""

    def step(self, x: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """Attend from x [B, L, D] to the memory; L may be the beams of a sentence side by side."""


# Its attributes are properties, so that frozen caches and caches that compute their keys both fit.
class KeyValueCache(Protocol):
    """The protocol of a cache of keys and values."""

    @property
    def keys(self) -> Tensor:
        """Keys [B, K, S, E]."""

    @property
    def values(self) -> Tensor:
        """Values [B, K, S, Ev]."""

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """Return the cache with more tokens, and the positions of all of them."""

    def reorder(self, choice: Reordering) -> Self:
        """Return the cache of the chosen beams."""


SpecT = TypeVar("SpecT", bound=CommonPartSpec)


def spec_of(
    kind: type[SpecT], width: int, spec: SpecT | None, settings: Mapping[str, Any]
) -> SpecT:
    """Return a part's spec, or make it of settings by name, as people write them.

    Args:
        kind: class of the spec.
        width: model width D.
        spec: whole spec; None where there are settings.
        settings: fields of the spec; None for one that is not set.

    Raises:
        ConfigError: when a setting is unknown, wrong or missing, or does not fit the width.
    """
    values = {name: value for name, value in settings.items() if value is not None}
    if spec is not None:
        if values:
            raise ConfigError("A part takes a spec or settings, not both", where=", ".join(values))
        return spec
    try:
        made = kind(**values)  # a mask or another spec stands in it as it is
        made.check_width(width)
    except ValidationError as error:
        raise validation_error(kind, error, None) from None
    except ValueError as error:
        raise ConfigError(str(error), where=f"width = {width}") from None
    return made


def build_part(width: int, spec: PartSpec) -> nn.Module:
    """Build the module that a spec names; a translator of attention alone imports no other mixer.

    Args:
        width: model width D.
        spec: spec of the part.
    """
    chosen = (module for option, module in spec.module_with if getattr(spec, option))
    part: nn.Module = resolve_name(next(chosen, spec.module))(width, spec)
    return part


def build_bias(spec: BiasSpec, attention: AttentionSpec, width: int) -> Bias:
    """Build the bias that a spec describes.

    Args:
        spec: spec of the bias.
        attention: spec of the attention whose scores it is added to.
        width: model width D.
    """
    bias: Bias = resolve_name(spec.module).of_spec(spec, attention, width)
    return bias
