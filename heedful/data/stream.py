"""Texts as one stream of token ids, encoded once and kept in memory maps, keyed by content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from heedful.data.documents import TextReader
from heedful.data.store import SCHEMA_VERSION, Array, DamagedStore, read_store, writing
from heedful.text.protocol import TextTokenizer

Notice = Callable[[str], None]


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
        """Where the text that holds a token begins, as "file:line"."""
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
        content = f"texts {SCHEMA_VERSION} {tokenizer.fingerprint} {reader.content_hash()}"
        key = hashlib.sha256(content.encode()).hexdigest()
        parts.append(_encoded(reader, tokenizer, cache / key[:32], notice))
        keys.append(key)
    return EncodedTexts(readers, parts, keys)


def _encoded(
    reader: TextReader, tokenizer: TextTokenizer, folder: Path, notice: Notice | None
) -> dict[str, Array]:
    if folder.exists():
        try:
            return read_store(folder)[0]
        except DamagedStore as damage:
            if notice:
                notice(f"{folder}: the encoded texts are damaged ({damage}) and are made anew.")
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
    return read_store(folder)[0]
