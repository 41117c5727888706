"""The interface of every tokenizer, trained here or imported, and helpers that both kinds share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from heedful.durable import open_regular
from heedful.errors import ModelError


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


def framed(
    tokenizer: TextTokenizer, ids: Sequence[int], second: Sequence[int] | None = None
) -> list[int]:
    """Put a tokenizer's special tokens around one text, or around two that belong together.

    Args:
        tokenizer: its `first`, `between` and `last` are used.
        ids: of the text, as its `encode` gives them.
        second: of another text.

    Raises:
        ModelError: when there are two texts and the model takes no pairs.
    """
    if second is None:
        return [*tokenizer.first, *ids, *tokenizer.last]
    if tokenizer.between is None:
        raise ModelError(
            "This model's tokenizer does not say how two texts are put together",
            remedy="Give one text at a time",
        )
    return [*tokenizer.first, *ids, *tokenizer.between, *second, *tokenizer.last]


def stand_ins(gaps: Sequence[int] | None, mask: int | None, count: int) -> Sequence[int]:
    """Ids for the hidden parts of a text: `gaps`, or else the mask token `count` times."""
    if gaps is not None:
        return gaps
    assert mask is not None
    return [mask] * count


def read_text(path: Path) -> str:
    """The content of a tokenizer file.

    Raises:
        ModelError: when it is missing or no text.
    """
    try:
        with open_regular(path) as file:
            return file.read().decode()
    except FileNotFoundError:
        raise ModelError(
            "There is no tokenizer here",
            where=str(path),
            remedy="Check that the path is a model directory",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(str(path), str(error)) from None


def damaged(where: str, detail: str) -> ModelError:
    """The error about a tokenizer file that is not whole, to be raised."""
    return ModelError(
        f"The tokenizer cannot be read ({detail})",
        where=where,
        remedy="The file is damaged; restore it from where the model came from",
    )
