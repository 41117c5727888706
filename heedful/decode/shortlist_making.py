"""Shortlists learned from a parallel corpus."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heedful.data.encoded import EncodedCorpus, encode_corpus
from heedful.data.lexicon import Told, learn_lexicon
from heedful.data.spec import CorpusSpec
from heedful.decode.settings import FREQUENT, PER_TOKEN
from heedful.decode.shortlist import Shortlist
from heedful.errors import DataError
from heedful.text.pair import TokenizerPair

_LOOKED_AT = 1000
"""Pairs of the corpus that the lists are tried on."""


@dataclass(frozen=True)
class Made:
    """A shortlist and what it came from.

    Args:
        shortlist: not written yet.
        pairs: of the corpus.
        skipped: pairs among them that were too long to learn from.
        coverage: share of the corpus's target tokens that are on their sentence's list.
        size: tokens on the mean list.
    """

    shortlist: Shortlist
    pairs: int
    skipped: int
    coverage: float
    size: float


def make_shortlist(
    source: str | Path,
    target: str | Path,
    tokenizers: TokenizerPair,
    *,
    per_token: int = PER_TOKEN,
    frequent: int = FREQUENT,
    told: Told | None = None,
) -> Made:
    """Learn the likeliest target tokens of each source token.

    Args:
        source: a text, a sentence a line.
        target: its translations, line by line.
        tokenizers: of the model that is to use it.
        per_token: most tokens on the list for each source token.
        frequent: tokens on every list, the commonest.
        told: how much is done, of how much, and what.

    Raises:
        DataError: when the files are out of step or hold no text.
        RunError: when there is no room for the corpus as token ids, in the folder for temporary
            files.
    """
    spec = CorpusSpec(source=str(source), target=str(target))
    with tempfile.TemporaryDirectory(prefix="heedful-", ignore_cleanup_errors=True) as folder:

        def read(done: int, total: int) -> None:
            if told is not None:
                told(done, total, "reading")

        corpus = encode_corpus(spec, tokenizers, Path(folder) / "corpus", read)
        sizes = tokenizers.source.size, tokenizers.target.size
        lexicon = learn_lexicon(corpus, *sizes, told=told)
        if not len(lexicon.source):
            raise DataError(
                "The corpus holds no pair with text on both sides that can be learned from",
                where=f"{source} and {target}",
                remedy="Check that these are the right files",
            )
        shortlist = Shortlist.of(lexicon, tokenizers, per_token=per_token, frequent=frequent)
        coverage, size = _coverage(shortlist, corpus)
        return Made(shortlist, len(corpus), lexicon.skipped, coverage, size)


def _coverage(shortlist: Shortlist, corpus: EncodedCorpus) -> tuple[float, float]:
    """On pairs from all over the corpus."""
    count = min(_LOOKED_AT, len(corpus))
    rows = np.linspace(0, len(corpus) - 1, count).astype(np.int64).tolist()
    return shortlist.coverage(
        [corpus.ids("source", row).tolist() for row in rows],
        [corpus.ids("target", row).tolist() for row in rows],
    )
