"""Base class of tokenizers from outside the package: a list of pieces, and rules to split text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn, Self

from heedful.errors import ConfigError
from heedful.text.tokenizer import (
    SCHEMA_VERSION,
    SPECIALS,
    UNKNOWN,
    TextTokenizer,
    damaged,
    fill_gaps,
)
from heedful.text.tokenizer_spec import TokenizerSpec


class RegisteredTokenizer(TextTokenizer):
    """Base class of tokenizers for `heedful.register`; see `TextTokenizer`.

    A subclass sets `kind` and implements `train`, which learns pieces, `cut`, which splits a text
    into pieces, and `join`, which joins them to a text.

    Args:
        pieces: vocabulary without special tokens, in the order of ids.
        has_mask: True for a mask token, which masked language models need.
        num_sentinels: number of tokens that stand for gaps in a text.
    """

    family: ClassVar[str] = "tokenizer"
    kind: ClassVar[str]
    is_imported = False
    pad, bos, eos, unk = range(len(SPECIALS))

    def __init__(
        self, pieces: Sequence[str], *, has_mask: bool = False, num_sentinels: int = 0
    ) -> None:
        self._pieces = tuple(pieces)
        self._ids = {piece: id for id, piece in enumerate(self._pieces, start=len(SPECIALS))}
        # Mask and sentinels come last, so that pieces have the same ids with and without them.
        known = len(SPECIALS) + len(self._pieces)
        self.mask = known if has_mask else None
        self.size = known + has_mask + num_sentinels
        self.sentinels = tuple(range(known + has_mask, self.size))
        self.first: tuple[int, ...] = (self.bos,) if has_mask else ()
        self.last: tuple[int, ...] = (self.eos,)
        self.between: tuple[int, ...] | None = self.last if has_mask else None

    # `train`, `cut` and `join` are a plug-in's own: ids, files and spans follow from them.
    @classmethod
    def train(cls, spec: TokenizerSpec, texts: Iterable[str]) -> Self:
        """Learn the pieces of a corpus.

        Args:
            spec: settings of the tokenizer; four tokens of `vocabulary_size` are special ones.
            texts: lines of text, which can be iterated repeatedly.
        """
        raise NotImplementedError

    def cut(self, text: str) -> list[str]:
        """Split a text into pieces, which may be outside of the vocabulary."""
        raise NotImplementedError

    def join(self, pieces: Sequence[str]) -> str:
        """Join pieces to a text; an unknown piece is U+2047."""
        raise NotImplementedError

    @classmethod
    def known_as(cls) -> str:
        return cls.kind

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(piece, self.unk) for piece in self.cut(text)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text and the span of each; empty if the token is not in the text."""
        spans, end = [], 0
        # `cut` may normalise: a piece that the text does not spell gets an empty span.
        for piece in self.cut(text):
            start = text.find(piece, end)
            start, end = (start, start + len(piece)) if start >= 0 else (end, end)
            spans.append((start, end))
        return self.encode(text), spans

    def encode_masked(self, text: str, name: str, gaps: Sequence[int] | None = None) -> list[int]:
        return fill_gaps(self.encode_batch(text.split(name)), gaps, self.mask)

    def encode_dropout(self, text: str, dropout: float, seed: int) -> NoReturn:
        raise self._lacks("merges to leave out (objective.bpe_dropout)")

    def decode(self, ids: Sequence[int]) -> str:
        beyond = len(SPECIALS) + len(self._pieces)
        shown = (id for id in map(int, ids) if id == self.unk or len(SPECIALS) <= id < beyond)
        return self.join([UNKNOWN if id == self.unk else self.token(id) for id in shown])

    def token(self, id: int) -> str:
        if id < len(SPECIALS):
            return f"<{SPECIALS[id]}>"
        number = id - len(SPECIALS)
        if number < len(self._pieces):
            return self._pieces[number]
        return "<mask>" if id == self.mask else f"<sentinel{self.sentinels.index(id)}>"

    def content(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "pieces": self._pieces,
            "has_mask": self.mask is not None,
            "num_sentinels": len(self.sentinels),
        }

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> Self:
        content = json.loads(text)
        names = ("pieces", "has_mask", "num_sentinels")
        if content["schema_version"] != SCHEMA_VERSION or not content.keys() >= set(names):
            raise damaged(where, "a field is missing, or the version is another")
        pieces, has_mask, num_sentinels = (content[name] for name in names)
        return cls(pieces, has_mask=has_mask, num_sentinels=num_sentinels)

    def for_encoder(self) -> Self:
        """Return the same tokenizer with a mask token, for a model that has no decoder."""
        return type(self)(self._pieces, has_mask=True)

    def with_sentinels(self, count: int) -> Self:
        """Return the same tokenizer with this many tokens that stand for gaps in a text."""
        return type(self)(self._pieces, num_sentinels=count)

    def extended(self, tokens: Sequence[str]) -> NoReturn:
        # `cut` would not know tokens that are added later.
        raise self._lacks("room for more tokens")

    def _lacks(self, thing: str) -> ConfigError:
        return ConfigError(
            f"A tokenizer of kind {self.kind!r}, from outside the package, has no {thing}",
            where="tokenizer.kind",
            remedy="Leave the setting out, or use bpe, byte-bpe, unigram or characters",
        )
