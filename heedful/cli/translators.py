"""What translates for `heedful translate`: with PyTorch, or a few lines without it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.cli.running import STANDARD, Running
from heedful.decode.segments import Warn
from heedful.decode.settings import SearchSettings
from heedful.memory import uncollected

if TYPE_CHECKING:
    from heedful.decode.lean.pipeline import LeanPipeline
    from heedful.decode.pipeline import TranslationPipeline
    from heedful.decode.translation import Translation


@dataclass(frozen=True)
class Asked:
    """What is asked for.

    Args:
        model: the directory.
        settings: of the search.
        running: how the model is run.
        alignment: whether alignments are wanted.
        prefixes: whether translations begin in a given way.
        continuous_batching: whether sentences take the places of those that are done.
        shortlist: whether the model's shortlist is used, or the file of another.
    """

    model: Path
    settings: SearchSettings
    running: Running
    alignment: bool
    prefixes: bool
    continuous_batching: bool
    shortlist: bool | Path

    @property
    def is_plain(self) -> bool:
        """Whether nothing is asked for but translations."""
        running = self.running
        return (
            not (self.alignment or self.prefixes or self.continuous_batching or self.shortlist)
            and not running.ensemble
            and running.batch_size is None
            and running.batch_tokens == STANDARD.batch_tokens
        )


class Translators:
    """Loads what is needed: PyTorch only for what cannot be done without it, or not as fast.

    Args:
        asked: for.

    Attributes:
        load_seconds: that loading has taken so far.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.load_seconds = 0.0
        self._whole: tuple[TranslationPipeline, int] | None = None
        self._lean = self._load_lean() if asked.is_plain else None
        if self._lean is None:  # before anything is read, so that what is wrong is said at once
            self._whole = self._load_whole()

    def translate(
        self, texts: Sequence[str], prefixes: Sequence[str] | None, first_line: int, warn: Warn
    ) -> list[Translation]:
        """A translation of each text.

        Args:
            texts: lines.
            prefixes: how their translations begin, if asked for.
            first_line: number of the first of them.
            warn: told about what was done differently.
        """
        asked = self.asked
        if self._lean is not None and self._lean.serves(texts):
            return self._lean.translate(texts, asked.settings, first_line=first_line, warn=warn)
        if self._whole is None:
            self._whole = self._load_whole()
        pipeline, positions = self._whole
        return pipeline.translate(
            texts,
            settings=asked.settings,
            prefixes=prefixes,
            alignment=asked.alignment,
            batch_size=asked.running.batch_size,
            batch_tokens=positions,
            continuous_batching=asked.continuous_batching,
            first_line=first_line,
            warn=warn,
        )

    def _load_lean(self) -> LeanPipeline | None:
        began = time.perf_counter()
        with uncollected():
            from heedful.decode.lean.pipeline import LeanPipeline, searches
        running, found = self.asked.running, None
        if searches(self.asked.settings):
            found = LeanPipeline.load(
                self.asked.model, device=running.device, precision=running.precision
            )
        self.load_seconds += time.perf_counter() - began
        return found

    def _load_whole(self) -> tuple[TranslationPipeline, int]:
        """The pipeline, and the positions of its batches."""
        asked, began = self.asked, time.perf_counter()
        pipeline = asked.running.load(asked.model, shortlist=asked.shortlist)
        positions = asked.running.positions(pipeline, asked.settings)
        self.load_seconds += time.perf_counter() - began
        return pipeline, positions
