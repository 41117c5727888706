"""Rows of an encoder's batches: pieces of one text each, in the frame of their tokenizer.

A row never holds parts of two texts, so that its first token stands for it whether its pieces are
predicted or its label is, and a model sees in training what it is given afterwards. Rows are parts
of a stream of encoded texts (`Rows`), or are held in memory with several targets each
(`FramedRows`). A long text becomes rows without overlap, its first row alone, or overlapping
windows.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.batch_plan import Indices
from heedful.data.batches import FramedBatch, RowBatch, pad, source_tensors
from heedful.data.encoded_texts import EncodedTexts
from heedful.errors import ConfigError
from heedful.text.text_tokenizer import TextTokenizer


@dataclass(frozen=True)
class Rows:
    """Rows of pieces of a stream.

    Args:
        starts: number of each row's first piece in the stream [N] int64.
        counts: pieces of each row [N] int64.
        frame: tokens around the pieces of a row.
    """

    starts: Indices
    counts: Indices
    frame: int

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.starts)

    @property
    def sizes(self) -> Indices:
        """Tokens of each row [N], its frame counted."""
        return self.counts + self.frame

    def take(self, indices: Sequence[int] | Indices) -> Rows:
        """Some of the rows, by their numbers."""
        return Rows(self.starts[indices], self.counts[indices], self.frame)

    def pieces(self, texts: EncodedTexts) -> list[npt.NDArray[np.int64]]:
        """The ids of each row's pieces, without the frame."""
        spans = zip(self.starts.tolist(), self.counts.tolist(), strict=True)
        return [texts.span(start, start + count) for start, count in spans]

    def bounds(self, texts: EncodedTexts) -> Indices:
        """Number of the first row of every file of the stream, and the number of all."""
        return np.searchsorted(self.starts, texts.starts)


def frame_size(tokenizer: TextTokenizer) -> int:
    """The number of tokens around the pieces of a row."""
    return len(tokenizer.first) + len(tokenizer.last)


def cut_texts(
    texts: EncodedTexts, tokenizer: TextTokenizer, max_length: int, *, seed: int, epoch: int
) -> Rows:
    """Cut every text into rows without overlap; no piece is left out.

    A text that needs several rows is cut elsewhere in each epoch: its first row may be shorter.

    Args:
        texts: the stream.
        tokenizer: gives the frame.
        max_length: of a row, its frame counted.
        seed: of the run.
        epoch: counted from 0.

    Raises:
        ConfigError: when a row has no room for a piece.
    """
    room = _room(tokenizer, max_length)
    drawn = int(np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw())
    shift = drawn % room if epoch else 0
    begins, pieces = texts.pieces
    lead = np.where(pieces > room, shift, 0)
    per_text = -(-(pieces + lead) // room)
    text = np.repeat(np.arange(len(pieces)), per_text)
    number = np.arange(len(text)) - np.repeat(np.cumsum(per_text) - per_text, per_text)
    low = np.maximum(number * room - lead[text], 0)
    high = np.minimum((number + 1) * room - lead[text], pieces[text])
    return Rows(begins[text] + low, high - low, frame_size(tokenizer))


def first_rows(texts: EncodedTexts, tokenizer: TextTokenizer, max_length: int) -> Rows:
    """One row for every text; what goes past `max_length` tokens is left out.

    Raises:
        ConfigError: when a row has no room for a piece.
    """
    room = _room(tokenizer, max_length)
    begins, pieces = texts.pieces
    return Rows(begins, np.minimum(pieces, room), frame_size(tokenizer))


def _room(tokenizer: TextTokenizer, max_length: int) -> int:
    """The most pieces of a row."""
    room = max_length - frame_size(tokenizer)
    if room < 1:
        raise ConfigError(
            f"Of {max_length} tokens {frame_size(tokenizer)} are special ones; there is no room "
            "for text",
            where="data.max_length",
            remedy="Raise it",
        )
    return room


@dataclass(frozen=True)
class LabelledRows:
    """Encoded texts with a label each.

    Args:
        texts: the stream.
        rows: one for every text.
        labels: number of each text's label [N] int64.
        tokenizer: of the stream.
    """

    texts: EncodedTexts
    rows: Rows
    labels: Indices
    tokenizer: TextTokenizer

    def batch(self, indices: Indices) -> RowBatch:
        """Texts side by side; the label of each is its target."""
        rows = self.rows.take(indices)
        ids, positions = source_tensors(rows.pieces(self.texts), self.tokenizer)
        targets, starts = torch.from_numpy(self.labels[indices]), torch.from_numpy(rows.starts)
        return RowBatch(ids, positions, targets, starts, len(indices))

    def by_length(self, count: int, size: int) -> Iterator[Indices]:
        """The numbers of the first texts in batches of a size, those of like length together."""
        order = np.argsort(self.rows.counts[:count], kind="stable")
        yield from (order[first : first + size] for first in range(0, count, size))


@dataclass(frozen=True)
class FramedRow:
    """One input and its targets.

    Args:
        ids: all tokens, special ones included.
        second: where the second text begins; the number of tokens where there is none.
        places: the token that each target belongs to, or the number of an output.
        targets: the number to predict at each place.
        where: the row's place, for messages.
    """

    ids: Sequence[int]
    second: int
    places: Sequence[int]
    targets: Sequence[int]
    where: str


class FramedRows:
    """The rows of several files, one after the other.

    Args:
        files: the rows of each file; at least one in all, each with at least one target.
        padding: id that fills rows up.
    """

    def __init__(self, files: Iterable[Iterable[FramedRow]], padding: int) -> None:
        parts = [list(file) for file in files]
        rows = list(itertools.chain.from_iterable(parts))
        self.padding = padding
        self.ids = [np.array(row.ids, np.int32) for row in rows]
        self.targets = [np.array((row.places, row.targets), np.int32) for row in rows]
        self.second = np.array([row.second for row in rows], np.int64)
        self.where = [row.where for row in rows]
        self.lengths = np.array([len(row.ids) for row in rows], np.int32)
        self.starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.ids)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all rows and of how they are divided into files."""
        digest = hashlib.sha256(self.starts.tobytes())
        for ids, second, targets in zip(self.ids, self.second, self.targets, strict=True):
            digest.update(f"{len(ids)} {second} {targets.shape}".encode())
            digest.update(ids.tobytes() + targets.tobytes())
        return digest.hexdigest()

    def batch(self, indices: Indices) -> FramedBatch:
        """Rows by their numbers."""
        ids, positions = pad([self.ids[index] for index in indices], self.padding)
        targets = [self.targets[index] for index in indices]
        rows = np.repeat(np.arange(len(indices)), [pair.shape[1] for pair in targets])
        places, labels = np.concatenate(targets, axis=1).astype(np.int64)
        arrays = (self.second[indices], rows, places, labels, indices)
        return FramedBatch(ids, positions, *map(torch.from_numpy, arrays))


@dataclass(frozen=True)
class Window:
    """Consecutive pieces of a long text that are read together.

    Args:
        start: number of the first.
        end: number of the one after the last.
        own_start: first of the pieces that have no more context in another window.
        own_end: the one after the last of these.
    """

    start: int
    end: int
    own_start: int
    own_end: int


def overlapping(count: int, room: int | None, stride: int | None = None) -> list[Window]:
    """The windows of a text. Each piece is one window's own.

    Args:
        count: pieces of the text.
        room: most pieces of a window; None holds every text whole.
        stride: pieces from the beginning of one window to that of the next; half of the room if
            unset. The last window begins earlier where it would be shorter than the others.
    """
    if room is None or count <= room:
        return [Window(0, count, 0, count)]
    step = max(1, room // 2) if stride is None else min(stride, room)
    starts = [*range(0, count - room, step), count - room]
    cuts = [(start + room + after) // 2 for start, after in itertools.pairwise(starts)]
    bounds = [0, *cuts, count]
    return [Window(s, s + room, *bounds[i : i + 2]) for i, s in enumerate(starts)]
