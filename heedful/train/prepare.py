"""From files of sentence pairs to what training needs: tokenizers, encoded pairs, a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from heedful.data.check import check_corpora
from heedful.data.corpus import CorpusTexts
from heedful.data.encoded import EncodedPairs, encode_corpora
from heedful.data.selection import Selection, select_pairs
from heedful.errors import ConfigError
from heedful.models.translator import Translator
from heedful.text.pair import TokenizerPair, train_pair
from heedful.train.randomness import mix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heedful.data.spec import CorpusSpec
    from heedful.events import Events
    from heedful.train.settings import RunSettings


@dataclass(frozen=True)
class Prepared:
    """The data of a run.

    Args:
        tokenizers: trained from the corpus, or those of the run.
        pairs: the training pairs.
        selection: which of them can be trained on.
        valid: the validation pairs, or None.
    """

    tokenizers: TokenizerPair
    pairs: EncodedPairs
    selection: Selection
    valid: EncodedPairs | None

    @property
    def fingerprint(self) -> str:
        """Changes when the training pairs or the tokenizers do."""
        return self.pairs.fingerprint


def prepare_data(
    run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> Prepared:
    """Read, check and encode the corpora.

    Args:
        run_dir: where encoded corpora are kept unless `data.cache` is set.
        settings: of the run.
        tokenizers: those of the run when it is resumed; trained from the corpora if None.
        events: who is told about progress and doubtful data.

    Raises:
        DataError: when the corpora cannot be used.
    """
    data = settings.data
    if tokenizers is None:
        events.note("Training the tokenizer")
        sources, targets = CorpusTexts(data.train, "source"), CorpusTexts(data.train, "target")
        tokenizers = train_pair(settings.tokenizer, sources, targets)
    cache = Path(data.cache) if data.cache is not None else run_dir / "data"
    pairs = _encode(data.train, tokenizers, cache, events, "encoding")
    valid = None
    if data.valid:
        valid = _encode(data.valid, tokenizers, cache, events, "encoding validation")
    for line in check_corpora(pairs, valid, data, seed=settings.seed).lines():
        events.note(line)
    return Prepared(tokenizers, pairs, select_pairs(pairs, data), valid)


def build_model(settings: RunSettings, tokenizers: TokenizerPair) -> Translator:
    """The model with its first weights, a function of the seed.

    Raises:
        ConfigError: when the model cannot hold what the data asks for.
    """
    shape, data = settings.model, settings.data
    if shape.positions == "learned" and data.max_length > shape.max_length:
        raise ConfigError(
            f"data.max_length = {data.max_length} is more than the {shape.max_length} positions "
            "the model learns",
            where="model.max_length",
            remedy="Raise model.max_length or lower data.max_length",
        )
    spec = shape.expand(tokenizers.source.size, tokenizers.target.size)
    torch.manual_seed(mix(settings.seed))
    return Translator(spec)


def _encode(
    specs: Sequence[CorpusSpec],
    tokenizers: TokenizerPair,
    cache: Path,
    events: Events,
    label: str,
) -> EncodedPairs:
    return encode_corpora(
        specs,
        tokenizers,
        cache,
        progress=lambda done, total: events.progress(done, total, label),
        notice=events.warn,
    )
