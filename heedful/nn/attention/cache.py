"""Keys and values of tokens already seen, with their positions: caches are values.

`append`, `reorder` and `trim` return a new cache. Because positions are kept with the keys (−1
marks an unused slot), masks and biases need no special case for any kind of cache.
Shapes: B batch, K key/value heads, S slots, E width of a key head, Ev width of a value head,
D model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.nn.mixer import Reordering
from heedful.nn.positions import NOTHING_HERE, Positions


@dataclass(frozen=True)
class KeyValues:
    """Keys and values [B, K, Lk, E] of a memory, projected once by one attention module."""

    keys: Tensor
    values: Tensor

    def reorder(self, choice: Reordering) -> KeyValues:
        """Return those of the chosen sentences; beams of a sentence share them."""
        sentences = choice.sentences
        if sentences is None:
            return self
        return KeyValues(
            self.keys.index_select(0, sentences), self.values.index_select(0, sentences)
        )


@dataclass(frozen=True, eq=False)
class SegmentInputs:
    """The tokens before a segment of a text, as a self-attention read them (Dai 2019).

    Their keys and values are made anew for the segment, so that the maps to them learn; what lies
    below them does not.

    Args:
        inputs: [B, M, D], without gradient.
    """

    inputs: Tensor


@dataclass(frozen=True, eq=False)
class Cache(ABC):
    """Keys, values and their positions, ready for `attend`: the base of all caches.

    Args:
        keys: [B, K, S, E].
        values: [B, K, S, Ev].
        positions: [B, S] int64; −1 marks an unused slot.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor

    @abstractmethod
    def append(self, keys: Tensor, values: Tensor, positions: Tensor) -> Self:
        """The cache with more tokens.

        Args:
            keys: [B, K, n, E].
            values: [B, K, n, Ev].
            positions: [B, n] int64; −1 marks padding, which is never seen.

        Raises:
            ModelError: when they do not fit.
        """

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """The cache with the tokens of a self-attention, and who then stands where.

        Args:
            keys: [B, K, n, E].
            values: [B, K, n, Ev].
            positions: of these tokens.

        Returns:
            The cache, and the positions of these queries and of all its keys.

        Raises:
            ModelError: when they do not fit.
        """
        grown = self.append(keys, values, positions.query)
        return grown, Positions(positions.query, grown.positions)

    @abstractmethod
    def trim(self, length: int) -> Self:
        """The cache without the tokens at position `length` and after it."""

    def reorder(self, choice: Reordering) -> Self:
        """Return the cache of the chosen beams, each of which has rows of its own."""
        rows = choice.rows.reshape(-1)
        return replace(
            self,
            keys=self.keys.index_select(0, rows),
            values=self.values.index_select(0, rows),
            positions=self.positions.index_select(0, rows),
        )

    def _forget(self, length: int) -> Tensor:
        return self.positions.masked_fill(self.positions >= length, NOTHING_HERE)


@dataclass(frozen=True, eq=False)
class GrowingCache(Cache):
    """A cache that grows by concatenation: as many slots as tokens appended."""

    @classmethod
    def empty(cls, like_keys: Tensor, like_values: Tensor) -> Self:
        """A cache of no tokens for keys [B, K, n, E] and values [B, K, n, Ev] like these."""
        positions = torch.empty(len(like_keys), 0, dtype=torch.int64, device=like_keys.device)
        return cls(like_keys[:, :, :0], like_values[:, :, :0], positions)

    def append(self, keys: Tensor, values: Tensor, positions: Tensor) -> Self:
        return replace(
            self,
            keys=torch.cat([self.keys, keys], dim=2),
            values=torch.cat([self.values, values], dim=2),
            positions=torch.cat([self.positions, positions], dim=1),
        )

    def trim(self, length: int) -> Self:
        positions = self._forget(length)
        used = _used_slots(positions)
        return replace(
            self,
            keys=self.keys[:, :, :used],
            values=self.values[:, :, :used],
            positions=positions[:, :used],
        )


@dataclass(frozen=True, eq=False)
class StaticCache(Cache):
    """A cache of fixed capacity: shapes never change, and without gradients it is written in place.

    An earlier value stays readable after `append`, as its own positions do not show the new slots;
    but of several values made by appending to the same one, only the last is sound.

    Args:
        used: slots filled so far, padding among them.
    """

    used: int = 0

    @classmethod
    def empty(cls, like_keys: Tensor, like_values: Tensor, capacity: int) -> Self:
        """A cache of no tokens for keys [B, K, n, E] and values [B, K, n, Ev] like these."""
        return cls(*_slots(like_keys, like_values, capacity))

    def append(self, keys: Tensor, values: Tensor, positions: Tensor) -> Self:
        stop = self.used + keys.shape[2]
        if stop > (capacity := self.positions.shape[1]):
            raise ModelError(
                f"{stop} tokens do not fit into a cache of {capacity}",
                remedy="Make the cache larger, or generate less",
            )
        slots = torch.arange(self.used, stop, device=keys.device)
        return replace(
            self,
            keys=_write(self.keys, slots, keys),
            values=_write(self.values, slots, values),
            positions=self.positions.index_copy(1, slots, positions),
            used=stop,
        )

    def trim(self, length: int) -> Self:
        positions = self._forget(length)
        return replace(self, positions=positions, used=_used_slots(positions))


@dataclass(frozen=True, eq=False)
class RingCache(Cache):
    """A cache of fixed capacity in which a new token takes the slot of an old one.

    A token's slot is its position modulo the capacity, so each row of a batch forgets by its own
    positions, and padding makes nothing forgotten: it goes to one more slot that is never visible.
    Exact for masks that show no more than the last `window` positions. Without gradients it is
    written in place, so that appending spoils the earlier value.

    Args:
        window: number of latest positions, the query's own among them, that a query may see.
    """

    window: int = 1

    @classmethod
    def empty(cls, like_keys: Tensor, like_values: Tensor, capacity: int, window: int) -> Self:
        """A cache of no tokens for keys [B, K, n, E] and values [B, K, n, Ev] like these.

        Raises:
            ModelError: when the capacity is smaller than the window.
        """
        if capacity < window:
            raise ModelError(
                f"A ring of {capacity} slots cannot hold a window of {window}",
                remedy="A capacity of window + chunk - 1 serves chunks of that many tokens",
            )
        return cls(*_slots(like_keys, like_values, capacity + 1), window=window)

    @property
    def capacity(self) -> int:
        """Number of tokens stored at most."""
        return self.positions.shape[1] - 1

    def append(self, keys: Tensor, values: Tensor, positions: Tensor) -> Self:
        chunk = keys.shape[2]
        if self.window + chunk - 1 > self.capacity:
            raise ModelError(
                f"A chunk of {chunk} tokens would overwrite keys that its first query still sees: "
                f"the ring has {self.capacity} slots for a window of {self.window}",
                remedy=f"Append at most {self.capacity - self.window + 1} tokens at a time, "
                f"or use a capacity of {self.window + chunk - 1}",
            )
        slots = torch.where(positions >= 0, positions % self.capacity, self.capacity)
        stored = self.positions.scatter(1, slots, positions)
        return replace(
            self,
            keys=_scatter(self.keys, slots, keys),
            values=_scatter(self.values, slots, values),
            positions=stored,
        )

    def trim(self, length: int) -> Self:
        """The cache without the tokens at position `length` and after it.

        Raises:
            ModelError: when keys that the next query must see have been overwritten.
        """
        newest = self.positions.max(dim=1).values
        oldest_held = newest - self.capacity + 1
        if bool(((oldest_held > 0) & (oldest_held > length - self.window + 1)).any()):
            raise ModelError(
                f"A ring of {self.capacity} slots cannot go back to position {length}: keys of its "
                "window have been overwritten",
                remedy="Use a larger capacity, or start again",
            )
        return replace(self, positions=self._forget(length))


def _slots(like_keys: Tensor, like_values: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, _, width = like_keys.shape
    positions = torch.full((batch, count), NOTHING_HERE, dtype=torch.int64, device=like_keys.device)
    # Zeros, not uninitialised memory: 0 · NaN would reach the output past any mask.
    return (
        like_keys.new_zeros(batch, heads, count, width),
        like_values.new_zeros(batch, heads, count, like_values.shape[-1]),
        positions,
    )


def _used_slots(positions: Tensor) -> int:
    """Slots up to the last one that any row uses."""
    used = (positions >= 0).any(0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0


def _write(stored: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """Put `new` [B, K, n, E] into the slots [n]."""
    if torch.is_grad_enabled():  # autograd may want the old contents
        return stored.index_copy(2, slots, new)
    return stored.index_copy_(2, slots, new)


def _scatter(stored: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """Put `new` [B, K, n, E] into the slots [B, n] of each row."""
    index = slots[:, None, :, None].expand_as(new)
    if torch.is_grad_enabled():
        return stored.scatter(2, index, new)
    return stored.scatter_(2, index, new)
