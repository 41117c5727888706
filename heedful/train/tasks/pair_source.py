"""Training batches of sentence pairs, with BPE dropout and soft terms drawn anew in each epoch.

With soft terms, translations of terms are inserted into some sources. The model learns to copy the
words behind a mark, also words that it has never seen (Dinu et al. 2019,
https://aclanthology.org/P19-1294).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

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
from heedful.models.shape_to_spec import translator_spec
from heedful.pipelines.glossary import Glossary
from heedful.text.inline_terms import annotate
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.batch_source import EpochBatches
from heedful.train.run_settings import RunSettings
from heedful.train.splitting import derive_seed
from heedful.train.task import Setup

TERM_SAMPLE = 10_000
"""Number of pairs from which the reported share with terms is estimated."""

# Probability that a term of a chosen source is inserted: sources with some of their terms are
# trained on, too.
_TERM_SHARE = 0.5


def encoded_pairs(
    setup: Setup, pairs: EncodedPairs, terms: TrainingTerms | None
) -> EpochBatches[Indices]:
    """Make the training batches of a run.

    Args:
        setup: setup of the task.
        pairs: encoded corpora.
        terms: soft terms to insert into some sources, or None.
    """
    data, seed = setup.settings.data, setup.settings.seed
    selection, make = select_pairs(pairs, data), batch_maker(setup, terms)
    if terms is not None:
        # Pairs are sampled evenly from all corpora: the first one alone would mislead.
        sample = range(0, len(pairs), max(1, len(pairs) // TERM_SAMPLE))
        setup.events.note(terms.describe(map(pairs.text_of, sample), pairs.tokenizers))
    return EpochBatches(
        lambda epoch: epoch_batches(pairs, selection, data, seed=seed, epoch=epoch),
        partial(make, pairs),
        pairs.line_of,
    )


def batch_maker(
    setup: Setup, terms: TrainingTerms | None
) -> Callable[[NumberedPairs, Indices, int], PairBatch]:
    """Return a function from pairs, their numbers and the epoch to a batch.

    Args:
        setup: setup of the task.
        terms: soft terms to insert into some sources, or None.
    """
    settings, data = setup.settings, setup.settings.data
    probability = settings.objective.bpe_dropout
    # BPE dropout and terms lengthen a side; with its begin or end token it must still fit a batch.
    longest = min(data.max_length, data.budget - 1)

    def make(pairs: NumberedPairs, indices: Indices, epoch: int) -> PairBatch:
        if data.packed_length is not None:
            return make_rows(pairs, indices, data.packed_length)
        dropout = BpeDropout(probability, settings.seed, epoch, longest) if probability else None
        other = None if terms is None else terms.sources(pairs, epoch, longest)
        return make_batch(pairs, indices, bpe_dropout=dropout, other_source=other)

    return make


@dataclass(frozen=True)
class TrainingTerms:
    """Soft terms, inserted into a different choice of sources every epoch.

    Args:
        glossary: glossary with the terms.
        share: probability that a pair with terms gets some.
        seed: random seed of the run; choices depend on it, the epoch and the number of the pair.
    """

    glossary: Glossary
    share: float
    seed: int

    @property
    def fingerprint(self) -> str:
        """Hash of the terms and their share."""
        content = repr((self.glossary.terms, self.share))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def sources(self, pairs: NumberedPairs, epoch: int, limit: int) -> OtherSource:
        """Return a function from a pair's number to its source with inserted terms, or None.

        Args:
            pairs: sentence pairs by number.
            epoch: epoch, counted from 0.
            limit: largest number of tokens of a source; terms beyond it are left out.
        """

        def source(i: int) -> Sequence[int] | None:
            # A generator for each pair: neither the batch nor a resumed run changes its choice.
            draw = random.Random(derive_seed(self.seed, epoch, i))
            if draw.random() >= self.share:
                return None
            text, target = _protect(pairs.text_of(i), pairs.tokenizers)
            # Only terms whose translation is in the target are inserted: a wrong one would teach
            # the model to ignore marks.
            terms = self.glossary.agreed(text, target)
            chosen = [term for term in terms if draw.random() < _TERM_SHARE] or terms[:1]
            return annotate(pairs.tokenizers.source, text, chosen, limit).ids if chosen else None

        return source

    def describe(self, sample: Iterable[tuple[str, str]], tokenizers: TokenizerPair) -> str:
        """Describe the share of pairs that have terms together with their translations.

        Args:
            sample: pairs of source and target texts from the corpora.
            tokenizers: tokenizers of the run.

        Raises:
            DataError: when no pair has a term with its translation, so that nothing could be
                trained.
        """
        texts = (_protect(pair, tokenizers) for pair in sample)
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
    """Read the soft terms of a run, if it has any.

    Args:
        settings: settings of the training run.
        tokenizers: tokenizers of the run.

    Raises:
        DataError: when a line is not a valid term; the line is named.
        ConfigError: when the run began without soft terms.
    """
    if settings.soft_terms is None:
        return None
    # Marks are tokens: a model without their embeddings cannot read them.
    if not tokenizers.soft_terms:
        raise ConfigError(
            "The model of this run has no marks for soft terms",
            where="soft_terms",
            remedy="Leave it out, or begin a new run",
        )
    glossary = Glossary.read(settings.soft_terms, soft=True)
    glossary.check(tokenizers.source)
    return TrainingTerms(glossary, settings.soft_terms_share, settings.seed)


def new_translator(setup: Setup, tokenizers: TokenizerPair) -> nn.Module:
    """Make the translator of a run, or read its initial model.

    Args:
        setup: settings and events of the run.
        tokenizers: tokenizers of source and target.

    Raises:
        ConfigError: when texts may be longer than the learned positions reach.
    """
    settings = setup.settings
    shape, longest = settings.model, settings.data.max_length
    # An initial model's own positions were checked with its spec.
    if settings.init is None and shape.positions == "learned" and longest > shape.max_length:
        raise ConfigError(
            f"data.max_length = {longest} is more than the {shape.max_length} positions the model "
            "learns",
            where="model.max_length",
            remedy="Raise model.max_length or lower data.max_length",
        )
    spec = translator_spec(shape, tokenizers.source.size, tokenizers.target.size)
    return setup.new_model(spec, tokenizers)


def _protect(pair: tuple[str, str], tokenizers: TokenizerPair) -> tuple[str, str]:
    """Replace the protected parts of a pair by reserved characters, as the model gets them."""
    protection = tokenizers.protection
    return pair if protection is None else protection.protect_pair(*pair)
