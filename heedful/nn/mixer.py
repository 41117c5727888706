"""The protocol of mixers, the parts of a block through which tokens exchange information.

A mixer is attention of any mask, linear attention, a recurrent cell, a convolution. Over a whole
sequence it is called as a function. Token by token it carries a state, a value that only the mixer
knows the inside of: keys and values, a vector, a matrix for each head. A cross mixer reads an
encoder's output, from which its state is made once.

Shapes: B sentences, W beams of each, L length, S length of the memory, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from torch import Tensor

from heedful.nn.capture import Capture
from heedful.nn.positions import Positions

if TYPE_CHECKING:
    from heedful.nn.attention.relative_positions import Bias

MakeCache = Callable[[Tensor, Tensor], "KeyValueCache"]
"""Makes an empty cache for keys and values [B, K, 0, E] like those it is called with."""


@dataclass(frozen=True)
class Context:
    """The positions of one pass, shared by all blocks of a stack, and what it captures.

    Args:
        positions: of the input, for mixers of the input itself.
        memory_positions: of the input's queries and the memory's keys, for cross mixers.
        biases: position biases that all blocks share.
        capture: tensors to keep of the pass.
        address: the part of the model that runs, `decoder.3.self`, where something is captured.
        embedding: the input of the stack, as x: embedded tokens.
    """

    positions: Positions
    memory_positions: Positions | None = None
    biases: Sequence[Bias] = ()
    capture: Capture | None = None
    address: str = ""
    embedding: Tensor | None = None

    def at(self, name: str) -> Context:
        """Return the context of a part by its name inside this one."""
        if self.capture is None:  # nobody asks for addresses; one context serves every block
            return self
        return replace(self, address=f"{self.address}.{name}" if self.address else name)

    def offer(self, name: str, value: Tensor) -> None:
        """Give a tensor to the capture, if it wants what is at `{address}.{name}`."""
        if self.wants(name):
            self.keep(name, value)

    def wants(self, name: str) -> bool:
        """Return whether the capture wants what is at `{address}.{name}`."""
        return self.capture is not None and self.capture.wants(f"{self.address}.{name}")

    def keep(self, name: str, value: Tensor) -> None:
        """Give the capture a tensor that it wants."""
        assert self.capture is not None
        self.capture.keep(f"{self.address}.{name}", value)


@dataclass(frozen=True)
class Memory:
    """An encoder's output.

    Args:
        states: [B, S, D].
        positions: [B, S] int64; −1 is padding.
        embedding: [B, S, D], the encoder's input, with its padding; None where there is none.
        segments: [B, S] int64, the sequence of each token where a row packs several.
    """

    states: Tensor
    positions: Tensor
    embedding: Tensor | None = None
    segments: Tensor | None = None


@dataclass(frozen=True)
class Reordering:
    """A choice of beams and sentences, after which decoding goes on.

    Args:
        rows: [B', W'] int64; entry `sentence · W + beam` takes the place it stands at. All entries
            of a row are beams of one sentence.
        sentences: [B'] int64, the sentence of each row; None if they are all, in their order.
        slots: [B', S'] int64, the slots of the rows that beams share which are still somebody's
            past; None if all stay.
    """

    rows: Tensor
    sentences: Tensor | None = None
    slots: Tensor | None = None


class MixerState(Protocol):
    """Everything a mixer remembers of the tokens so far: a value, never changed in place."""

    def reorder(self, choice: Reordering) -> Self:
        """Return the state of the chosen beams and sentences."""


class Mixer(Protocol):
    """A part that lets the tokens of a sequence exchange information."""

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        """Mix a whole sequence, x [B, L, D] to the same shape."""

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> MixerState:
        """Return the state before the first token.

        Args:
            rows: B.
            like: a tensor of the type and on the device of the state.
            make_cache: kind of cache, for mixers that keep keys and values; None for one whose
                rows all beams of a sentence share.
        """

    def step(self, x: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """Mix more tokens.

        Args:
            x: [B, W, D], a token of each beam; [B, n, D], n tokens of the only beam.
            state: from `initial_state`, `step` or `reorder`.
            context: positions of these tokens and of all that attention may look back at.

        Returns:
            As x, and the state after these tokens.
        """


class CrossMixer(Protocol):
    """A part that lets tokens read a memory."""

    def read(self, memory: Memory) -> MixerState:
        """Return what the part keeps of a memory; made once, used at every step."""

    def step(self, x: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """Read the memory with x [B, L, D]: all beams of a sentence may stand side by side in L."""


class KeyValueCache(Protocol):
    """The protocol of a cache of keys and values."""

    @property
    def keys(self) -> Tensor:
        """[B, K, S, E]."""

    @property
    def values(self) -> Tensor:
        """[B, K, S, Ev]."""

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """Return the cache with more tokens, and the positions of all of them."""

    def reorder(self, choice: Reordering) -> Self:
        """Return the cache of the chosen beams."""
