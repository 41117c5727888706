"""The tokenizer: text to ids and back, the same for every kind, saved as one JSON file."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import tokenizers

from heedful.errors import ConfigError, DataError, ModelError
from heedful.text.byte_pieces import piece_bytes
from heedful.text.merges import MergeTable
from heedful.text.words import MARK, Marking

Kind = Literal["bpe", "byte-bpe", "unigram", "characters"]

SCHEMA_VERSION = 1
SPECIALS = ("pad", "bos", "eos", "unk")
MASK = "mask"
"""A fifth special token, of tokenizers that `for_encoder` made."""
UNKNOWN = "\u2047"
"""What `decode` shows for a token that stands for unknown characters."""

_SHOWN = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>", MASK: "<mask>"}


def special_piece(name: str) -> str:
    """The vocabulary entry of a special token.

    A word never has the mark after another character, so no text can be cut into this piece, and
    "</s>" typed by a user stays ordinary text.
    """
    return f"<{name}>{MARK}"


class Tokenizer:
    """Text to ids and back.

    Special tokens are ids in fields; `encode` never gives them, whatever the text says (but `unk`
    for characters that were not in the training text), and `decode` leaves them out.

    Args:
        kind: `bpe`, `byte-bpe`, `unigram` or `characters`.
        lowercase: whether case is folded before splitting.
        special: ids of pad, bos, eos and unk, and of mask where there is one.
        state: the `tokenizers` library's serialisation, as nested plain data.

    Attributes:
        size: V, the number of ids.
        pad, bos, eos, unk: ids of the special tokens.
        mask: id of the token that hides another, or None.
        first, last: ids before and after a text where an encoder reads it.
        fingerprint: SHA-256 of the content, in hexadecimal.
    """

    def __init__(
        self, kind: Kind, lowercase: bool, special: Mapping[str, int], state: Mapping[str, Any]
    ) -> None:
        self.kind = kind
        self.lowercase = lowercase
        self._state = state
        self._special = {name: special[name] for name in SPECIALS}
        self.mask = special.get(MASK)
        if self.mask is not None:
            self._special[MASK] = self.mask
        self.pad, self.bos, self.eos, self.unk = (special[name] for name in SPECIALS)
        self.first: tuple[int, ...] = () if self.mask is None else (self.bos,)
        self.last: tuple[int, ...] = (self.eos,)
        self._library = tokenizers.Tokenizer.from_str(json.dumps(state))
        self.size: int = self._library.get_vocab_size()
        self._marking = Marking(kind, lowercase)
        self._merge_table: MergeTable | None = None
        self._pieces = self._read_pieces()
        self.fingerprint = hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts, in their order, using all processors.

        Raises:
            DataError: when a text is not valid Unicode (a lone surrogate).
        """
        marked = [self._marking.mark(text) for text in texts]
        try:
            encodings = self._library.encode_batch_fast(marked, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise not_unicode(texts) from None
        return [encoding.ids for encoding in encodings]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a text as `encode` gives them, and the characters each is made of.

        Args:
            text: to be cut into pieces.

        Returns:
            Ids, and for each the index of its first character and of the one after its last.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        try:
            encoding = self._library.encode(self._marking.mark(text), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise not_unicode([text]) from None
        origin = self._marking.origin(text)
        spans = [(origin[start][0], origin[end - 1][1]) for start, end in encoding.offsets]
        return encoding.ids, spans

    def encode_masked(self, text: str, name: str) -> list[int]:
        """Ids of a text in which `name` stands for a hidden piece and the space before it.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        assert self.mask is not None
        parts = self._marking.mark_around(text, name)
        try:
            encodings = self._library.encode_batch_fast(parts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise not_unicode([text]) from None
        first, *others = [encoding.ids for encoding in encodings]
        return first + [id for ids in others for id in (self.mask, *ids)]

    def encode_dropout(self, text: str, dropout: float, seed: int) -> list[int]:
        """Ids of a text with BPE-dropout (Provilkov 2020).

        Args:
            text: one line.
            dropout: probability that a possible merge is left out of a step, in [0, 1].
            seed: the result is a function of text, dropout and seed.

        Raises:
            ConfigError: when the tokenizer has no merges to leave out.
            DataError: when the text is not valid Unicode (a lone surrogate).
        """
        table = self._merges()
        assert 0 <= dropout <= 1, dropout
        splitter = self._library.pre_tokenizer
        assert splitter is not None
        try:
            words = splitter.pre_tokenize_str(self._marking.mark(text))
        except (TypeError, UnicodeEncodeError):
            raise not_unicode([text]) from None
        draw = random.Random(seed).random
        return [piece for word, _ in words for piece in table.split(word, dropout, draw)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids. Special tokens are left out; an unknown token shows as U+2047.

        Bytes that are not UTF-8 together (a byte-level model may produce such) show as U+FFFD.
        """
        text = b"".join([self._pieces[int(i)] for i in ids])
        return self._marking.unmark(text.decode("utf-8", errors="replace"))

    def token(self, id: int) -> str:
        """The piece behind an id, for display: spaces as U+2581, special tokens in brackets."""
        for name, special in self._special.items():
            if id == special:
                return _SHOWN[name]
        piece = self._pieces[id].decode("utf-8", errors="replace")
        return piece.replace(" ", MARK) if self.kind == "byte-bpe" else piece

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces behind ids, for display."""
        return [self.token(int(i)) for i in ids]

    def to_json(self) -> str:
        """The whole tokenizer as JSON; equal tokenizers give equal text."""
        content = {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "lowercase": self.lowercase,
            "special": self._special,
            "tokenizer": self._state,
        }
        return json.dumps(content, sort_keys=True, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> Self:
        """Read what `to_json` wrote.

        Args:
            text: the JSON.
            where: the file it came from, for the error message.

        Raises:
            ModelError: when the text is damaged, of another project, or of a newer version.
        """
        content = _check_content(text, where)
        try:
            # The library raises bare exceptions of its own for content it does not understand.
            return cls(
                content["kind"], content["lowercase"], content["special"], content["tokenizer"]
            )
        except Exception as error:
            raise damaged(where, str(error)) from None

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a tokenizer file.

        Raises:
            ModelError: when it is missing, damaged, of another project, or of a newer version.
        """
        return cls.from_json(read_text(path), where=str(path))

    def for_encoder(self) -> Self:
        """The same tokenizer for a model that has no decoder.

        It has a mask token, whose id comes after all others, and bos stands before a text, so that
        there is a state for the whole. No text can be cut into the mask token, so every text has
        the ids it had.
        """
        if self.mask is not None:
            return self
        state = copy.deepcopy(dict(self._state))
        vocabulary, piece = state["model"]["vocab"], special_piece(MASK)
        if isinstance(vocabulary, list):
            vocabulary.append([piece, 0.0])  # unigram: pieces in the order of their ids
        else:
            vocabulary[piece] = self.size
        return type(self)(self.kind, self.lowercase, {**self._special, MASK: self.size}, state)

    def _read_pieces(self) -> list[bytes]:
        """What every id says in UTF-8, marks included; pad, bos, eos and mask say nothing."""
        pieces = [b""] * self.size
        for piece, id in self._library.get_vocab(with_added_tokens=False).items():
            if id in self._special.values():
                continue
            pieces[id] = piece_bytes(piece) if self.kind == "byte-bpe" else piece.encode()
        pieces[self.unk] = UNKNOWN.encode()
        return pieces

    def _merges(self) -> MergeTable:
        if self._merge_table is None:
            if self.kind not in ("bpe", "byte-bpe"):
                raise ConfigError(
                    f"BPE-dropout needs a BPE tokenizer, and this one is of kind {self.kind!r}",
                    where="objective.bpe_dropout",
                    remedy="Set it to 0, or tokenizer.kind to bpe or byte-bpe",
                )
            model = self._state["model"]
            merges = [cast(tuple[str, str], tuple(merge)) for merge in model["merges"]]
            unk = None if self.kind == "byte-bpe" else self.unk
            self._merge_table = MergeTable(model["vocab"], merges, unk)
        return self._merge_table


def read_text(path: Path) -> str:
    """The content of a tokenizer file.

    Raises:
        ModelError: when it is missing or no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(
            "There is no tokenizer here",
            where=str(path),
            remedy="Check that the path is a model directory",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(str(path), str(error)) from None


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
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ModelError(
            f"The tokenizer has schema version {version}, newer than {SCHEMA_VERSION}",
            where=where,
            remedy="Update Heedful",
        )
    special = content.get("special")
    sound = (
        version == SCHEMA_VERSION
        and content.get("kind") in get_args(Kind)
        and isinstance(content.get("lowercase"), bool)
        and isinstance(content.get("tokenizer"), dict)
        and isinstance(special, dict)
        and all(type(special.get(name)) is int for name in SPECIALS)
        and type(special.get(MASK, 0)) is int
    )
    if not sound:
        raise damaged(where, "a field is missing or of the wrong type")
    return content


def damaged(where: str, detail: str) -> ModelError:
    """The error about a tokenizer file that is not whole, to be raised."""
    return ModelError(
        f"The tokenizer cannot be read ({detail})",
        where=where,
        remedy="The file is damaged; restore it from where the model came from",
    )


def not_unicode(texts: Sequence[str]) -> DataError:
    """The error about the first of these texts that no tokenizer can take, to be raised."""
    for number, text in enumerate(texts, start=1):
        for position, character in enumerate(text):
            if "\ud800" <= character <= "\udfff":
                return DataError(
                    f"Text {number} holds half a surrogate pair (U+{ord(character):04X}) at "
                    f"character {position + 1}, which is not Unicode text",
                    remedy="Read the text as UTF-8",
                )
    return DataError("The text is not Unicode text", remedy="Pass strings, read as UTF-8")
