"""Texts as one stream of token ids, encoded once in memory maps; windows of it as batches."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
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
from heedful.data.batch_plan import shuffle
from heedful.data.batches import NO_TARGET, WindowBatch
from heedful.data.text_corpus import TextReader
from heedful.text.text_tokenizer import TextTokenizer


class EncodedTexts:
    """The texts of several files one after the other, each framed by bos and eos.

    Args:
        readers: the files.
        parts: the arrays of each file.
        keys: what the files' folders are named by.

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
        """Tokens in all."""
        return int(self.starts[-1])

    @property
    def texts(self) -> int:
        """Number of texts."""
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
        found = []
        for ids, first in zip(self.ids, self.starts, strict=False):
            low, high = max(start - first, 0), min(end - first, len(ids))
            if low < high:
                found.append(ids[low:high])
        return np.concatenate(found).astype(np.int64)

    def ids_of(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The ids of tokens, by their numbers, of any shape."""
        found = np.empty(tokens.shape, np.int64)
        for ids, first in zip(self.ids, self.starts, strict=False):
            here = (tokens >= first) & (tokens < first + len(ids))
            found[here] = ids[tokens[here] - first]
        return found

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
        tokenizer: what to encode with.
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
    room = max(1, min(length, tokens - 1))
    shift = int(bits.random_raw() % room) if epoch else 0
    return shuffle(window_starts(tokens, length, shift), bits)


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
    return WindowBatch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.from_numpy(segments),
        torch.from_numpy(targets),
        torch.from_numpy(starts),
        int((targets != NO_TARGET).sum()),
    )
