"""Keys and values of beams that share a row: choosing beams anew copies nothing.

A beam search keeps several continuations of a sentence and chooses at every step which of them go
on. If each had rows of its own, every step would copy the keys and values of all layers. Here one
row holds all tokens that the continuations of a sentence have read, and a `Lineage`, one for all
layers, says which of them are the past of which continuation.

Shapes: B sentences, W continuations of each, S slots in use, K key/value heads, E width of a key
head, Ev width of a value head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from heedful.nn.positions import NOTHING_HERE, Positions

_ROOM = 32
"""Steps that a new store has room for; a store that is full is copied to one twice as large."""

_CROWDED = 64
"""Slots from which on it is worth looking for some that no continuation needs any more."""


@dataclass(frozen=True, eq=False)
class Lineage:
    """Which of a row's tokens are the past of which continuation.

    Args:
        positions: [B, S] int64; −1 where nothing stands.
        own: [B, W, S] bool; None while there is one continuation, whose past is the whole row.
        width: W.
        crowded: slots from which on unused ones are dropped.
    """

    positions: Tensor
    own: Tensor | None = None
    width: int = 1
    crowded: int = _CROWDED

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> Self:
        """No tokens in each of B rows."""
        return cls(torch.empty((rows, 0), dtype=torch.int64, device=device))

    def append(self, positions: Tensor) -> tuple[Self, Positions]:
        """One more token of each continuation, or several of a row's only one.

        Args:
            positions: [B, W] int64, or [B, n] while W is 1.

        Returns:
            The lineage with them, and the positions of these queries and of all keys.
        """
        keys = torch.cat([self.positions, positions], 1)
        own = self.own
        if own is not None:
            itself = torch.eye(self.width, dtype=torch.bool, device=own.device)
            own = torch.cat([own, itself.expand(own.shape[0], -1, -1)], 2)
        return replace(self, positions=keys, own=own), Positions(positions, keys, lineage=own)


class BeamCache:
    """Keys and values of one layer. A value: appending to the same one twice gives two sound ones.

    Args:
        store: where they stand, perhaps with those of later values after them; None for no tokens.
        used: S, how many of the store's slots are this value's.
    """

    def __init__(self, store: _Store | None = None, used: int = 0) -> None:
        self._store = store
        self.used = used

    @property
    def keys(self) -> Tensor:
        """[B, K, S, E]."""
        assert self._store is not None, "nothing was appended yet"
        return self._store.keys[:, :, : self.used]

    @property
    def values(self) -> Tensor:
        """[B, K, S, Ev]."""
        assert self._store is not None, "nothing was appended yet"
        return self._store.values[:, :, : self.used]

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """The cache with more tokens, and the positions, which are of all keys already.

        Args:
            keys: [B, K, n, E].
            values: [B, K, n, Ev].
            positions: from `Lineage.append`.
        """
        stop = self.used + keys.shape[2]
        assert positions.key.shape[1] == stop, (positions.key.shape, stop)
        if self._store is None:
            store = _Store.around(keys, values)
        else:
            store = self._store.written(self.used, keys, values)
        return type(self)(store, stop), positions

    def select(self, sentences: Tensor) -> BeamCache:
        """The rows of some sentences ([B'] int64)."""
        if self._store is None:
            return self
        keys, values = (t.index_select(0, sentences) for t in (self.keys, self.values))
        return BeamCache(_Store(keys, values, self.used), self.used)

    def pick(self, slots: Tensor) -> BeamCache:
        """Some slots of each row ([B, S'] int64)."""
        index = slots[:, None, :, None]
        keys, values = (
            t.gather(2, index.expand(-1, t.shape[1], -1, t.shape[3]))
            for t in (self.keys, self.values)
        )
        return BeamCache(_Store(keys, values, slots.shape[1]), slots.shape[1])


def choose_beams(
    caches: Sequence[BeamCache], lineage: Lineage, rows: Tensor
) -> tuple[tuple[BeamCache, ...], Lineage]:
    """Choose, repeat or drop continuations and sentences.

    Args:
        caches: of all layers.
        lineage: of their tokens.
        rows: [B', W'] int64; entry `sentence · W + continuation` takes the place it stands at.
    """
    positions = lineage.positions
    sentences = chosen_sentences(rows, lineage.width, positions.shape[0])
    if sentences is not None:
        caches = [cache.select(sentences) for cache in caches]
        positions = positions.index_select(0, sentences)
    own = lineage.own
    if own is not None:
        own = own.flatten(0, 1)[rows]
    elif rows.shape[1] > 1:
        own = torch.ones((*rows.shape, positions.shape[1]), dtype=torch.bool, device=rows.device)
    lineage = Lineage(positions, own, rows.shape[1], lineage.crowded)
    if own is None or own.shape[2] < lineage.crowded:
        return tuple(caches), lineage
    return _tidied(caches, lineage, own)


def chosen_sentences(rows: Tensor, width: int, count: int) -> Tensor | None:
    """Whose continuations rows are.

    Args:
        rows: [B', W'] int64, sentence · width + continuation.
        width: continuations of a sentence.
        count: B.

    Returns:
        [B'] int64; None if they are all sentences in their order.
    """
    sentences = rows[:, 0] // width
    same = torch.equal(sentences, torch.arange(count, device=rows.device))
    return None if same else sentences


def _tidied(
    caches: Sequence[BeamCache], lineage: Lineage, own: Tensor
) -> tuple[tuple[BeamCache, ...], Lineage]:
    """Without the slots that are no continuation's past, if they are half of all or more."""
    needed = own.any(1)
    most = int(needed.sum(1).max())
    crowded = max(_CROWDED, 2 * most)
    if 2 * most > own.shape[2]:
        return tuple(caches), replace(lineage, crowded=2 * crowded)
    slots = needed.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    kept = own.gather(2, slots[:, None].expand(-1, own.shape[1], -1))
    positions = lineage.positions.gather(1, slots)
    positions = positions.masked_fill(~needed.gather(1, slots), NOTHING_HERE)
    tidy = Lineage(positions, kept, lineage.width, crowded)
    return tuple(cache.pick(slots) for cache in caches), tidy


class _Store:
    """Slots that caches share: the value that filled it last may fill it further, others copy it.

    Args:
        keys: [B, K, capacity, E].
        values: [B, K, capacity, Ev].
        filled: slots in use by the longest cache.
    """

    def __init__(self, keys: Tensor, values: Tensor, filled: int) -> None:
        self.keys = keys
        self.values = values
        self.filled = filled

    @classmethod
    def around(cls, keys: Tensor, values: Tensor) -> _Store:
        """Just these tokens."""
        return cls(keys, values, keys.shape[2])

    def written(self, used: int, keys: Tensor, values: Tensor) -> _Store:
        """A store whose first `used` slots are this one's and are followed by more tokens."""
        stop = used + keys.shape[2]
        held = self.keys[:, :, :used], self.values[:, :, :used]
        if torch.is_grad_enabled():  # autograd wants the old contents
            return _Store(torch.cat([held[0], keys], 2), torch.cat([held[1], values], 2), stop)
        store = self
        taken = self.filled != used or stop > self.keys.shape[2]
        if taken or self.keys.is_inference() != torch.is_inference_mode_enabled():
            room = max(2 * used, _ROOM * keys.shape[2])
            store = _Store(_roomy(held[0], keys, room), _roomy(held[1], values, room), 0)
        store.keys[:, :, used:stop] = keys
        store.values[:, :, used:stop] = values
        store.filled = stop
        return store


def _roomy(held: Tensor, new: Tensor, room: int) -> Tensor:
    """A tensor [B, K, room, E] that begins with what is held, and is unset after it."""
    batch, heads, used, width = held.shape
    larger = new.new_empty((batch, heads, max(room, used + new.shape[2]), width))
    larger[:, :, :used] = held
    return larger
