"""Texts as one stream of token ids, encoded once in memory maps, and batches of its parts.

Batches hold windows of the stream, or rows. A row is a part of one text between the special tokens
of its tokenizer, its frame. A row never holds parts of two texts, so that its first token can
represent it, and the model is trained on the same input as it gets afterwards.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.array_store import (
    SCHEMA_VERSION,
    Array,
    Notice,
    open_or_write,
    writing,
)
from heedful.data.batch_plan import Indices, shuffle
from heedful.data.batches import NO_TARGET, FramedBatch, RowBatch, WindowBatch
from heedful.data.chat_corpus import ChatReader
from heedful.data.encoded_pairs import id_dtype
from heedful.data.padding import pad, source_tensors
from heedful.data.text_corpus import TextReader as PlainReader
from heedful.errors import ConfigError, DataError
from heedful.text.tokenizer import TextTokenizer

TextReader = PlainReader | ChatReader
"""The texts or the conversations of one file, read anew in every iteration."""


class EncodedTexts:
    """The texts of several files, concatenated, each between bos and eos.

    Args:
        readers: readers of the files.
        parts: arrays of each file.
        keys: names of the files' folders in the cache.

    Attributes:
        ids: token ids of each file.
        starts: number of the first token of every file, and the number of tokens.
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
        # Each file stores positions within its own tokens; here they become positions in the
        # stream.
        self._begins = np.concatenate(
            [part["begins"] + start for part, start in zip(parts, self.starts, strict=False)]
        )
        self._lines = np.concatenate([part["lines"] for part in parts])
        # Files of conversations say which of their tokens are learned; of others all are.
        self._learned = [part.get("learned") for part in parts]
        self.fingerprint = hashlib.sha256("\n".join(keys).encode()).hexdigest()

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def texts(self) -> int:
        return len(self._begins)

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Number of the bos of every text [N + 1], with the number of tokens at the end."""
        return np.append(self._begins, self.starts[-1])

    @property
    def text_spans(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """First token after every text's bos [N], and the text's length without bos and eos [N]."""
        bounds = self.bounds
        return bounds[:-1] + 1, np.diff(bounds) - 2

    def span(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the ids of the tokens from `start` until `end`, which may lie in several files."""
        # Memory maps of files are separate arrays, so a span may need a part of several.
        results = []
        for ids, first in zip(self.ids, self.starts, strict=False):
            low, high = max(start - first, 0), min(end - first, len(ids))
            if low < high:
                results.append(ids[low:high])
        return np.concatenate(results).astype(np.int64)

    def ids_of(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ids of tokens, given an array of their numbers of any shape."""
        result = np.empty(tokens.shape, np.int64)
        for ids, first in zip(self.ids, self.starts, strict=False):
            here = (tokens >= first) & (tokens < first + len(ids))
            result[here] = ids[tokens[here] - first]
        return result

    @property
    def marks(self) -> bool:
        """True if only some tokens are learned, as in conversations."""
        return any(each is not None for each in self._learned)

    def learned(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return whether tokens are learned, given an array of their numbers of any shape."""
        result = np.ones(tokens.shape, np.bool_)
        for flags, first in zip(self._learned, self.starts, strict=False):
            if flags is not None:
                here = (tokens >= first) & (tokens < first + len(flags))
                result[here] = flags[tokens[here] - first]
        return result

    def text_numbers(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the text of each token, given an array of the tokens' numbers of any shape."""
        # side="right": the bos belongs to its own text.
        return np.searchsorted(self._begins, tokens, side="right") - 1

    def begins_of(self, texts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the first token of texts, whose numbers have any shape."""
        return self._begins[texts]

    def line_of(self, token: int) -> str:
        """Return the location of the text that holds a token, as "file:line"."""
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
        readers: readers of the files.
        tokenizer: tokenizer of the texts.
        cache: folder of encoded files; may be shared between runs.
        notice: function that is called with a sentence when a damaged folder is made anew.

    Raises:
        DataError: when a line is not text, with file and line.
        RunError: when the cache cannot be written.
    """
    parts, keys = [], []
    for reader in readers:
        content = f"texts {SCHEMA_VERSION} {tokenizer.fingerprint} {reader.content_hash()}"
        write = functools.partial(_write, reader, tokenizer)
        arrays, _, key = open_or_write(cache, content, write, notice)
        parts.append(arrays)
        keys.append(key)
    return EncodedTexts(readers, parts, keys)


def _write(reader: TextReader, tokenizer: TextTokenizer, folder: Path) -> None:
    dtypes = {
        "ids": id_dtype(tokenizer.size),
        "begins": "<i8",
        "lines": "<i8",
    }
    if isinstance(reader, ChatReader):
        _write_chats(reader, tokenizer, folder, dtypes)
        return
    with writing(folder, dtypes) as store:
        length = 0
        for document in reader:
            # Every text has both ends in the store; a row takes its frame from the tokenizer
            # instead.
            try:
                content = tokenizer.encode(document.text)
            except DataError as error:
                error.where = error.where or f"{reader.path}:{document.line}"
                raise
            ids = [tokenizer.bos, *content, tokenizer.eos]
            store.append("ids", np.array(ids))
            store.append("begins", np.array([length]))
            store.append("lines", np.array([document.line]))
            length += len(ids)
        store.finish({})


def _write_chats(
    reader: ChatReader, tokenizer: TextTokenizer, folder: Path, dtypes: dict[str, Any]
) -> None:
    with writing(folder, {**dtypes, "learned": "u1"}) as store:
        length = 0
        for line, ids, learned in reader.encoded(tokenizer):
            store.append("ids", np.array(ids))
            store.append("learned", np.array(learned, np.uint8))
            store.append("begins", np.array([length]))
            store.append("lines", np.array([line]))
            length += len(ids)
        store.finish({})


def window_starts(tokens: int, length: int, shift: int) -> npt.NDArray[np.int64]:
    """Return the first tokens of windows that follow each other without overlap.

    Args:
        tokens: number of tokens of the stream.
        length: length of a window; the last one may be shorter, down to one prediction.
        shift: first token of the first window.
    """
    # The last token of the stream is only a target, so no window begins with it.
    return np.arange(shift, max(tokens - 1, shift + 1), length, dtype=np.int64)


def epoch_windows(tokens: int, length: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the first tokens of an epoch's windows, shuffled; every epoch cuts at other places.

    Args:
        tokens: number of tokens of the stream.
        length: length of a window.
        seed: seed of the run.
        epoch: number of the epoch, from 0.
    """
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
    shift = epoch_shift(bits, tokens, length, epoch)
    return shuffle(window_starts(tokens, length, shift), bits)


def epoch_shift(bits: np.random.PCG64, tokens: int, length: int, epoch: int) -> int:
    """Draw the first token of an epoch's first window; it is 0 in the first epoch."""
    shifts = max(1, min(length, tokens - 1))
    return int(bits.random_raw() % shifts) if epoch else 0


def make_windows(
    texts: EncodedTexts,
    starts: npt.NDArray[np.int64],
    length: int,
    ends: npt.NDArray[np.int64] | None = None,
) -> WindowBatch:
    """Make a batch of windows.

    The first token of every window is replaced by bos, as in front of a prompt: a model that is
    trained on few long texts would otherwise hardly ever see bos.

    Args:
        texts: stream of texts.
        starts: number of the first token of every window [B].
        length: length L of a window; a shorter one at the end of the stream is padded.
        ends: number of the token after every window [B]; that after the stream's last if None.
    """
    # Windows are cut as whole arrays: for a batch of nanoGPT's recipe a loop over windows held the
    # GIL for 0.98 ms, arrays for 0.15 (docs/design/log.md).
    tokens = starts[:, None] + np.arange(length + 1)  # token numbers in the stream [B, L + 1]
    real = tokens[:, 1:] < (len(texts) if ends is None else ends[:, None])
    tokens = np.minimum(tokens, len(texts) - 1)
    ids, targets, numbers = inputs_and_targets(texts, tokens, real)
    # Positions count from the text's start, or from the window's where the text began before it.
    begins = np.maximum(texts.begins_of(numbers[:, :-1]), starts[:, None])
    ids[:, 0] = texts.span(0, 1)  # bos: the stream's first token
    positions = np.where(real, tokens[:, :-1] - begins, -1)
    segments = np.where(real, numbers[:, :-1] - numbers[:, :1], 0)
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


def inputs_and_targets(
    texts: EncodedTexts, tokens: Indices, real: npt.NDArray[np.bool_]
) -> tuple[Indices, Indices, Indices]:
    """Return token ids [B, L], the ids of the next tokens [B, L], and text numbers [B, L + 1].

    Args:
        texts: stream of texts.
        tokens: numbers of the tokens in the stream, and of the token after the last [B, L + 1].
        real: mask of the tokens that are not padding [B, L].
    """
    ids, numbers = texts.ids_of(tokens), texts.text_numbers(tokens)
    # eos has no target: the next token belongs to another text.
    same = numbers[:, 1:] == numbers[:, :-1]
    if texts.marks:
        same &= texts.learned(tokens[:, 1:])
    targets = np.where(real & same, ids[:, 1:], NO_TARGET)
    return np.where(real, ids[:, :-1], 0), targets, numbers


@dataclass(frozen=True)
class TokenRows:
    """Rows of a stream: parts of texts, without their frames.

    Args:
        starts: number of each row's first token in the stream [N] int64.
        counts: tokens of each row without its frame [N] int64.
        frame: number of special tokens around a row.
    """

    starts: Indices
    counts: Indices
    frame: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> Indices:
        """Length of each row in tokens [N], its frame counted."""
        return self.counts + self.frame

    def take(self, indices: Sequence[int] | Indices) -> TokenRows:
        """Return some of the rows, by their numbers."""
        return TokenRows(self.starts[indices], self.counts[indices], self.frame)

    def token_ids(self, texts: EncodedTexts) -> list[npt.NDArray[np.int64]]:
        """Return the token ids of each row, without the frame."""
        spans = zip(self.starts.tolist(), self.counts.tolist(), strict=True)
        return [texts.span(start, start + count) for start, count in spans]

    def bounds(self, texts: EncodedTexts) -> Indices:
        """Return the number of the first row of every file, and the number of all rows."""
        return np.searchsorted(self.starts, texts.starts)


def frame_size(tokenizer: TextTokenizer) -> int:
    """Return the number of special tokens around a row."""
    return len(tokenizer.first) + len(tokenizer.last)


def cut_texts(
    texts: EncodedTexts, tokenizer: TextTokenizer, max_length: int, *, seed: int, epoch: int
) -> TokenRows:
    """Cut every text into rows without overlap; no token is left out.

    A text that needs several rows is cut at other places in each epoch: its first row may be
    shorter than the others.

    Args:
        texts: stream of texts.
        tokenizer: tokenizer that gives the frame.
        max_length: maximum number of tokens of a row, its frame counted.
        seed: seed of the run.
        epoch: number of the epoch, from 0.

    Raises:
        ConfigError: when the frame alone fills a row.
    """
    content = _content_length(tokenizer, max_length)
    drawn = int(np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw())
    shift = drawn % content if epoch else 0
    begins, lengths = texts.text_spans
    # Rows are cut at multiples of `content`, as if `lead` tokens stood before the text.
    lead = np.where(lengths > content, shift, 0)
    per_text = -(-(lengths + lead) // content)
    text = np.repeat(np.arange(len(lengths)), per_text)
    number = np.arange(len(text)) - np.repeat(np.cumsum(per_text) - per_text, per_text)
    low = np.maximum(number * content - lead[text], 0)
    high = np.minimum((number + 1) * content - lead[text], lengths[text])
    return TokenRows(begins[text] + low, high - low, frame_size(tokenizer))


def first_rows(texts: EncodedTexts, tokenizer: TextTokenizer, max_length: int) -> TokenRows:
    """Make one row of every text; tokens past `max_length` are left out.

    Raises:
        ConfigError: when the frame alone fills a row.
    """
    content = _content_length(tokenizer, max_length)
    begins, lengths = texts.text_spans
    return TokenRows(begins, np.minimum(lengths, content), frame_size(tokenizer))


def _content_length(tokenizer: TextTokenizer, max_length: int) -> int:
    content = max_length - frame_size(tokenizer)
    if content < 1:
        raise ConfigError(
            f"Of {max_length} tokens {frame_size(tokenizer)} are special ones; there is no room "
            "for text",
            where="data.max_length",
            remedy="Raise it",
        )
    return content


@dataclass(frozen=True)
class LabelledRows:
    """Encoded texts with one label each.

    Args:
        texts: stream of texts.
        rows: one row for every text.
        labels: index of each text's label [N] int64.
        tokenizer: tokenizer of the stream.
    """

    texts: EncodedTexts
    rows: TokenRows
    labels: Indices
    tokenizer: TextTokenizer

    def batch(self, indices: Indices) -> RowBatch:
        """Make a padded batch of texts, with labels as targets."""
        rows = self.rows.take(indices)
        ids, positions = source_tensors(rows.token_ids(self.texts), self.tokenizer)
        targets, starts = torch.from_numpy(self.labels[indices]), torch.from_numpy(rows.starts)
        return RowBatch(ids, positions, targets, starts, len(indices))

    def by_length(self, count: int, size: int) -> Iterator[Indices]:
        """Yield the numbers of the first `count` texts, sorted by length, `size` at a time."""
        order = np.argsort(self.rows.counts[:count], kind="stable")
        yield from (order[first : first + size] for first in range(0, count, size))


@dataclass(frozen=True)
class FramedRow:
    """One input sequence and its targets.

    Args:
        ids: ids of all tokens, special ones included.
        second: index of the second text's first token; the number of tokens if there is none.
        places: index of each target's token, or number of an output.
        targets: label at each place.
        where: location of the row, for messages.
    """

    ids: Sequence[int]
    second: int
    places: Sequence[int]
    targets: Sequence[int]
    where: str


class FramedRows:
    """The rows of several files, concatenated.

    Args:
        files: rows of each file; at least one row in all, each with at least one target.
        padding: padding id.
    """

    def __init__(self, files: Iterable[Iterable[FramedRow]], padding: int) -> None:
        parts = [list(file) for file in files]
        rows = list(itertools.chain.from_iterable(parts))
        self.padding = padding
        # int32 arrays take a fraction of the memory of lists of Python integers.
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
        """SHA-256, in hexadecimal, of all rows and of their division into files."""
        digest = hashlib.sha256(self.starts.tobytes())
        for ids, second, targets in zip(self.ids, self.second, self.targets, strict=True):
            # Lengths are hashed first: without them other cuts of the same bytes would have the
            # same hash.
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
