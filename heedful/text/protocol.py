"""What every tokenizer does, whether it was trained here or came with an imported model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self


class TextTokenizer(Protocol):
    """Text to ids and back. The ids of special tokens are fields.

    `first` and `last` stand before and after a text where an encoder reads it, and `between` two
    that it reads at once; it is None where a model reads one only. `mask` is None where no token
    hides another. `sentinels` stand for gaps in a text, each for another; most tokenizers have
    none.
    """

    size: int
    pad: int
    bos: int
    eos: int
    unk: int
    mask: int | None
    sentinels: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    between: tuple[int, ...] | None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hexadecimal."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without the special tokens that frame it."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts, in their order."""
        ...

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a text, and for each the first character and the one after the last."""
        ...

    def encode_masked(self, text: str, name: str, gaps: Sequence[int] | None = None) -> list[int]:
        """Ids of a text in which `name` stands for the mask token, or in turn for `gaps`."""
        ...

    def encode_dropout(self, text: str, dropout: float, seed: int) -> list[int]:
        """Ids of a text, cut differently for each seed."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are left out."""
        ...

    def token(self, id: int) -> str:
        """The piece behind an id, for display."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces behind ids, for display."""
        ...

    def to_json(self) -> str:
        """The whole tokenizer as JSON."""
        ...

    def extended(self, tokens: Sequence[str]) -> Self:
        """The same tokenizer with more tokens; those that are one piece already add nothing."""
        ...
