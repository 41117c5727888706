"""The tokenizers of a translator: one for both languages, or one for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from heedful.text.imported_tokenizer import ImportedTokenizer, is_imported
from heedful.text.text_tokenizer import TextTokenizer, read_text
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

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
    if is_imported(text):
        return ImportedTokenizer.from_json(text, where=str(path))
    return Tokenizer.from_json(text, where=str(path))


@dataclass(frozen=True)
class _Chained:
    """Two collections of lines, one after the other, as often as wanted."""

    first: Iterable[str]
    second: Iterable[str]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.first, self.second)


def train_pair(
    spec: TokenizerSpec, sources: Iterable[str], targets: Iterable[str]
) -> TokenizerPair:
    """Train one tokenizer on both languages, or one on each, as `spec.joint` says.

    Args:
        spec: settings of the tokenizers.
        sources: lines of the source language.
        targets: lines of the target language.

    Raises:
        ConfigError: when the vocabulary size leaves no room for pieces.
        DataError: when there is no text.
    """
    if not spec.joint:
        return TokenizerPair(train_tokenizer(spec, sources), train_tokenizer(spec, targets))
    # A one-shot iterator would be used up by the first of the trainer's two passes.
    sources = list(sources) if iter(sources) is sources else sources
    targets = list(targets) if iter(targets) is targets else targets
    tokenizer = train_tokenizer(spec, _Chained(sources, targets))
    return TokenizerPair(tokenizer, tokenizer)
