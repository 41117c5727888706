"""Tokenizers of imported models, with exactly the original pieces, ids and behaviour."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from heedful.errors import ConfigError
from heedful.text.pretokenization import MARK, bytes_piece, piece_bytes
from heedful.text.tokenizer import (
    SPECIALS,
    UNKNOWN,
    TextTokenizer,
    damaged,
    refuse_newer,
    stand_ins,
)
from heedful.text.tokenizers_library import (
    Library,
    added_token,
    adds_nothing_but_case,
    library_errors,
    with_tokens,
)

KIND = "imported"
_SENTINEL = "<extra_id_{}>"


@dataclass(frozen=True)
class Frame:
    """Special tokens around a text that is a model's input.

    Args:
        first: ids before the text, such as [CLS].
        last: ids after the text, such as [SEP].
        between: ids between a first and a second text; None for a model that takes no pairs.
    """

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    between: tuple[int, ...] | None = None


class ImportedTokenizer(TextTokenizer):
    """A tokenizer of another project.

    `encode` gives the same ids as the original without special tokens. As in the original, a
    special token that is spelled out in the text, such as "[MASK]", becomes that token. `size` is
    one more than the highest id. Where the original lacks one of pad, bos, eos and unk, its id is
    that of the most similar token. `sentinels` are T5's, <extra_id_0>, <extra_id_1> …

    Args:
        special: ids of pad, bos, eos and unk, and of mask if there is one.
        frame: special tokens around a text.
        state: serialisation of the `tokenizers` library, as nested plain data.
        vocabulary: ids of the pieces where they differ from the library's (Marian).

    Attributes:
        decoders: kinds of the steps by which the library makes text of pieces.
    """

    is_imported = True

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
        self.pad, self.bos, self.eos, self.unk = (special[name] for name in SPECIALS)
        self.mask = special.get("mask")
        self.first, self.last, self.between = frame.first, frame.last, frame.between
        self._library = Library(state)
        library = self._library.tokenizer
        # A file may ask for both, which would change the ids of a text in a batch.
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
            # Library id to model id; pieces that the model does not have become unknown.
            self._renumbered = [self.unk] * (max(library_ids.values()) + 1)
            for piece, id in library_ids.items():
                self._renumbered[id] = vocabulary.get(piece, self.unk)
        self._silent = self._find_silent()
        decoder = state.get("decoder") or {}
        steps = decoder.get("decoders", [decoder])
        self.decoders = {str(step.get("type")) for step in steps}
        self._in_bytes = "ByteLevel" in self.decoders
        # Added tokens are spelled as text, but the decoder takes all pieces for byte-level ones.
        if self._in_bytes:
            for id, token in library.get_added_tokens_decoder().items():
                if not token.special:
                    self._pieces[id] = bytes_piece(token.content.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if self.vocabulary is None or self._renumbered is None:
            return self._library.encode(texts)
        codes, rests = zip(*map(_cut_code, texts), strict=True) if texts else ((), ())
        # Marian's language codes are in its vocabulary, not in its SentencePiece model.
        numbers, known = self._renumbered, self.vocabulary
        rows = self._library.encode(rests, texts)
        return [
            ([known.get(code, self.unk)] if code else []) + [numbers[id] for id in row]
            for code, row in zip(codes, rows, strict=True)
        ]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
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
        # A text may also spell the mask token itself, so the gaps are spelled, not inserted as ids.
        parts = text.split(name)
        pieces = map(self._piece, stand_ins(gaps, self.mask, len(parts) - 1))
        return self.encode("".join(itertools.chain(*zip(parts, [*pieces, ""], strict=True))))

    def encode_dropout(self, text: str, dropout: float, seed: int) -> list[int]:
        raise ConfigError(
            "BPE-dropout cannot be used with an imported tokenizer",
            where="objective.bpe_dropout",
            remedy="Set it to 0",
        )

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [
            UNKNOWN if id == self.unk else self._piece(id)
            for id in map(int, ids)
            if id not in self._silent
        ]
        decoder = self._library.tokenizer.decoder
        # Without a decoder the library joins pieces by spaces, too.
        if decoder is None:
            return " ".join(pieces)
        text: str = self._library.call(lambda: decoder.decode(pieces), pieces)
        return text

    def token(self, id: int) -> str:
        piece = self._piece(id)
        if not self._in_bytes:
            return piece
        try:
            return piece_bytes(piece).decode("utf-8", errors="replace").replace(" ", MARK)
        except KeyError:  # an added token, spelled as text
            return piece

    def content(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "special": self.special,
            "first": self.frame.first,
            "last": self.frame.last,
            "between": self.frame.between,
            "vocabulary": self.vocabulary,
            "tokenizer": self.state,
        }

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> Self:
        with library_errors(lambda message: damaged(where, message)):
            content = json.loads(text)
            refuse_newer(content["schema_version"], where)
            between = content["between"]
            frame = Frame(
                tuple(content["first"]),
                tuple(content["last"]),
                None if between is None else tuple(between),
            )
            return cls(content["special"], frame, content["tokenizer"], content["vocabulary"])

    def extended(self, tokens: Sequence[str]) -> Self:
        fresh = []
        for token in tokens:
            ids = self.encode(token)
            if len(ids) != 1 or ids[0] == self.unk:
                normalized = adds_nothing_but_case(self._library.tokenizer.normalizer, token)
                fresh.append(added_token(token, normalized=normalized))
        if self.vocabulary is None:
            state = with_tokens(self.state, fresh, first=self.size)
            return type(self)(self.special, self.frame, state)
        # The library's ids may have gaps here: only those of the model's own vocabulary count.
        state = with_tokens(self.state, fresh, first=None)
        names = [token.content for token in fresh if token.content not in self.vocabulary]
        numbers = {name: self.size + place for place, name in enumerate(dict.fromkeys(names))}
        return type(self)(self.special, self.frame, state, {**self.vocabulary, **numbers})

    def spoken(self) -> list[str]:
        """Return the piece of each id, "" where `decode` leaves it out or it is unknown."""
        silent = self._silent | {self.unk}
        return ["" if id in silent else piece for id, piece in enumerate(self._pieces)]

    def _piece(self, id: int) -> str:
        # Models often have more embeddings than their tokenizer has pieces, up to a round number.
        return self._pieces[id] if id < self.size else ""

    def _find_silent(self) -> frozenset[int]:
        """Return the ids that `decode` leaves out."""
        added = self._library.tokenizer.get_added_tokens_decoder()
        marked = {id for id, token in added.items() if token.special}
        if self._renumbered is not None:
            marked = {self._renumbered[id] for id in marked}
        named = {id for name, id in self.special.items() if name != "unk"}
        frame = {*self.first, *self.last, *(self.between or ())}
        return frozenset((marked - {self.unk}) | named | frame)


def _cut_code(text: str) -> tuple[str, str]:
    """Split a text into Marian's code of a target language, such as >>fra<<, and the rest."""
    end = text.find("<<")
    if text.startswith(">>") and end != -1:
        return text[: end + 2], text[end + 2 :]
    return "", text
