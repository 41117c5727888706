"""The tokenizers of a translator: one for both languages, or one for each."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from heedful.text.pretokenization import is_of_word
from heedful.text.tokenizer import TextTokenizer, Tokenizer, read_text

_FILE = "tokenizer.json"
_TARGET_FILE = "target_tokenizer.json"


@dataclass(frozen=True)
class TokenizerPair:
    """A tokenizer for the source and one for the target; the same object when joint."""

    source: TextTokenizer
    target: TextTokenizer

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
        """Changes when either tokenizer does."""
        return f"{self.source.fingerprint}-{self.target.fingerprint}"

    def files(self) -> dict[str, str]:
        """Names and contents of the files that hold the pair in a model directory."""
        files = {_FILE: self.source.to_json()}
        if not self.joint:
            files[_TARGET_FILE] = self.target.to_json()
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
        return cls(source, read_tokenizer(separate) if separate.exists() else source)


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


def _is_imported(text: str) -> bool:
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("kind") == "imported"
