"""Texts as one stream of token ids, encoded once in memory maps; parts of it as batches.

Batches hold windows of the stream, or rows: pieces of one text each, in the frame of their
tokenizer. A row never holds parts of two texts, so that its first token stands for it whether its
pieces are predicted or its label is, and a model sees in training what it is given afterwards.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.array_store import (
    SCHEMA_VERSION,
    Array,
    Notice,
    open_or_write,
    store_key,
    writing,
)
from heedful.data.batch_plan import Indices, shuffle
from heedful.data.batches import NO_TARGET, FramedBatch, RowBatch, WindowBatch, pad, source_tensors
from heedful.data.text_corpus import TextReader
from heedful.errors import ConfigError
from heedful.text.tokenizer import TextTokenizer


class EncodedTexts:
    """The texts of several files one after the other, each framed by bos and eos.

    Args:
        readers: the files.
        parts: the arrays of each file.
        keys: names of the files' folders.

    Attributes:
        ids: every part's token ids.
        starts: number of the first token of every part, and the number of all tokens.
    """

    def __init__(
        self,
        readers: Sequence[TextReader],
        parts: Sequence[dict[str, Array]],
        keys: Sequence[str],
    ) -> None:
        self.readers = tuple(readers)
        self.ids = [part["ids"] for part in parts]
        self.starts = np.cumsum([0, *(len(ids) for ids in self.ids)], dtype=np.int64)
        self._begins = np.concatenate(
            [part["begins"] + start for part, start in zip(parts, self.starts, strict=False)]
        )
        self._lines = np.concatenate([part["lines"] for part in parts])
        self.fingerprint = hashlib.sha256("\n".join(keys).encode()).hexdigest()

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def texts(self) -> int:
        return len(self._begins)

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Number of the first token of every text, its bos, and the number of all tokens."""
        return np.append(self._begins, self.starts[-1])

    @property
    def pieces(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Number of every text's first piece after its bos, and how many pieces it has."""
        bounds = self.bounds
        return bounds[:-1] + 1, np.diff(bounds) - 2

    def span(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """The ids of tokens `start` up to `end`, which may lie in several files."""
        results = []
        for ids, first in zip(self.ids, self.starts, strict=False):
            low, high = max(start - first, 0), min(end - first, len(ids))
            if low < high:
                results.append(ids[low:high])
        return np.concatenate(results).astype(np.int64)

    def ids_of(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The ids of tokens, by their numbers, of any shape."""
        result = np.empty(tokens.shape, np.int64)
        for ids, first in zip(self.ids, self.starts, strict=False):
            here = (tokens >= first) & (tokens < first + len(ids))
            result[here] = ids[tokens[here] - first]
        return result

    def text_numbers(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers of the texts that tokens belong to, by the tokens' numbers, of any shape."""
        return np.searchsorted(self._begins, tokens, side="right") - 1

    def begins_of(self, texts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers of the first tokens of texts, of any shape."""
        return self._begins[texts]

    def line_of(self, token: int) -> str:
        """The beginning of the text that holds a token, as "file:line"."""
        part = int(np.searchsorted(self.starts, token, side="right")) - 1
        text = int(np.searchsorted(self._begins, token, side="right")) - 1
        return f"{self.readers[part].path}:{self._lines[text]}"


def encode_texts(
    readers: Sequence[TextReader],
    tokenizer: TextTokenizer,
    cache: Path,
    notice: Notice | None = None,
) -> EncodedTexts:
    """Open files from the cache, encoding those that are not there yet.

    Args:
        readers: the files.
        tokenizer: that encodes them.
        cache: folder of encoded files; may be shared between runs.
        notice: called with a sentence when a damaged folder is made anew.

    Raises:
        DataError: naming file and line, for anything that is not text.
        RunError: when the cache cannot be written.
    """
    parts, keys = [], []
    for reader in readers:
        key = store_key(f"texts {SCHEMA_VERSION} {tokenizer.fingerprint} {reader.content_hash()}")
        keys.append(key)
        write = functools.partial(_write, reader, tokenizer)
        parts.append(open_or_write(cache, key, write, notice)[0])
    return EncodedTexts(readers, parts, keys)


def _write(reader: TextReader, tokenizer: TextTokenizer, folder: Path) -> None:
    dtypes = {
        "ids": "<u2" if tokenizer.size <= 2**16 else "<i4",
        "begins": "<i8",
        "lines": "<i8",
    }
    with writing(folder, dtypes) as store:
        length = 0
        for document in reader:
            ids = [tokenizer.bos, *tokenizer.encode(document.text), tokenizer.eos]
            store.append("ids", np.array(ids))
            store.append("begins", np.array([length]))
            store.append("lines", np.array([document.line]))
            length += len(ids)
        store.finish({})


def window_starts(tokens: int, length: int, shift: int) -> npt.NDArray[np.int64]:
    """The first tokens of windows that follow each other without overlap.

    Args:
        tokens: of the stream.
        length: of a window; the last one may be shorter, down to one prediction.
        shift: token the first window starts at.
    """
    return np.arange(shift, max(tokens - 1, shift + 1), length, dtype=np.int64)


def epoch_windows(tokens: int, length: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The windows of an epoch in the order of training; where the cuts fall differs by epoch."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
    shift = epoch_shift(bits, tokens, length, epoch)
    return shuffle(window_starts(tokens, length, shift), bits)


def epoch_shift(bits: np.random.PCG64, tokens: int, length: int, epoch: int) -> int:
    """Draw the token that an epoch's first window starts at: 0 in the first epoch."""
    room = max(1, min(length, tokens - 1))
    return int(bits.random_raw() % room) if epoch else 0


def make_windows(texts: EncodedTexts, starts: npt.NDArray[np.int64], length: int) -> WindowBatch:
    """Put windows side by side.

    A window that begins within a text is read from the begin token on, in place of its first token,
    as a prompt will be: otherwise a model of few long texts would hardly ever see that token.

    Args:
        texts: the stream.
        starts: number of the first token of every window [B].
        length: of a window; one cut short by the end of the stream is padded.
    """
    tokens = starts[:, None] + np.arange(length + 1)  # [B, L + 1], by number
    real = tokens[:, 1:] < len(texts)
    tokens = np.minimum(tokens, len(texts) - 1)
    pieces, numbers = texts.ids_of(tokens), texts.text_numbers(tokens)
    begins = np.maximum(texts.begins_of(numbers[:, :-1]), starts[:, None])
    ids = np.where(real, pieces[:, :-1], 0)
    ids[:, 0] = texts.span(0, 1)
    positions = np.where(real, tokens[:, :-1] - begins, -1)
    segments = np.where(real, numbers[:, :-1] - numbers[:, :1], 0)
    # A text's end predicts nothing: what follows is another text.
    same = numbers[:, 1:] == numbers[:, :-1]
    targets = np.where(real & same, pieces[:, 1:], NO_TARGET)
    packed = bool(segments.any())
    return WindowBatch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.from_numpy(segments),
        torch.from_numpy(targets),
        torch.from_numpy(starts),
        int((targets != NO_TARGET).sum()),
        packed=packed,
        counted=not packed and bool(real.all()),
    )


@dataclass(frozen=True)
class TokenRows:
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
        return len(self.starts)

    @property
    def sizes(self) -> Indices:
        """Tokens of each row [N], its frame counted."""
        return self.counts + self.frame

    def take(self, indices: Sequence[int] | Indices) -> TokenRows:
        """Some of the rows, by their numbers."""
        return TokenRows(self.starts[indices], self.counts[indices], self.frame)

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
) -> TokenRows:
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
    return TokenRows(begins[text] + low, high - low, frame_size(tokenizer))


def first_rows(texts: EncodedTexts, tokenizer: TextTokenizer, max_length: int) -> TokenRows:
    """One row for every text; what goes past `max_length` tokens is left out.

    Raises:
        ConfigError: when a row has no room for a piece.
    """
    room = _room(tokenizer, max_length)
    begins, pieces = texts.pieces
    return TokenRows(begins, np.minimum(pieces, room), frame_size(tokenizer))


def _room(tokenizer: TextTokenizer, max_length: int) -> int:
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
    rows: TokenRows
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
        ids, positions = pad([self.ids[index] for index in indices], self.padding)
        targets = [self.targets[index] for index in indices]
        rows = np.repeat(np.arange(len(indices)), [pair.shape[1] for pair in targets])
        places, labels = np.concatenate(targets, axis=1).astype(np.int64)
        arrays = (self.second[indices], rows, places, labels, indices)
        return FramedBatch(ids, positions, *map(torch.from_numpy, arrays))
