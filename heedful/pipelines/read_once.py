"""A model that was read to see its kind, for the pipeline of that kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.models.checkpoint import ReadModel
    from heedful.text.tokenizer_pair import TokenizerPair


class ReadOnce:
    """A reader of a model directory that has read it already: its first call gives that model.

    Args:
        path: directory.
        read: reader of the directory, for all further calls.
    """

    def __init__(self, path: Path, read: ReadModel) -> None:
        self._read = read
        self._first: tuple[AnyModel, TokenizerPair | None] | None = read(path)
        self.spec = self._first[0].spec
        self.tokenizers = self._first[1]

    def __call__(self, path: Path) -> tuple[AnyModel, TokenizerPair | None]:
        # Given away: its weights become those of an engine.
        first, self._first = self._first, None
        return self._read(path) if first is None else first
