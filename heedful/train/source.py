"""Sentence pairs as the trainer's batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heedful.data.batches import BpeDropout, PairBatch, make_batch
from heedful.data.order import epoch_batches

if TYPE_CHECKING:
    from heedful.data.encoded import EncodedPairs, Indices
    from heedful.data.selection import Selection
    from heedful.train.settings import RunSettings


class PairSource:
    """Batches of sentence pairs; which ones is a function of the seed, the epoch and the place.

    Args:
        pairs: the encoded corpora.
        selection: which pairs to use.
        settings: of the run: budget, seed, BPE-dropout.
    """

    def __init__(self, pairs: EncodedPairs, selection: Selection, settings: RunSettings) -> None:
        self.pairs = pairs
        self.selection = selection
        self.settings = settings
        self._epoch: tuple[int, list[Indices]] | None = None

    def count(self, epoch: int) -> int:
        """Batches of an epoch."""
        return len(self._batches(epoch))

    def batch(self, epoch: int, number: int) -> PairBatch:
        """One batch of an epoch."""
        return make_batch(
            self.pairs, self._batches(epoch)[number], bpe_dropout=self._bpe_dropout(epoch)
        )

    def lines(self, indices: Sequence[int]) -> list[str]:
        """`file:line` of pairs."""
        return [self.pairs.line_of(index) for index in indices]

    def _batches(self, epoch: int) -> list[Indices]:
        if self._epoch is None or self._epoch[0] != epoch:
            seed, spec = self.settings.seed, self.settings.data
            planned = epoch_batches(self.pairs, self.selection, spec, seed=seed, epoch=epoch)
            self._epoch = (epoch, planned)
        return self._epoch[1]

    def _bpe_dropout(self, epoch: int) -> BpeDropout | None:
        probability = self.settings.objective.bpe_dropout
        if not probability:
            return None
        data = self.settings.data
        longest = min(data.max_length, data.budget - 1)
        return BpeDropout(probability, self.settings.seed, epoch, longest)
