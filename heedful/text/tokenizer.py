"""The tokenizer: conversion of text to ids and back for every kind, saved as one JSON file."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, cast, get_args

from heedful.config import TextNormalization, TokenizerKind
from heedful.durable import open_regular
from heedful.errors import ConfigError, ModelError
from heedful.text.pretokenization import MARK, Marking, piece_bytes
from heedful.text.tokenizers_library import (
    Library,
    added_spans,
    added_token,
    library_errors,
    with_tokens,
)

if TYPE_CHECKING:
    from heedful.text.bpe_dropout import MergeTable


class TextTokenizer(Protocol):
    """The interface and base class of tokenizers.

    `decode` leaves special tokens out.

    Attributes:
        is_imported: True for a tokenizer of another project, whose model may have more rows than
            it has tokens.
        size: vocabulary size V.
        pad, bos, eos, unk: ids of the special tokens.
        mask: id of the mask token, or None.
        sentinels: ids of the tokens that stand for different gaps in a text, in their order; most
            tokenizers have none.
        first, last: ids before and after a text in an encoder's input.
        between: ids between two texts in an encoder's input; None for a model that takes no pairs.
    """

    is_imported: bool
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

    # Computed on demand: translating does not need it, and it would serialise 8,000 tokens.
    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hexadecimal; equal tokenizers have equal fingerprints."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without the special tokens around it.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts, in their order; errors as for `encode`."""
        ...

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text, and the start and exclusive end of each in characters.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        ...

    def encode_masked(self, text: str, name: str, gaps: Sequence[int] | None = None) -> list[int]:
        """Return the ids of a text with gaps.

        Args:
            text: text with any number of gaps.
            name: spelling of a gap.
            gaps: ids of the gaps, in their order; the mask token for all if None.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        ...

    def encode_dropout(self, text: str, dropout: float, seed: int) -> list[int]:
        """Return the ids of a text with BPE-dropout (Provilkov 2020).

        Args:
            text: one line.
            dropout: probability that a possible merge is dropped in a step, in [0, 1].
            seed: seed of the draws; the result is a function of text, dropout and seed.

        Raises:
            ConfigError: when the tokenizer has no merges to leave out.
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens; an unknown token is shown as U+2047.

        Bytes that are no UTF-8, which a byte-level model may produce, are shown as U+FFFD.
        """
        ...

    def token(self, id: int) -> str:
        """Return the token of an id for display: U+2581 for a space, special ones in brackets."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of ids as text for display."""
        return [self.token(int(id)) for id in ids]

    def content(self) -> dict[str, Any]:
        """Return the fields of the file as plain data, without the version of its schema."""
        ...

    def to_json(self) -> str:
        """Return the whole tokenizer as JSON; equal tokenizers give equal text."""
        # Sorted keys: fingerprints, and folders of encoded corpora, are named after this text.
        content = {"schema_version": SCHEMA_VERSION, **self.content()}
        return json.dumps(content, sort_keys=True, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> Self:
        """Read what `to_json` wrote.

        Args:
            text: content of the file.
            where: path of the file, for the error message.

        Raises:
            ModelError: when the text is damaged, of another project, or of a newer version.
        """
        ...

    def extended(self, tokens: Sequence[str]) -> Self:
        """Return this tokenizer with more tokens, whose ids come after all others.

        Args:
            tokens: spellings of the tokens; one that is a single piece already adds nothing.
        """
        ...


def framed(
    tokenizer: TextTokenizer, ids: Sequence[int], second: Sequence[int] | None = None
) -> list[int]:
    """Put a tokenizer's special tokens around the ids of one text or of two.

    Args:
        tokenizer: tokenizer that gives `first`, `between` and `last`.
        ids: ids of the text, from `encode`.
        second: ids of a second text.

    Raises:
        ModelError: when there are two texts, and the model takes no pairs.
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
    """Return the ids for the gaps of a text: `gaps` if given, otherwise `count` mask tokens."""
    if gaps is not None:
        return gaps
    assert mask is not None
    return [mask] * count


def fill_gaps(
    parts: Sequence[list[int]], gaps: Sequence[int] | None, mask: int | None
) -> list[int]:
    """Return the ids of the parts of a text with the id of a gap between each two."""
    first, *others = parts
    hidden = zip(stand_ins(gaps, mask, len(others)), others, strict=True)
    return first + [id for gap, ids in hidden for id in (gap, *ids)]


def read_text(path: Path) -> str:
    """Read the content of a tokenizer file.

    Raises:
        ModelError: when the file is missing or not text.
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
    """Make the error for a damaged tokenizer file."""
    return ModelError(
        f"The tokenizer cannot be read ({detail})",
        where=where,
        remedy="The file is damaged; restore it from where the model came from",
    )


SCHEMA_VERSION = 1
# Trained vocabularies begin with these, imported ones may not: files store the ids.
SPECIALS = ("pad", "bos", "eos", "unk")
SENTINEL = "sentinel"
MASK = "mask"
"""Name of a fifth special token, which `for_encoder` adds."""
UNKNOWN = "\u2047"
"""Character that `decode` shows for the unknown token."""

_SHOWN = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>", MASK: "<mask>"}


def special_piece(name: str) -> str:
    """Return the vocabulary entry of a special token.

    In a word the space mark is never after another character, so no text is segmented into this
    piece, and "</s>" from a user stays ordinary text.
    """
    return f"<{name}>{MARK}"


def refuse_newer(version: int, where: str) -> None:
    """Refuse a schema version of a tokenizer file that is newer than this Heedful.

    Raises:
        ModelError: when it is newer.
    """
    if version > SCHEMA_VERSION:
        raise ModelError(
            f"The tokenizer has schema version {version}, newer than {SCHEMA_VERSION}",
            where=where,
            remedy="Update Heedful",
        )


class Tokenizer(TextTokenizer):
    """A tokenizer that Heedful has trained.

    `encode` never gives the ids of special tokens, whatever the text holds, except for `unk` for
    characters that were not in the training text.

    Args:
        kind: `bpe`, `byte-bpe`, `unigram` or `characters`.
        lowercase: folding of case before the splitting.
        special: ids of pad, bos, eos and unk, and of mask if there is one.
        state: serialisation of the `tokenizers` library, as nested plain data.
        sentinels: ids of the sentinels, in their order.
        normalization: rule of the spelling of all text (`TokenizerSpec.normalization`).

    Attributes:
        marking: conversion of a line to the text that is cut into pieces.
        contents: bytes of each id, with the mark of a space.
    """

    is_imported = False

    def __init__(
        self,
        kind: TokenizerKind,
        lowercase: bool,
        special: Mapping[str, int],
        state: Mapping[str, Any],
        sentinels: Sequence[int] = (),
        normalization: TextNormalization = "none",
    ) -> None:
        self.kind = kind
        self.lowercase = lowercase
        self.normalization = normalization
        self._state = state
        self._special = {name: special[name] for name in (*SPECIALS, MASK) if name in special}
        self.mask = special.get(MASK)
        self.sentinels = tuple(sentinels)
        self.pad, self.bos, self.eos, self.unk = (special[name] for name in SPECIALS)
        # A mask token marks a model without a decoder: bos is the state of the whole text there.
        self.first: tuple[int, ...] = () if self.mask is None else (self.bos,)
        self.last: tuple[int, ...] = (self.eos,)
        self.between: tuple[int, ...] | None = None if self.mask is None else self.last
        self._library = Library(state)
        self.size: int = self._library.tokenizer.get_vocab_size()
        self.marking = Marking(kind, lowercase, normalization)
        self._added = {token["id"]: token["content"] for token in state["added_tokens"]}
        self.contents = self._read_pieces()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._library.encode([self.marking.mark(text) for text in texts], texts)

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        ids, offsets = self._library.encode_spans(self.marking.mark(text), text)
        # The library counts characters of the marked text, which has a prefix and may be folded.
        origin = self.marking.origin(text)
        return ids, [(origin[start][0], origin[end - 1][1]) for start, end in offsets]

    def encode_masked(self, text: str, name: str, gaps: Sequence[int] | None = None) -> list[int]:
        return fill_gaps(
            self._library.encode(self.marking.mark_around(text, name), [text]), gaps, self.mask
        )

    def encode_dropout(self, text: str, dropout: float, seed: int) -> list[int]:
        table = self._merges
        assert 0 <= dropout <= 1, dropout
        splitter = self._library.tokenizer.pre_tokenizer
        assert splitter is not None
        marked = self.marking.mark(text)
        draw = random.Random(seed).random
        ids: list[int] = []
        # Added tokens are never segmented, so dropout is for the parts between them.
        for part in added_spans(self._library, marked, text) if self._added else [marked]:
            if isinstance(part, int):
                ids.append(part)
                continue
            cut = functools.partial(splitter.pre_tokenize_str, part)
            for word, _ in self._library.call(cut, [text]):
                ids += table.split(word, dropout, draw)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        # Bytes are joined before they are decoded: a character may be several byte-level pieces.
        text = b"".join([self.contents[int(i)] for i in ids])
        return self.marking.unmark(text.decode("utf-8", errors="replace"))

    def token(self, id: int) -> str:
        return self._shown[id]

    @functools.cached_property
    def _shown(self) -> list[str]:
        space = " " if self.marking.in_bytes else MARK
        pieces = [piece.decode(errors="replace").replace(space, MARK) for piece in self.contents]
        for number, id in enumerate(self.sentinels):
            pieces[id] = f"<{SENTINEL}{number}>"
        for name, id in self._special.items():
            pieces[id] = _SHOWN[name]
        return pieces

    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "kind": self.kind,
            "lowercase": self.lowercase,
            "special": self._special,
            "tokenizer": self._state,
        }
        # Left out if unused: files and fingerprints of tokenizers without them do not change.
        if self.sentinels:
            content["sentinels"] = self.sentinels
        if self.normalization != "none":
            content["normalization"] = self.normalization
        return content

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> Self:
        content = _check_content(text, where)
        with library_errors(lambda message: damaged(where, message)):
            return cls(
                content["kind"],
                content["lowercase"],
                content["special"],
                content["tokenizer"],
                content.get("sentinels", ()),
                content.get("normalization", "none"),
            )

    def for_encoder(self) -> Self:
        """Return this tokenizer for a model without a decoder.

        It has a mask token, whose id comes after all others, and puts bos before a text, whose
        state represents the text as a whole. No text is segmented into the mask token, so the ids
        of texts do not change.
        """
        # A tokenizer of an encoder has a mask token already, as that of a model named by --init.
        if self.mask is not None:
            return self
        special = {**self._special, MASK: self.size}
        return self._like(self._with([MASK]), special, self.sentinels)

    def with_sentinels(self, count: int) -> Self:
        """Return this tokenizer with sentinels, whose ids come after all others.

        No text is segmented into sentinels, so the ids of texts do not change.

        Args:
            count: number of sentinels.
        """
        assert not self.sentinels
        state = self._with([f"{SENTINEL}{number}" for number in range(count)])
        sentinels = range(self.size, self.size + count)
        return self._like(state, self._special, sentinels)

    def extended(self, tokens: Sequence[str]) -> Self:
        rows = zip(tokens, self.encode_batch(tokens), strict=True)
        fresh = [
            added_token(self.marking.within(token), normalized=False)
            for token, ids in rows
            # Texts that are a single token already need no second id.
            if len(ids) != 1 or ids[0] == self.unk
        ]
        state = with_tokens(self._state, fresh, first=self.size)
        return self._like(state, self._special, self.sentinels)

    def _like(self, state: Any, special: Mapping[str, int], sentinels: Sequence[int]) -> Self:
        """Return a tokenizer of other tokens that treats text as this one does."""
        kept = self.kind, self.lowercase
        return type(self)(*kept, special, state, sentinels, self.normalization)

    def _with(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the library's state with more special pieces, whose ids come after all others."""
        assert not self._added  # the ids of added tokens are the last, so nothing can follow them
        state = copy.deepcopy(dict(self._state))
        vocabulary = state["model"]["vocab"]
        for number, piece in enumerate(map(special_piece, names), start=self.size):
            if isinstance(vocabulary, list):
                vocabulary.append([piece, 0.0])  # unigram: a list of piece and score, by id
            else:
                vocabulary[piece] = number
        return state

    def _read_pieces(self) -> list[bytes]:
        """Return the UTF-8 bytes of every id, space marks included; empty for special tokens."""
        silent = {*self._special.values(), *self.sentinels}
        pieces = [b""] * self.size
        for piece, id in self._library.tokenizer.get_vocab(with_added_tokens=False).items():
            if id in silent:
                continue
            pieces[id] = piece_bytes(piece) if self.marking.in_bytes else piece.encode()
        for id, content in self._added.items():
            pieces[id] = content.encode()
        pieces[self.unk] = UNKNOWN.encode()
        return pieces

    @functools.cached_property
    def _merges(self) -> MergeTable:
        from heedful.text.bpe_dropout import MergeTable  # needed only in training

        if self.kind not in ("bpe", "byte-bpe"):
            raise ConfigError(
                f"BPE-dropout needs a BPE tokenizer, and this one is of kind {self.kind!r}",
                where="objective.bpe_dropout",
                remedy="Set it to 0, or tokenizer.kind to bpe or byte-bpe",
            )
        model = self._state["model"]
        merges = [cast(tuple[str, str], tuple(merge)) for merge in model["merges"]]
        unk = None if self.marking.in_bytes else self.unk
        return MergeTable(model["vocab"], merges, unk)


def _check_content(text: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise damaged(where, f"not JSON: {error}") from None
    if not isinstance(content, dict) or "schema_version" not in content:
        raise ModelError(
            "This is not a tokenizer that Heedful wrote",
            where=where,
            remedy="Import the other project's model first, or check the path",
        )
    version = content["schema_version"]
    if isinstance(version, int):
        refuse_newer(version, where)
    special = content.get("special")
    # Types are checked here: a wrong one would fail later, far from the file's name.
    sound = (
        version == SCHEMA_VERSION
        and content.get("kind") in get_args(TokenizerKind)
        and isinstance(content.get("lowercase"), bool)
        and isinstance(content.get("tokenizer"), dict)
        and isinstance(special, dict)
        and all(type(special.get(name)) is int for name in SPECIALS)
        and type(special.get(MASK, 0)) is int
        and isinstance(content.get("sentinels", []), list)
        and all(type(id) is int for id in content.get("sentinels", []))
        and content.get("normalization", "none") in get_args(TextNormalization)
    )
    if not sound:
        raise damaged(where, "a field is missing or of the wrong type")
    return content
