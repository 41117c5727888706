"""Keys and values of beams that share a row: choosing beams anew copies nothing.

A beam search keeps several continuations of a sentence and chooses at every step which of them go
on. If each had rows of its own, every step would copy the keys and values of all layers. Here one
row holds all tokens that the continuations of a sentence have read, and a `Lineage`, one for all
layers, says which of them are the past of which continuation.

Shapes: B sentences, W continuations of each, S slots in use, K key/value heads, E width of a key
head, Ev width of a value head.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from heedful.nn.mixer import Reordering
from heedful.nn.positions import NOTHING_HERE, Positions

_ROOM = 32
"""Steps that a new store has room for; a store that is full is copied to one twice as large."""

_COMPACT_FROM = 64
"""Slots from which on it is worth looking for some that no continuation needs any more."""


@dataclass(frozen=True, eq=False)
class Lineage:
    """The past of each continuation: which tokens of a shared row are its own.

    Args:
        positions: [B, S] int64; −1 where nothing stands.
        own: [B, W, S] bool; None while there is one continuation, whose past is the whole row.
        width: W.
        compact_from: slots from which on unused ones are dropped.
    """

    positions: Tensor
    own: Tensor | None = None
    width: int = 1
    compact_from: int = _COMPACT_FROM

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
            itself = _itself(self.width).to(own.device).expand(own.shape[0], -1, -1)
            own = torch.cat([own, itself], 2)
        return replace(self, positions=keys, own=own), Positions(positions, keys, lineage=own)


@functools.lru_cache(maxsize=16)
def _itself(width: int) -> Tensor:
    """[W, W] bool: of tokens that come together, each continuation's past has its own."""
    with torch.inference_mode(False):
        return torch.eye(width, dtype=torch.bool)


class _Part(NamedTuple):
    """Some rows of a store, and some slots of each, in the order in which they are wanted.

    Args:
        store: where they stand, perhaps with those of later values after them.
        used: how many of the store's slots are this value's.
        sentences: [B'] int64, the rows; all if None.
        slots: [B', S'] int64, the slots of each; those in use if None.
    """

    store: Store
    used: int
    sentences: Tensor | None = None
    slots: Tensor | None = None

    @property
    def whole(self) -> bool:
        """True where it is all that the store holds for this value."""
        return self.sentences is None and self.slots is None

    @property
    def rows(self) -> int:
        """B'."""
        return len(self.store.keys if self.sentences is None else self.sentences)

    @property
    def width(self) -> int:
        """S'."""
        return self.used if self.slots is None else self.slots.shape[1]

    def of(self, stored: Tensor) -> Tensor:
        """Return the chosen part of the store's keys or values, [B', K, S', E]."""
        if self.slots is None:
            stored = stored[:, :, : self.used]
            return stored if self.sentences is None else stored.index_select(0, self.sentences)
        rows, heads, capacity, width = stored.shape
        sentences = self.sentences
        if sentences is None:
            sentences = torch.arange(rows, device=stored.device)
        head = torch.arange(heads, device=stored.device)[:, None]
        places = ((sentences[:, None, None] * heads + head) * capacity) + self.slots[:, None]
        result = stored.reshape(-1, width).index_select(0, places.flatten())
        return result.view(len(sentences), heads, self.width, width)

    def put(self, stored: Tensor, place: Tensor) -> None:
        """Copy the chosen part of the store's keys or values, without a copy on the way."""
        if self.slots is None and self.sentences is not None:
            torch.index_select(stored[:, :, : self.used], 0, self.sentences, out=place)
        else:
            place.copy_(self.of(stored))


class BeamCache:
    """Keys and values of one layer. A value: appending to the same one twice gives two sound ones.

    A selection of rows or slots is copied only when more tokens are appended, with room for those
    that follow.

    Args:
        part: the rows and slots of a store; None for no tokens.
    """

    def __init__(self, part: _Part | None = None) -> None:
        self._part = part

    @property
    def used(self) -> int:
        """S, how many slots each row has."""
        return 0 if self._part is None else self._part.width

    @property
    def keys(self) -> Tensor:
        """[B, K, S, E]."""
        assert self._part is not None, "nothing was appended yet"
        return self._part.of(self._part.store.keys)

    @property
    def values(self) -> Tensor:
        """[B, K, S, Ev]."""
        assert self._part is not None, "nothing was appended yet"
        return self._part.of(self._part.store.values)

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """Append tokens; the positions, which are of all keys already, are returned as they are.

        Args:
            keys: [B, K, n, E].
            values: [B, K, n, Ev].
            positions: from `Lineage.append`.
        """
        used = self.used
        stop = used + keys.shape[2]
        assert positions.key.shape[1] == stop, (positions.key.shape, stop)
        if self._part is None:
            store = Store.around(keys, values)
        elif torch.is_grad_enabled():  # autograd wants the old contents
            store = Store(torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2))
        else:
            store = self._with_room(self._part, keys.shape[2])
            store.write(used, keys, values)
        return type(self)(_Part(store, stop)), positions

    def claim(self, shape: tuple[int, int, int, int], like: Tensor) -> tuple[Self, Store]:
        """Make room for more tokens, whose keys and values the caller writes where they belong.

        Args:
            shape: B, K, n, E of the keys of these tokens, and of their values.
            like: of the type they are to have, where the cache holds no tokens yet.

        Returns:
            The cache with them, and its store, in which they follow the tokens of this one.
        """
        used, (rows, heads, count, width) = self.used, shape
        if self._part is not None:
            store = self._with_room(self._part, count)
        else:
            room = (rows, heads, count + _ROOM, width)
            store = Store(like.new_empty(room), like.new_empty(room))
        store.filled = used + count
        return type(self)(_Part(store, store.filled)), store

    def reorder(self, choice: Reordering) -> BeamCache:
        """Return the cache of the chosen sentences, without the slots that were dropped."""
        cache = self if choice.sentences is None else self.select(choice.sentences)
        return cache if choice.slots is None else cache.pick(choice.slots)

    def select(self, sentences: Tensor) -> BeamCache:
        """Select the rows of some sentences ([B'] int64)."""
        part = self._part
        if part is None:
            return self
        if part.slots is not None:
            part = part._replace(slots=part.slots.index_select(0, sentences))
        if part.sentences is not None:
            sentences = part.sentences.index_select(0, sentences)
        return BeamCache(part._replace(sentences=sentences))

    def pick(self, slots: Tensor) -> BeamCache:
        """Pick some slots of each row ([B, S'] int64)."""
        assert self._part is not None
        if self._part.slots is not None:
            slots = self._part.slots.gather(1, slots)
        return BeamCache(self._part._replace(slots=slots))

    def _with_room(self, part: _Part, count: int) -> Store:
        """Return a store that begins with this part and may be written after it."""
        used = part.width
        if part.whole and part.store.may_be_written(used, count):
            return part.store
        room = max(2 * used, used + count, _ROOM * count)
        return Store(_roomy(part, part.store.keys, room), _roomy(part, part.store.values, room))


def choose_beams(lineage: Lineage, rows: Tensor) -> tuple[Lineage, Reordering]:
    """Choose, repeat or drop beams and sentences.

    Args:
        lineage: of the tokens in rows that beams share.
        rows: [B', W'] int64; entry `sentence · W + beam` takes the place it stands at.

    Returns:
        The lineage of the chosen beams, and the choice for the states that follow it.
    """
    positions, own = lineage.positions, lineage.own
    sentences = chosen_sentences(rows, lineage.width, positions.shape[0])
    if sentences is not None:
        positions = positions.index_select(0, sentences)
    if own is not None:
        own = own.flatten(0, 1)[rows]
    elif rows.shape[1] > 1:
        own = torch.ones((*rows.shape, positions.shape[1]), dtype=torch.bool, device=rows.device)
    lineage = Lineage(positions, own, rows.shape[1], lineage.compact_from)
    slots = None
    if positions.shape[1] >= lineage.compact_from:
        lineage, slots = _drop_slots(lineage)
    return lineage, Reordering(rows, sentences, slots)


def chosen_sentences(rows: Tensor, width: int, count: int) -> Tensor | None:
    """Return the sentence of each row of beams.

    Args:
        rows: [B', W'] int64, sentence · width + beam.
        width: beams of a sentence.
        count: B.

    Returns:
        [B'] int64; None if they are all sentences in their order.
    """
    sentences = rows[:, 0] // width
    same = torch.equal(sentences, torch.arange(count, device=rows.device))
    return None if same else sentences


def _drop_slots(lineage: Lineage) -> tuple[Lineage, Tensor | None]:
    """Drop the slots that are no beam's past, if they are half of all or more.

    Returns:
        The lineage, and the slots that stay, [B, S'] int64; None if all do.
    """
    needed = lineage.positions != NOTHING_HERE
    own = lineage.own
    if own is not None:
        needed = needed & own.any(1)
    most, width = int(needed.sum(1).max()), needed.shape[1]
    compact_from = max(_COMPACT_FROM, 2 * most)
    if 2 * most > width:
        return replace(lineage, compact_from=2 * compact_from), None
    slots = needed.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    if own is not None:
        own = own.gather(2, slots[:, None].expand(-1, own.shape[1], -1))
    positions = lineage.positions.gather(1, slots)
    positions = positions.masked_fill(~needed.gather(1, slots), NOTHING_HERE)
    return Lineage(positions, own, lineage.width, compact_from), slots


class Store:
    """Slots that caches share: the value that filled it last may fill it further, others copy it.

    Args:
        keys: [B, K, capacity, E].
        values: [B, K, capacity, Ev].

    Attributes:
        filled: slots in use by the longest cache; None until it is written to.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.filled: int | None = None
        self._is_inference = keys.is_inference()

    @classmethod
    def around(cls, keys: Tensor, values: Tensor) -> Store:
        """Just these tokens."""
        store = cls(keys, values)
        store.filled = keys.shape[2]
        return store

    def may_be_written(self, used: int, count: int) -> bool:
        """Return whether so many more tokens may follow the first `used` slots."""
        fits = used + count <= self.keys.shape[2]
        alike = self._is_inference == torch.is_inference_mode_enabled()
        return self.filled == used and fits and alike

    def write(self, used: int, keys: Tensor, values: Tensor) -> None:
        """Put tokens after the first `used` slots."""
        stop = used + keys.shape[2]
        self.keys[:, :, used:stop] = keys
        self.values[:, :, used:stop] = values
        self.filled = stop


def _roomy(part: _Part, stored: Tensor, room: int) -> Tensor:
    """Copy a part of keys or values into [B, K, room, E], which is unset after its slots."""
    _, heads, _, width = stored.shape
    larger = stored.new_empty((part.rows, heads, room, width))
    part.put(stored, larger[:, :, : part.width])
    return larger
