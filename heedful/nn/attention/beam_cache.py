"""Keys and values of beams that share a row, so that reordering beams copies nothing.

A beam search keeps several beams of a sentence and chooses at every step which of them go on. If
each beam had rows of its own, every step would copy the keys and values of all layers, which took
a fifth of the time. Here one row holds the tokens of all beams of a sentence, and a `Lineage`, one
for all layers, records which tokens are the past of which beam.

Shapes: B sentences, W beams of each, S slots in use, K key/value heads, E width of a key
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

_FREE_SLOTS = 32
"""Free slots of a new store; a full store is copied to one of twice its size."""

_COMPACT_FROM = 64
"""Number of slots from which it pays to look for slots that no beam needs any more."""


@dataclass(frozen=True, eq=False)
class Lineage:
    """The past of each beam: which tokens of a shared row are its own.

    Args:
        positions: [B, S] int64; −1 for padding.
        own: [B, W, S] bool; None while there is one beam, whose past is the whole row.
        width: number of beams W.
        compact_from: number of slots from which on unused ones are dropped.
    """

    positions: Tensor
    own: Tensor | None = None
    width: int = 1
    compact_from: int = _COMPACT_FROM

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> Self:
        """Make the lineage of B rows without tokens."""
        return cls(torch.empty((rows, 0), dtype=torch.int64, device=device))

    def append(self, positions: Tensor) -> tuple[Self, Positions]:
        """Append one token of each beam, or several of the only beam.

        Args:
            positions: [B, W] int64, or [B, n] while W is 1.

        Returns:
            The lineage with these tokens, and the positions of these queries and of all keys.
        """
        keys = torch.cat([self.positions, positions], 1)
        own = self.own
        if own is not None:
            new = _own_tokens(self.width).to(own.device).expand(own.shape[0], -1, -1)
            own = torch.cat([own, new], 2)
        return replace(self, positions=keys, own=own), Positions(positions, keys, lineage=own)

    def without_last(self, count: int) -> Self:
        """Return the lineage of the only beam without its last `count` tokens."""
        assert self.own is None
        return replace(self, positions=self.positions[:, : self.positions.shape[1] - count])


@functools.lru_cache(maxsize=16)
def _own_tokens(width: int) -> Tensor:
    """Return [W, W] bool, by which each beam sees only its own token of a step."""
    # Cached for later calls, which may record gradients, so it must not be an inference tensor.
    with torch.inference_mode(False):
        return torch.eye(width, dtype=torch.bool)


class _Part(NamedTuple):
    """A selection of a store: some rows, and some slots of each, in their new order.

    Args:
        store: store with the selected slots, which slots of later caches may follow.
        used: number of the store's slots that belong to this value.
        sentences: [B'] int64, selected rows; all if None.
        slots: [B', S'] int64, selected slots of each row; those in use if None.
    """

    store: Store
    used: int
    sentences: Tensor | None = None
    slots: Tensor | None = None

    @property
    def whole(self) -> bool:
        """True where nothing was left out or reordered."""
        return self.sentences is None and self.slots is None

    @property
    def rows(self) -> int:
        """Number of selected rows, B'."""
        return len(self.store.keys if self.sentences is None else self.sentences)

    @property
    def width(self) -> int:
        """Number of selected slots, S'."""
        return self.used if self.slots is None else self.slots.shape[1]

    def of(self, stored: Tensor) -> Tensor:
        """Return the selection of the store's keys or values, [B', K, S', E]."""
        if self.slots is None:
            stored = stored[:, :, : self.used]
            return stored if self.sentences is None else stored.index_select(0, self.sentences)
        rows, heads, capacity, width = stored.shape
        sentences = self.sentences
        if sentences is None:
            sentences = torch.arange(rows, device=stored.device)
        head = torch.arange(heads, device=stored.device)[:, None]
        # Row and slot form one index: two gathers in turn would copy what the second leaves out.
        places = ((sentences[:, None, None] * heads + head) * capacity) + self.slots[:, None]
        result = stored.reshape(-1, width).index_select(0, places.flatten())
        return result.view(len(sentences), heads, self.width, width)

    def put(self, stored: Tensor, place: Tensor) -> None:
        """Copy the selection of the store's keys or values straight to `place`."""
        if self.slots is None and self.sentences is not None:
            torch.index_select(stored[:, :, : self.used], 0, self.sentences, out=place)
        else:
            place.copy_(self.of(stored))


class BeamCache:
    """Keys and values of one layer, as a value: appending twice to one cache gives two valid ones.

    A selection of rows or slots is copied only when more tokens are appended, with free slots for
    those that follow.

    Args:
        part: selection of a store; None for no tokens.
    """

    def __init__(self, part: _Part | None = None) -> None:
        self._part = part

    @classmethod
    def holding(cls, keys: Tensor, values: Tensor) -> Self:
        """Make the cache of given keys [B, K, S, E] and values [B, K, S, Ev]."""
        return cls(_Part(Store.around(keys, values), keys.shape[2]))

    @property
    def used(self) -> int:
        """Number of slots S of each row."""
        return 0 if self._part is None else self._part.width

    @property
    def keys(self) -> Tensor:
        """Keys [B, K, S, E]."""
        assert self._part is not None, "nothing was appended yet"
        return self._part.of(self._part.store.keys)

    @property
    def values(self) -> Tensor:
        """Values [B, K, S, Ev]."""
        assert self._part is not None, "nothing was appended yet"
        return self._part.of(self._part.store.values)

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """Append tokens; the positions, which the lineage has made for all keys, stay as they are.

        Args:
            keys: [B, K, n, E].
            values: [B, K, n, Ev].
            positions: positions from `Lineage.append`.
        """
        used = self.used
        stop = used + keys.shape[2]
        assert positions.key.shape[1] == stop, (positions.key.shape, stop)
        if self._part is None:
            store = Store.around(keys, values)
        elif torch.is_grad_enabled():  # autograd needs the old content
            store = Store(torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2))
        else:
            # Only the cache that was extended last writes in place at the end of the
            # store; others copy.
            store = self._extensible_store(self._part, keys.shape[2])
            store.write(used, keys, values)
        return type(self)(_Part(store, stop)), positions

    def claim(self, shape: tuple[int, int, int, int], like: Tensor) -> tuple[Self, Store]:
        """Reserve slots for more tokens, to which the caller writes keys and values itself.

        Args:
            shape: B, K, n, E of the keys of these tokens, and of their values.
            like: tensor of their dtype and device, for a cache without tokens.

        Returns:
            The new cache, and its store, in which the tokens follow those of this cache.
        """
        used, (rows, heads, count, width) = self.used, shape
        if self._part is not None:
            store = self._extensible_store(self._part, count)
        else:
            size = (rows, heads, count + _FREE_SLOTS, width)
            store = Store(like.new_empty(size), like.new_empty(size))
        # Marked as filled before the caller writes, so that no other cache takes the same slots.
        store.filled = used + count
        return type(self)(_Part(store, store.filled)), store

    def without_last(self, count: int) -> BeamCache:
        """Return the cache without its last `count` tokens, whose slots the next ones take.

        This cache is not valid once tokens were appended to the result.
        """
        part = self._part
        assert part is not None and part.slots is None
        # Given back, unless another cache follows in this store; then appending copies.
        if part.store.filled == part.used:
            part.store.filled = part.used - count
        return BeamCache(part._replace(used=part.used - count))

    def reorder(self, choice: Reordering) -> BeamCache:
        """Return the cache of the chosen sentences, without the slots that were dropped."""
        cache = self if choice.sentences is None else self.select(choice.sentences)
        return cache if choice.slots is None else cache.pick(choice.slots)

    def select(self, sentences: Tensor) -> BeamCache:
        """Select the rows of some sentences ([B'] int64)."""
        part = self._part
        if part is None:
            return self
        # Selections compose as indices; keys and values stay where they are until tokens follow.
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

    def _extensible_store(self, part: _Part, count: int) -> Store:
        """Return a store that begins with this selection and has `count` free slots after it."""
        used = part.width
        if part.whole and part.store.may_be_written(used, count):
            return part.store
        # Doubling: n steps copy O(n) slots in all.
        size = max(2 * used, used + count, _FREE_SLOTS * count)
        return Store(
            _enlarged(part, part.store.keys, size), _enlarged(part, part.store.values, size)
        )


def choose_beams(lineage: Lineage, rows: Tensor) -> tuple[Lineage, Reordering]:
    """Choose, repeat or drop beams and sentences.

    Args:
        lineage: lineage of the tokens in rows that beams share.
        rows: [B', W'] int64, the chosen beam of each new one as `sentence · W + beam`.

    Returns:
        The lineage of the chosen beams, and the choice for the states that follow it.
    """
    positions, own = lineage.positions, lineage.own
    sentences = chosen_sentences(rows, lineage.width, positions.shape[0])
    if sentences is not None:
        positions = positions.index_select(0, sentences)
    if own is not None:
        own = own.flatten(0, 1)[rows]  # moves single bits instead of keys and values
    elif rows.shape[1] > 1:
        # The first step of a search: all beams share the tokens of the one beam before it.
        own = torch.ones((*rows.shape, positions.shape[1]), dtype=torch.bool, device=rows.device)
    lineage = Lineage(positions, own, rows.shape[1], lineage.compact_from)
    slots = None
    if positions.shape[1] >= lineage.compact_from:
        lineage, slots = _drop_slots(lineage)
    return lineage, Reordering(rows, sentences, slots)


def chosen_sentences(rows: Tensor, width: int, count: int) -> Tensor | None:
    """Return the sentence of each row of chosen beams.

    Args:
        rows: [B', W'] int64, sentence · width + beam.
        width: beams of a sentence.
        count: number of sentences B.

    Returns:
        [B'] int64; None if all sentences stay in order.
    """
    sentences = rows[:, 0] // width
    same = torch.equal(sentences, torch.arange(count, device=rows.device))
    return None if same else sentences


def _drop_slots(lineage: Lineage) -> tuple[Lineage, Tensor | None]:
    """Drop the slots that no beam sees, if they are at least half of all.

    Returns:
        The lineage, and the slots that stay, [B, S'] int64; None if all stay.
    """
    needed = lineage.positions != NOTHING_HERE
    own = lineage.own
    if own is not None:
        needed = needed & own.any(1)
    most, width = int(needed.sum(1).max()), needed.shape[1]
    compact_from = max(_COMPACT_FROM, 2 * most)
    if 2 * most > width:
        # A copy does not pay yet. Reading `most` waits for the device, so the next check comes
        # later.
        return replace(lineage, compact_from=2 * compact_from), None
    # A stable sort: the needed slots of a row stay in the order of their tokens.
    slots = needed.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    if own is not None:
        own = own.gather(2, slots[:, None].expand(-1, own.shape[1], -1))
    positions = lineage.positions.gather(1, slots)
    # Rows that need fewer than `most` slots keep some unneeded ones, which become padding.
    positions = positions.masked_fill(~needed.gather(1, slots), NOTHING_HERE)
    return Lineage(positions, own, lineage.width, compact_from), slots


class Store:
    """Slots that caches share: the cache that filled it last may write more, others copy it.

    Args:
        keys: [B, K, capacity, E].
        values: [B, K, capacity, Ev].

    Attributes:
        filled: number of slots in use by the longest cache; None until it is written to.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.filled: int | None = None
        self._is_inference = keys.is_inference()

    @classmethod
    def around(cls, keys: Tensor, values: Tensor) -> Store:
        """Make a full store of these tokens."""
        store = cls(keys, values)
        store.filled = keys.shape[2]
        return store

    def may_be_written(self, used: int, count: int) -> bool:
        """Return whether `count` more tokens may be written after the first `used` slots."""
        fits = used + count <= self.keys.shape[2]
        # PyTorch refuses in-place writes to an inference tensor outside of inference mode.
        alike = self._is_inference == torch.is_inference_mode_enabled()
        return self.filled == used and fits and alike

    def write(self, used: int, keys: Tensor, values: Tensor) -> None:
        """Write tokens after the first `used` slots."""
        stop = used + keys.shape[2]
        self.keys[:, :, used:stop] = keys
        self.values[:, :, used:stop] = values
        self.filled = stop


def _enlarged(part: _Part, stored: Tensor, size: int) -> Tensor:
    """Copy a selection of keys or values to [B, K, size, E], uninitialised after its slots."""
    _, heads, _, width = stored.shape
    larger = stored.new_empty((part.rows, heads, size, width))
    part.put(stored, larger[:, :, : part.width])
    return larger
