"""The tokenizers of a translator: one for both languages, or one for each."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from heedful.errors import ModelError
from heedful.text.pretokenization import is_of_word
from heedful.text.tokenizer import TextTokenizer, Tokenizer, read_text

if TYPE_CHECKING:  # few models have any, and a cold start loads as little as it can
    from heedful.text.protected_spans import Protection, SpanKind

_FILE = "tokenizer.json"
_TARGET_FILE = "target_tokenizer.json"
PROTECTION_FILE = "protected_spans.json"


@dataclass(frozen=True)
class TokenizerPair:
    """A tokenizer for the source and one for the target; the same object when joint.

    Args:
        source: of the source.
        target: of the target.
        protection: parts of texts that the model reads and writes as reserved tokens; None for a
            model without such tokens.
    """

    source: TextTokenizer
    target: TextTokenizer
    protection: Protection | None = None

    @property
    def joint(self) -> bool:
        """True if both languages share one tokenizer."""
        return self.source is self.target

    @functools.cached_property
    def word_edges(self) -> tuple[list[bool], list[bool]]:
        """For each target token: does it begin inside a word, and does it end inside one?"""
        target = self.target
        special = {target.pad, target.bos, target.eos}
        begins, ends = [False] * target.size, [False] * target.size
        for id, piece in enumerate(target.pieces(range(target.size))):
            letters = piece.removeprefix("##")  # WordPiece's mark of a piece inside a word
            if letters and id not in special:
                begins[id], ends[id] = is_of_word(letters[0]), is_of_word(letters[-1])
        return begins, ends

    @property
    def fingerprint(self) -> str:
        """Changes when either tokenizer does, or the parts that are protected."""
        tokenizers = f"{self.source.fingerprint}-{self.target.fingerprint}"
        return tokenizers if self.protection is None else f"{tokenizers}-{self._protection_json()}"

    @functools.cached_property
    def reserved(self) -> dict[str, int]:
        """The target's token of each reserved character; empty without protection."""
        if self.protection is None:
            return {}
        from heedful.text.protected_spans import RESERVED

        return {mark: self.target.encode(f"({mark}")[-1] for mark in RESERVED}

    def protecting(self, kinds: Sequence[SpanKind]) -> TokenizerPair:
        """The same pair with reserved tokens, for a model that is to be trained with them.

        Args:
            kinds: of the parts that they stand for.
        """
        from heedful.text.protected_spans import RESERVED, Protection

        source = self.source.extended(RESERVED)
        target = source if self.joint else self.target.extended(RESERVED)
        return TokenizerPair(source, target, Protection(tuple(kinds)))

    def _protection_json(self) -> str:
        assert self.protection is not None
        kinds = list(self.protection.kinds)
        return json.dumps({"schema_version": 1, "kinds": kinds}, sort_keys=True) + "\n"

    def files(self) -> dict[str, str]:
        """Names and contents of the files that hold the pair in a model directory."""
        files = {_FILE: self.source.to_json()}
        if not self.joint:
            files[_TARGET_FILE] = self.target.to_json()
        if self.protection is not None:
            files[PROTECTION_FILE] = self._protection_json()
        return files

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json`, and `target_tokenizer.json` when not joint, into a directory."""
        for name, content in self.files().items():
            (directory / name).write_text(content, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ModelError: naming the file that is missing or damaged.
        """
        source = read_tokenizer(directory / _FILE)
        separate = directory / _TARGET_FILE
        target = read_tokenizer(separate) if separate.exists() else source
        return cls(source, target, _read_protection(directory / PROTECTION_FILE))


def read_tokenizer(path: Path) -> TextTokenizer:
    """A tokenizer file of ours, of either kind.

    Raises:
        ModelError: when it is missing, damaged, of another project, or of a newer version.
    """
    text = read_text(path)
    if _is_imported(text):
        from heedful.text.imported_tokenizer import ImportedTokenizer

        return ImportedTokenizer.from_json(text, where=str(path))
    return Tokenizer.from_json(text, where=str(path))


def _read_protection(path: Path) -> Protection | None:
    """Read the kinds of parts that a model protects, if it does.

    Raises:
        ModelError: when the file is damaged or of a newer version.
    """
    if not path.exists():
        return None
    from heedful.text.protected_spans import SPAN_KINDS, Protection

    try:
        content = json.loads(read_text(path))
        version, kinds = content["schema_version"], content["kinds"]
        sound = version == 1 and bool(kinds) and set(kinds) <= set(SPAN_KINDS)
    except (ValueError, TypeError, KeyError, RecursionError):
        sound = False
    if not sound:
        raise ModelError(
            "This is no list of the parts of texts that this version of Heedful can protect",
            where=str(path),
            remedy="Restore the file from where the model came from, or update Heedful",
        )
    return Protection(tuple(kinds))


def _is_imported(text: str) -> bool:
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("kind") == "imported"
