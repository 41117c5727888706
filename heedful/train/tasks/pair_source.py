"""The training batches of a translator, in which words and sources may differ from epoch to epoch.

With soft terms some sources have the translations of their terms written in. A model that reads
them learns to copy what stands behind a mark, whatever the words are (Dinu et al. 2019,
https://aclanthology.org/P19-1294).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heedful.data.batch_plan import Indices
from heedful.data.batches import (
    BpeDropout,
    NumberedPairs,
    OtherSource,
    PairBatch,
    make_batch,
    make_rows,
)
from heedful.data.encoded_pairs import EncodedPairs, epoch_batches, select_pairs
from heedful.errors import ConfigError, DataError
from heedful.pipelines.glossary import Glossary
from heedful.text.inline_terms import annotate
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.batch_source import EpochBatches
from heedful.train.run_settings import RunSettings
from heedful.train.splitting import derive_seed
from heedful.train.task import Setup

LOOKED_AT = 10_000
"""Pairs of which the share with terms is told: more take seconds, and say the same."""
_EACH = 0.5
"""Of the terms of a source, those that are written in: a model is to read sources with one of
several terms, too."""


def encoded_pairs(
    setup: Setup, pairs: EncodedPairs, terms: TrainingTerms | None
) -> EpochBatches[Indices]:
    """The training batches of a run.

    Args:
        setup: of the run.
        pairs: the corpora.
        terms: are written into some sources; None for none.
    """
    settings, data, seed = setup.settings, setup.settings.data, setup.settings.seed
    selection = select_pairs(pairs, data)
    probability = settings.objective.bpe_dropout
    longest = min(data.max_length, data.budget - 1)
    if terms is not None:
        sample = range(0, len(pairs), max(1, len(pairs) // LOOKED_AT))
        setup.events.note(terms.describe(map(pairs.text_of, sample), pairs.tokenizers))

    def make(indices: Indices, epoch: int) -> PairBatch:
        if data.packed_length is not None:
            return make_rows(pairs, indices, data.packed_length)
        dropout = BpeDropout(probability, seed, epoch, longest) if probability else None
        other = None if terms is None else terms.sources(pairs, epoch, longest)
        return make_batch(pairs, indices, bpe_dropout=dropout, other_source=other)

    return EpochBatches(
        lambda epoch: epoch_batches(pairs, selection, data, seed=seed, epoch=epoch),
        make,
        pairs.line_of,
    )


@dataclass(frozen=True)
class TrainingTerms:
    """Terms that are written into some sources, chosen anew every epoch.

    Args:
        glossary: the terms.
        share: of the pairs with terms.
        seed: of the run; what is chosen depends on it, the epoch and the number of the pair.
    """

    glossary: Glossary
    share: float
    seed: int

    @property
    def fingerprint(self) -> str:
        """Changes when the terms or their share do."""
        content = repr((self.glossary.terms, self.share))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def sources(self, pairs: NumberedPairs, epoch: int, limit: int) -> OtherSource:
        """Return what gives the sources of an epoch that have terms written in.

        Args:
            pairs: by their numbers.
            epoch: counted from 0.
            limit: most tokens of a source; terms without room are left out.
        """

        def source(i: int) -> Sequence[int] | None:
            draw = random.Random(derive_seed(self.seed, epoch, i))
            if draw.random() >= self.share:
                return None
            text, target = _as_read(pairs.text_of(i), pairs.tokenizers)
            terms = self.glossary.agreed(text, target)
            chosen = [term for term in terms if draw.random() < _EACH] or terms[:1]
            return annotate(pairs.tokenizers.source, text, chosen, limit).ids if chosen else None

        return source

    def describe(self, sample: Iterable[tuple[str, str]], tokenizers: TokenizerPair) -> str:
        """A sentence about the pairs that have terms with their translations.

        Args:
            sample: sources and targets of the corpora.
            tokenizers: of the run.

        Raises:
            DataError: when none has: there would be nothing to learn from.
        """
        texts = (_as_read(pair, tokenizers) for pair in sample)
        found = [bool(self.glossary.agreed(*pair)) for pair in texts]
        if not any(found):
            raise DataError(
                f"None of {len(found):,} pairs of the training corpora has a term together with "
                "its translation",
                where=self.glossary.name,
                remedy="Give terms of these corpora: words of the source, and of the target as "
                "they stand there",
            )
        return (
            f"{len(self.glossary):,} soft terms: {sum(found) / len(found):.1%} of the pairs have "
            f"some together with their translations, of which {self.share:.0%} are read with them"
        )


def read_terms(settings: RunSettings, tokenizers: TokenizerPair) -> TrainingTerms | None:
    """The soft terms of a run, if it has any.

    Args:
        settings: of the run.
        tokenizers: of the run.

    Raises:
        DataError: naming the line that is no term.
        ConfigError: when the run began without soft terms.
    """
    if settings.soft_terms is None:
        return None
    if not tokenizers.soft_terms:
        raise ConfigError(
            "The model of this run has no marks for soft terms",
            where="soft_terms",
            remedy="Leave it out, or begin a new run",
        )
    glossary = Glossary.read(settings.soft_terms, soft=True)
    glossary.check(tokenizers.source)
    return TrainingTerms(glossary, settings.soft_terms_share, settings.seed)


def _as_read(pair: tuple[str, str], tokenizers: TokenizerPair) -> tuple[str, str]:
    """A pair as the model reads it, with reserved characters for parts that are kept."""
    protection = tokenizers.protection
    return pair if protection is None else protection.protect_pair(*pair)
