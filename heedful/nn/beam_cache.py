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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from heedful.nn.native.library import Places
from heedful.nn.positions import NOTHING_HERE, Positions
from heedful.nn.stacked import stacked

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
        """Whether it is all that the store holds for this value."""
        return self.sentences is None and self.slots is None

    @property
    def rows(self) -> int:
        """B'."""
        return len(self.store.keys if self.sentences is None else self.sentences)

    @property
    def width(self) -> int:
        """S'."""
        return self.used if self.slots is None else self.slots.shape[1]

    def of(self, held: Tensor) -> Tensor:
        """What is wanted of the store's keys or values: [B', K, S', E]."""
        if self.slots is None:
            held = held[:, :, : self.used]
            return held if self.sentences is None else held.index_select(0, self.sentences)
        rows, heads, capacity, width = held.shape
        sentences = self.sentences
        if sentences is None:
            sentences = torch.arange(rows, device=held.device)
        head = torch.arange(heads, device=held.device)[:, None]
        places = ((sentences[:, None, None] * heads + head) * capacity) + self.slots[:, None]
        found = held.reshape(-1, width).index_select(0, places.flatten())
        return found.view(len(sentences), heads, self.width, width)

    def put(self, held: Tensor, place: Tensor) -> None:
        """What is wanted of the store's keys or values, without a copy on the way."""
        if self.slots is None and self.sentences is not None:
            torch.index_select(held[:, :, : self.used], 0, self.sentences, out=place)
        else:
            place.copy_(self.of(held))


class BeamCache:
    """Keys and values of one layer. A value: appending to the same one twice gives two sound ones.

    What is chosen of it, and what joins it, is copied only when more tokens are appended, and then
    together, with room for those that follow.

    Args:
        parts: whose rows follow each other; none for no tokens.
    """

    def __init__(self, parts: tuple[_Part, ...] = ()) -> None:
        self._parts = parts

    @property
    def used(self) -> int:
        """S, how many slots each row has."""
        if len(self._parts) == 1:  # asked for at every step, of every layer
            return self._parts[0].width
        return max((part.width for part in self._parts), default=0)

    @property
    def keys(self) -> Tensor:
        """[B, K, S, E]."""
        return self._put_together([part.store.keys for part in self._parts])

    @property
    def values(self) -> Tensor:
        """[B, K, S, Ev]."""
        return self._put_together([part.store.values for part in self._parts])

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """The cache with more tokens, and the positions, which are of all keys already.

        Args:
            keys: [B, K, n, E].
            values: [B, K, n, Ev].
            positions: from `Lineage.append`.
        """
        used = self.used
        stop = used + keys.shape[2]
        assert positions.key.shape[1] == stop, (positions.key.shape, stop)
        if not self._parts:
            store = Store.around(keys, values)
        elif torch.is_grad_enabled():  # autograd wants the old contents
            store = Store(torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2))
        else:
            store = self._with_room(keys.shape[2])
            store.write(used, keys, values)
        return type(self)((_Part(store, stop),)), positions

    def claim(self, shape: tuple[int, int, int, int], like: Tensor) -> tuple[Self, Store]:
        """The cache with more tokens, whose keys and values the caller puts where they belong.

        Args:
            shape: B, K, n, E of the keys of these tokens, and of their values.
            like: of the type they are to have, where the cache holds no tokens yet.

        Returns:
            The cache, and its store, in which they follow the tokens of this one.
        """
        used, (rows, heads, count, width) = self.used, shape
        if self._parts:
            store = self._with_room(count)
        else:
            room = (rows, heads, count + _ROOM, width)
            store = Store(like.new_empty(room), like.new_empty(room))
        store.filled = used + count
        return type(self)((_Part(store, store.filled),)), store

    def select(self, sentences: Tensor) -> BeamCache:
        """The rows of some sentences ([B'] int64)."""
        if not self._parts:
            return self
        part = self._one()
        if part.slots is not None:
            part = part._replace(slots=part.slots.index_select(0, sentences))
        if part.sentences is not None:
            sentences = part.sentences.index_select(0, sentences)
        return BeamCache((part._replace(sentences=sentences),))

    def pick(self, slots: Tensor) -> BeamCache:
        """Some slots of each row ([B, S'] int64)."""
        part = self._one()
        if part.slots is not None:
            slots = part.slots.gather(1, slots)
        return BeamCache((part._replace(slots=slots),))

    def join(self, other: BeamCache) -> BeamCache:
        """The rows of both; the shorter ones are filled up with zeros."""
        return BeamCache((*self._parts, *other._parts))

    def _one(self) -> _Part:
        """All of it as one part."""
        if len(self._parts) == 1:
            return self._parts[0]
        return _Part(Store.around(self.keys, self.values), self.used)

    def _put_together(self, held: Sequence[Tensor]) -> Tensor:
        assert held, "nothing was appended yet"
        found = [part.of(each) for part, each in zip(self._parts, held, strict=True)]
        if len(found) == 1:
            return found[0]
        return stacked(found, self.used, -2)

    def _with_room(self, count: int) -> Store:
        """A store that begins with what is held and may be written after it."""
        used, first = self.used, self._parts[0]
        if len(self._parts) == 1 and first.whole and first.store.may_be_written(used, count):
            return first.store
        room = max(2 * used, used + count, _ROOM * count)
        kept = _roomy(self._parts, [part.store.keys for part in self._parts], used, room)
        told = _roomy(self._parts, [part.store.values for part in self._parts], used, room)
        return Store(kept, told)


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
    if positions.shape[1] < lineage.crowded:
        return tuple(caches), lineage
    return _tidied(caches, lineage)


def join_beams(
    caches: Sequence[BeamCache], lineage: Lineage, others: Sequence[BeamCache], other: Lineage
) -> tuple[tuple[BeamCache, ...], Lineage]:
    """The sentences of both, those of the first before those of the others.

    Rows of fewer slots are filled up with empty ones, which are no continuation's past.

    Args:
        caches: of all layers, with at least one token.
        lineage: of their tokens.
        others: of the same layers, with at least one token.
        other: of theirs, with as many continuations.
    """
    assert lineage.width == other.width
    caches, lineage = _tidied(caches, lineage, always=True)  # all is copied anyway
    both = (lineage, other)
    slots = max(each.positions.shape[1] for each in both)
    positions = stacked([each.positions for each in both], slots, -1, fill=NOTHING_HERE)
    owned = [each.own for each in both if each.own is not None]
    own = stacked(owned, slots, -1) if owned else None
    crowded = max(each.crowded for each in both)
    joined = tuple(one.join(two) for one, two in zip(caches, others, strict=True))
    return joined, Lineage(positions, own, lineage.width, crowded)


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
    caches: Sequence[BeamCache], lineage: Lineage, *, always: bool = False
) -> tuple[tuple[BeamCache, ...], Lineage]:
    """Without the slots that are no continuation's past, if they are half of all or more."""
    needed = lineage.positions != NOTHING_HERE
    own = lineage.own
    if own is not None:
        needed = needed & own.any(1)
    most, width = int(needed.sum(1).max()), needed.shape[1]
    crowded = max(_CROWDED, 2 * most)
    if always:
        if most == width:
            return tuple(caches), lineage
    elif 2 * most > width:
        return tuple(caches), replace(lineage, crowded=2 * crowded)
    slots = needed.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    if own is not None:
        own = own.gather(2, slots[:, None].expand(-1, own.shape[1], -1))
    positions = lineage.positions.gather(1, slots)
    positions = positions.masked_fill(~needed.gather(1, slots), NOTHING_HERE)
    tidy = Lineage(positions, own, lineage.width, crowded)
    return tuple(cache.pick(slots) for cache in caches), tidy


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

    @functools.cached_property
    def places(self) -> Places:
        """Where they stand."""
        return Places.of(self.keys, self.values)

    @classmethod
    def around(cls, keys: Tensor, values: Tensor) -> Store:
        """Just these tokens."""
        store = cls(keys, values)
        store.filled = keys.shape[2]
        return store

    def may_be_written(self, used: int, count: int) -> bool:
        """Whether so many more tokens may follow the first `used` slots."""
        fits = used + count <= self.keys.shape[2]
        alike = self._is_inference == torch.is_inference_mode_enabled()
        return self.filled == used and fits and alike

    def write(self, used: int, keys: Tensor, values: Tensor) -> None:
        """Put tokens after the first `used` slots."""
        stop = used + keys.shape[2]
        self.keys[:, :, used:stop] = keys
        self.values[:, :, used:stop] = values
        self.filled = stop


def _roomy(parts: Sequence[_Part], held: Sequence[Tensor], used: int, room: int) -> Tensor:
    """What parts hold, a tensor [B, K, room, E] that is unset after the first `used` slots."""
    _, heads, _, width = held[0].shape
    larger = held[0].new_empty((sum(part.rows for part in parts), heads, room, width))
    first = 0
    for part, each in zip(parts, held, strict=True):
        rows = larger[first : first + part.rows]
        part.put(each, rows[:, :, : part.width])
        rows[:, :, part.width : used] = 0.0
        first += part.rows
    return larger
