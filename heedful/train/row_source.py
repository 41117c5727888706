"""Rows of texts as batches: which ones is a function of the seed, the epoch and the place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from heedful.data.rows import Rows, cut_texts, plan_rows, validation_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heedful.data.encoded import Indices
    from heedful.data.stream import EncodedTexts
    from heedful.text.protocol import TextTokenizer
    from heedful.train.settings import RunSettings
    from heedful.train.update import Batch


class RowWork(Protocol):
    """What a task makes of rows."""

    @property
    def tokenizer(self) -> TextTokenizer:
        """Of the texts; gives the frame."""
        ...

    def sizes(self, rows: Rows) -> Indices:
        """Tokens of each row [N] that a batch must have room for."""
        ...

    def batch(
        self, texts: EncodedTexts, rows: Rows, indices: Indices, *, seed: int, epoch: int
    ) -> Batch:
        """Rows side by side with what is to be predicted, a function of all arguments.

        Args:
            texts: the stream.
            rows: of the stream.
            indices: which of the rows.
            seed: of the run.
            epoch: counted from 0.
        """
        ...


class RowSource:
    """Batches of rows. Where long texts are cut into rows differs by epoch.

    Args:
        texts: the stream.
        work: makes batches.
        settings: of the run: row length, budget, seed, weights of the files.
    """

    def __init__(self, texts: EncodedTexts, work: RowWork, settings: RunSettings) -> None:
        self.texts = texts
        self.work = work
        self.settings = settings
        self._epoch: tuple[int, Rows, list[Indices]] | None = None

    def count(self, epoch: int) -> int:
        """Batches of an epoch."""
        return len(self._planned(epoch)[1])

    def batch(self, epoch: int, number: int) -> Batch:
        """One batch of an epoch."""
        rows, batches = self._planned(epoch)
        seed = self.settings.seed
        return self.work.batch(self.texts, rows, batches[number], seed=seed, epoch=epoch)

    def lines(self, indices: Sequence[int]) -> list[str]:
        """`file:line` of the texts in which rows start."""
        return [self.texts.line_of(index) for index in indices]

    def _planned(self, epoch: int) -> tuple[Rows, list[Indices]]:
        if self._epoch is None or self._epoch[0] != epoch:
            data, seed = self.settings.data, self.settings.seed
            rows = cut_texts(
                self.texts, self.work.tokenizer, data.max_length, seed=seed, epoch=epoch
            )
            weights = [corpus.weight for corpus in data.train]
            sizes = self.work.sizes(rows)
            batches = plan_rows(
                rows, self.texts, weights, data, seed=seed, epoch=epoch, sizes=sizes
            )
            self._epoch = (epoch, rows, batches)
        return self._epoch[1:]


class ValidationRows:
    """All rows of validation texts, the same ones in the same batches each time.

    They do not depend on the run's seed, so that the losses of runs can be compared.

    Args:
        texts: the stream.
        work: makes batches.
        settings: of the run: row length and budget.
    """

    def __init__(self, texts: EncodedTexts, work: RowWork, settings: RunSettings) -> None:
        self.texts = texts
        self.work = work
        data = settings.data
        self.rows = cut_texts(texts, work.tokenizer, data.max_length, seed=0, epoch=0)
        self.batches = validation_rows(self.rows, texts, data, work.sizes(self.rows))

    def __iter__(self) -> Iterator[Batch]:
        for indices in self.batches:
            yield self.work.batch(self.texts, self.rows, indices, seed=0, epoch=0)
