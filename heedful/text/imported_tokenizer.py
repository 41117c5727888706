"""Tokenizers of imported models: the other project's pieces, ids and habits, kept exactly."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from heedful.errors import ConfigError, ModelError
from heedful.text.pretokenization import MARK, bytes_piece, piece_bytes
from heedful.text.tokenizer import UNKNOWN, damaged, framed, stand_ins
from heedful.text.tokenizers_library import (
    Added,
    Library,
    adds_nothing_but_case,
    library_errors,
    with_tokens,
)

KIND = "imported"
SCHEMA_VERSION = 1
REQUIRED = ("pad", "bos", "eos", "unk")
_SENTINEL = "<extra_id_{}>"


@dataclass(frozen=True)
class Frame:
    """Ids around a text where it is a model's input.

    Args:
        first: before the text, such as [CLS].
        last: after it, such as [SEP].
        between: between a first and a second text; None where a model takes no pairs.
    """

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    between: tuple[int, ...] | None = None


class ImportedTokenizer:
    """Text to ids and back as another project does it.

    `encode` gives the same ids as the original does without special tokens. That includes the
    original's habit of taking a special token that the text spells out, such as "[MASK]", for that
    token. `decode` leaves special tokens out and shows the unknown one as U+2047.

    Args:
        special: ids of pad, bos, eos and unk, and of mask where there is one.
        frame: what stands around a text.
        state: the `tokenizers` library's serialisation, as nested plain data.
        vocabulary: ids of the pieces, where they are not the library's own (Marian).

    Attributes:
        size: V, one more than the highest id.
        pad, bos, eos, unk: ids; where the original has no such token, that of the nearest.
        mask: id of the token that hides another, or None.
        sentinels: ids of <extra_id_0>, <extra_id_1> …, T5's names for gaps; empty for others.
        first, last, between: see `Frame`.
    """

    def __init__(
        self,
        special: Mapping[str, int],
        frame: Frame,
        state: Mapping[str, Any],
        vocabulary: Mapping[str, int] | None = None,
    ) -> None:
        self.special = dict(special)
        self.frame = frame
        self.state = state
        self.vocabulary = vocabulary
        self.pad, self.bos, self.eos, self.unk = (special[name] for name in REQUIRED)
        self.mask = special.get("mask")
        self.first, self.last, self.between = frame.first, frame.last, frame.between
        self._library = Library(state)
        library = self._library.tokenizer
        library.no_padding()
        library.no_truncation()
        library_ids = library.get_vocab(with_added_tokens=True)
        own_ids = library_ids if vocabulary is None else vocabulary
        self.size = max(own_ids.values()) + 1
        self._pieces = [""] * self.size
        for piece, id in own_ids.items():
            self._pieces[id] = piece
        named = itertools.takewhile(own_ids.__contains__, map(_SENTINEL.format, itertools.count()))
        self.sentinels = tuple(own_ids[name] for name in named)
        self._renumbered: list[int] | None = None
        if vocabulary is not None:
            self._renumbered = [self.unk] * (max(library_ids.values()) + 1)
            for piece, id in library_ids.items():
                self._renumbered[id] = vocabulary.get(piece, self.unk)
        self._silent = self._find_silent()
        decoder = state.get("decoder") or {}
        steps = decoder.get("decoders", [decoder])
        self._in_bytes = any(step.get("type") == "ByteLevel" for step in steps)
        if self._in_bytes:  # the decoder wants added tokens, which are spelled as they are, so too
            for id, token in library.get_added_tokens_decoder().items():
                if not token.special:
                    self._pieces[id] = bytes_piece(token.content.encode())

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without the special tokens that frame it.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts, in their order, using all processors.

        Raises:
            DataError: when a text is not valid Unicode (a lone surrogate).
        """
        if self.vocabulary is None or self._renumbered is None:
            return self._library.encode(texts)
        codes, rests = zip(*map(_cut_code, texts), strict=True) if texts else ((), ())
        numbers, known = self._renumbered, self.vocabulary
        rows = self._library.encode(rests, texts)
        return [
            ([known.get(code, self.unk)] if code else []) + [numbers[id] for id in row]
            for code, row in zip(codes, rows, strict=True)
        ]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a text as `encode` gives them, and the characters each is made of.

        Args:
            text: to be cut into pieces.

        Returns:
            Ids, and for each the index of its first character and of the one after its last.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        if self.vocabulary is None or self._renumbered is None:
            return self._library.encode_spans(text)
        code, rest = _cut_code(text)
        library_ids, offsets = self._library.encode_spans(rest, text)
        cut = len(code)
        ids = [self._renumbered[id] for id in library_ids]
        spans = [(start + cut, end + cut) for start, end in offsets]
        if not code:
            return ids, spans
        return [self.vocabulary.get(code, self.unk), *ids], [(0, cut), *spans]

    def encode_masked(self, text: str, name: str, gaps: Sequence[int] | None = None) -> list[int]:
        """Ids of a text in which `name` stands for a hidden part; so does a token's own spelling.

        Args:
            text: with any number of such places.
            name: what they are called in it.
            gaps: the ids that stand there, one for each place; the mask token if None.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        parts = text.split(name)
        pieces = map(self._piece, stand_ins(gaps, self.mask, len(parts) - 1))
        return self.encode("".join(itertools.chain(*zip(parts, [*pieces, ""], strict=True))))

    def encode_dropout(self, text: str, dropout: float, seed: int) -> list[int]:
        """BPE-dropout is for tokenizers trained here.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "BPE-dropout cannot be used with an imported tokenizer",
            where="objective.bpe_dropout",
            remedy="Set it to 0",
        )

    def framed(self, ids: Sequence[int], second: Sequence[int] | None = None) -> list[int]:
        """A model's input: a text's ids, or two texts', with the special tokens around them.

        Args:
            ids: of the text, as `encode` gives them.
            second: of another text.

        Raises:
            ModelError: when there are two texts and the model takes no pairs.
        """
        return framed(self, ids, second)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids. Special tokens are left out; an unknown token shows as U+2047."""
        pieces = [
            UNKNOWN if id == self.unk else self._piece(id)
            for id in map(int, ids)
            if id not in self._silent
        ]
        decoder = self._library.tokenizer.decoder
        if decoder is None:
            return " ".join(pieces)
        text: str = self._library.call(lambda: decoder.decode(pieces), pieces)
        return text

    def token(self, id: int) -> str:
        """The piece behind an id, for display: spaces as U+2581."""
        piece = self._piece(id)
        if not self._in_bytes:
            return piece
        try:
            return piece_bytes(piece).decode("utf-8", errors="replace").replace(" ", MARK)
        except KeyError:  # added later and spelled as it is
            return piece

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces behind ids, for display."""
        return [self.token(int(i)) for i in ids]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The whole tokenizer as JSON; equal tokenizers give equal text."""
        content = {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "special": self.special,
            "first": self.frame.first,
            "last": self.frame.last,
            "between": self.frame.between,
            "vocabulary": self.vocabulary,
            "tokenizer": self.state,
        }
        return json.dumps(content, sort_keys=True, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> Self:
        """Read what `to_json` wrote.

        Args:
            text: the JSON.
            where: the file it came from, for the error message.

        Raises:
            ModelError: when the text is damaged, or of a newer version.
        """
        with library_errors(lambda message: damaged(where, message)):
            content = json.loads(text)
            version = content["schema_version"]
            if version > SCHEMA_VERSION:
                raise ModelError(
                    f"The tokenizer has schema version {version}, newer than {SCHEMA_VERSION}",
                    where=where,
                    remedy="Update Heedful",
                )
            between = content["between"]
            frame = Frame(
                tuple(content["first"]),
                tuple(content["last"]),
                None if between is None else tuple(between),
            )
            return cls(content["special"], frame, content["tokenizer"], content["vocabulary"])

    def extended(self, tokens: Sequence[str]) -> Self:
        """The same tokenizer with more tokens, whose ids come after all others.

        Args:
            tokens: as a text spells them. One that is a piece already adds nothing.
        """
        fresh: list[Added] = []
        for token in tokens:
            ids = self.encode(token)
            if len(ids) != 1 or ids[0] == self.unk:
                normalized = adds_nothing_but_case(self._library.tokenizer.normalizer, token)
                fresh.append(Added(token, normalized=normalized))
        if self.vocabulary is None:
            state = with_tokens(self.state, fresh, first=self.size)
            return type(self)(self.special, self.frame, state)
        state = with_tokens(self.state, fresh, first=None)
        names = [token.content for token in fresh if token.content not in self.vocabulary]
        numbers = {name: self.size + place for place, name in enumerate(dict.fromkeys(names))}
        return type(self)(self.special, self.frame, state, {**self.vocabulary, **numbers})

    def _piece(self, id: int) -> str:
        # Models often have more rows than their tokenizer has pieces; such a row says nothing.
        return self._pieces[id] if id < self.size else ""

    def _find_silent(self) -> frozenset[int]:
        """Ids that `decode` leaves out."""
        added = self._library.tokenizer.get_added_tokens_decoder()
        marked = {id for id, token in added.items() if token.special}
        if self._renumbered is not None:
            marked = {self._renumbered[id] for id in marked}
        named = {id for name, id in self.special.items() if name != "unk"}
        frame = {*self.first, *self.last, *(self.between or ())}
        return frozenset((marked - {self.unk}) | named | frame)


def _cut_code(text: str) -> tuple[str, str]:
    """A code such as >>fra<< that begins a text, and the rest; Marian's name for a language."""
    end = text.find("<<")
    if text.startswith(">>") and end != -1:
        return text[: end + 2], text[end + 2 :]
    return "", text
