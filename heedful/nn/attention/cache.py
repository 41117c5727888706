"""Caches of the keys and values of earlier tokens, with their positions, as immutable values.

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
    """Keys and values of a memory, projected once by one attention module.

    Args:
        keys: [B, K, Lk, E]; [B, Lk, A] for a score function.
        values: [B, K, Lk, Ev]; [B, Lk, D] for a score function.
    """

    keys: Tensor
    values: Tensor

    def reorder(self, choice: Reordering) -> KeyValues:
        """Return the keys and values of the chosen sentences, whose beams share them."""
        sentences = choice.sentences
        if sentences is None:
            return self
        return KeyValues(
            self.keys.index_select(0, sentences), self.values.index_select(0, sentences)
        )


@dataclass(frozen=True, eq=False)
class SegmentInputs:
    """The inputs of a self-attention at the tokens before a segment (Dai 2019).

    Their keys and values are projected again for the segment, so that these projections get
    gradients; the layers below get none.

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
        """Return the cache with more tokens.

        Args:
            keys: [B, K, n, E].
            values: [B, K, n, Ev].
            positions: [B, n] int64; −1 marks padding, which is never seen.

        Raises:
            ModelError: when the tokens do not fit.
        """

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """Return the cache with the tokens of a self-attention, and the positions of all of them.

        Args:
            keys: [B, K, n, E].
            values: [B, K, n, Ev].
            positions: positions of these tokens.

        Returns:
            The cache, and the positions of these queries and of all its keys.

        Raises:
            ModelError: when the tokens do not fit.
        """
        grown = self.append(keys, values, positions.query)
        return grown, Positions(positions.query, grown.positions)

    @abstractmethod
    def trim(self, length: int) -> Self:
        """Return the cache without the tokens from position `length` on."""

    def reorder(self, choice: Reordering) -> Self:
        """Return the cache of the chosen beams, each of which has rows of its own."""
        # B and W are one axis here: every beam has a row of keys and values of its own.
        rows = choice.rows.reshape(-1)
        return replace(
            self,
            keys=self.keys.index_select(0, rows),
            values=self.values.index_select(0, rows),
            positions=self.positions.index_select(0, rows),
        )

    def _forget(self, length: int) -> Tensor:
        # Only positions are cleared: a key at −1 is never seen, so its values may stay.
        return self.positions.masked_fill(self.positions >= length, NOTHING_HERE)


@dataclass(frozen=True, eq=False)
class StaticCache(Cache):
    """A cache of fixed capacity: shapes never change, and without gradients it is written in place.

    An earlier value stays valid after `append`, as its own positions do not show the new slots.
    Of several values made by appending to the same one, only the last is valid.

    Args:
        used: slots filled so far, padding among them.
    """

    used: int = 0

    @classmethod
    def empty(cls, like_keys: Tensor, like_values: Tensor, capacity: int) -> Self:
        """Make a cache of no tokens for keys [B, K, n, E] and values [B, K, n, Ev] like these."""
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
            # Positions are copied, unlike keys and values, so that the earlier state stays valid.
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
    positions. Padding overwrites nothing: it goes to an extra slot that is never visible.
    Exact for masks that show no more than the last `window` positions. Without gradients it is
    written in place, which invalidates the earlier value.

    Args:
        window: number of positions up to its own that a query may see.
    """

    window: int = 1

    @classmethod
    def empty(cls, like_keys: Tensor, like_values: Tensor, capacity: int, window: int) -> Self:
        """Make a cache of no tokens for keys [B, K, n, E] and values [B, K, n, Ev] like these.

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
        """Largest number of tokens that the cache holds."""
        # One slot more takes the padding.
        return self.positions.shape[1] - 1

    def append(self, keys: Tensor, values: Tensor, positions: Tensor) -> Self:
        chunk = keys.shape[2]
        # The chunk is written before it is attended to, and its first query still needs the window
        # − 1 keys before it.
        if self.window + chunk - 1 > self.capacity:
            raise ModelError(
                f"A chunk of {chunk} tokens would overwrite keys that its first query still sees: "
                f"the ring has {self.capacity} slots for a window of {self.window}",
                remedy=f"Append at most {self.capacity - self.window + 1} tokens at a time, "
                f"or use a capacity of {self.window + chunk - 1}",
            )
        # The last slot takes the padding.
        slots = torch.where(positions >= 0, positions % self.capacity, self.capacity)
        stored = self.positions.scatter(1, slots, positions)
        return replace(
            self,
            keys=_scatter(self.keys, slots, keys),
            values=_scatter(self.values, slots, values),
            positions=stored,
        )

    def trim(self, length: int) -> Self:
        """Return the cache without the tokens from position `length` on.

        Raises:
            ModelError: when keys that the next query must see have been overwritten.
        """
        newest = self.positions.max(dim=1).values
        # Position p was overwritten by p + capacity. The query at `length` sees back to
        # length − window + 1, so nothing older than that may be missing.
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
    """Return the number of slots up to the last one that any row uses."""
    used = (positions >= 0).any(0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0


def _write(stored: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """Write `new` [B, K, n, E] to the slots [n]."""
    if torch.is_grad_enabled():  # autograd may need the old content
        return stored.index_copy(2, slots, new)
    return stored.index_copy_(2, slots, new)


def _scatter(stored: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """Write `new` [B, K, n, E] to the slots [B, n] of each row."""
    index = slots[:, None, :, None].expand_as(new)
    # Out of place with gradients, for the same reason as in `_write`.
    if torch.is_grad_enabled():
        return stored.scatter(2, index, new)
    return stored.scatter_(2, index, new)


@dataclass(frozen=True)
class GlobalQueries:
    """Queries with projections of their own, whose outputs replace those of the plain queries.

    Args:
        q: [B, H, G, E].
        memory: keys and values that these queries attend to.
        positions: positions of these queries and all keys; −1 where a row has fewer than G.
        rows: [B, G] int64, distinct indices of these queries among all Lq.
    """

    q: Tensor
    memory: KeyValues
    positions: Positions
    rows: Tensor

    def put(self, whole: Tensor, part: Tensor) -> Tensor:
        """Return `whole` [B, H, Lq, …] with `part` [B, H, G, …] at the indices of these queries."""
        index = self.rows[:, None, :, None].expand_as(part)
        real = (self.positions.query >= 0)[:, None, :, None]
        # Rows with fewer than G queries write what they hold already: padding changes nothing.
        return whole.scatter(2, index, torch.where(real, part, whole.gather(2, index)))
