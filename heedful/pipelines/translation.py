"""Raw text in, translations out: the one path of all that translates, scores or validates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

import torch

from heedful.device import Precision, RunningPrecision, resolve_device
from heedful.engines.inference.prepare import precision_of, prepare
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.checkpoint import ReadModel, load_model, load_translator
from heedful.models.translator import Translator
from heedful.pipelines.batched_translation import BATCH_TOKENS, BatchedTranslation, Progress
from heedful.pipelines.search_items import Terminology, cut_protected, protection_of, search_items
from heedful.pipelines.segment_search import align_pairs
from heedful.pipelines.text_splitting import (
    TargetScore,
    Translation,
    Warn,
    assemble,
    single_line,
    warn_of_cuts,
)
from heedful.search.lexical_shortlist import Shortlist, load_shortlist
from heedful.search.search_settings import SearchOptions, SearchSettings, check_fits
from heedful.text.tokenizer_pair import TokenizerPair


class TranslationPipeline:
    """A translator of raw text: one model, or several whose probabilities are averaged.

    Args:
        models: a model, or members of an ensemble; all with the same tokenizers.
        tokenizers: of source and target.
        precision: of the forward passes; float32 if unset.
        shortlist: translations are made of these tokens only; of any if unset. Scores of given
            translations are always over the whole vocabulary.

    Attributes:
        model: the model, or the ensemble.
    """

    def __init__(
        self,
        models: Translator | Sequence[Translator],
        tokenizers: TokenizerPair,
        *,
        precision: Precision | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        self.models = tuple(models) if isinstance(models, Sequence) else (models,)
        self.tokenizers = tokenizers
        self.batched = BatchedTranslation(self.models, tokenizers, precision, shortlist)
        self.model = self.batched.model
        self.specials = self.batched.specials

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        device: str = "auto",
        precision: RunningPrecision = "auto",
        shortlist: bool | str | Path = False,
        read: ReadModel = load_model,
        shared: Path | None = None,
    ) -> Self:
        """Load a model directory, or several as an ensemble.

        Args:
            path: a model directory or a run directory (its best model), or several.
            device: auto, cpu, cuda, cuda:1 or mps.
            precision: auto (float32, on the fastest route that is as exact), fp32, bf16,
                fp16 or int8.
            shortlist: whether to use the (first) model's own, or the file of another.
            read: what reads a directory.
            shared: folder in which processes share weights; they do not if None.

        Raises:
            ModelError: when there is no model, or models of an ensemble do not fit together.
            ConfigError: when the device or precision is not to be had.
        """
        paths = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
        if not paths:
            raise ModelError("No model given", remedy="Give at least one model directory")
        where = resolve_device(device)
        loaded = [load_translator(p, read) for p in paths]
        tokenizers = loaded[0][1]
        for other, (_, pair) in list(zip(paths, loaded, strict=True))[1:]:  # to tell costs time
            if pair.fingerprint != tokenizers.fingerprint:
                raise ModelError(
                    f"Its tokenizers differ from those of {paths[0]}",
                    where=str(other),
                    remedy="An ensemble needs models trained with the same tokenizers",
                )
        short = load_shortlist(shortlist, paths[0], tokenizers)
        engines = [
            prepare(model, precision, where, donate=True, shared=shared) for model, _ in loaded
        ]
        return cls(engines, tokenizers, precision=precision_of(engines[0]), shortlist=short)

    @property
    def precision(self) -> Precision | None:
        """The precision of the forward passes; float32 if unset."""
        return self.batched.precision

    @property
    def shortlist(self) -> Shortlist | None:
        """The tokens that translations are made of; any if unset."""
        return self.batched.shortlist

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return self.batched.device

    @property
    def max_length(self) -> int:
        """Longest source in tokens that is translated in one piece."""
        return min(model.spec.max_length for model in self.models)

    def translate(
        self,
        texts: Sequence[str],
        *,
        settings: SearchSettings | None = None,
        prefixes: Sequence[str] | None = None,
        glossary: Terminology | None = None,
        protect: Sequence[str] | None = None,
        alignment: bool = False,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        continuous_batching: bool = False,
        first_line: int = 1,
        warn: Warn | None = None,
        progress: Progress | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[Translation]:
        """Translate texts: one translation for each, in their order.

        A text of several lines is translated line by line; a translation has as many lines as its
        text, and no other line breaks. White space alone gives "". A line that is too long for the
        model is translated in pieces. How sentences are batched changes no result.

        Args:
            texts: any strings.
            settings: of the search; defaults if unset.
            prefixes: for each text how its translation must begin, "" for anyhow.
            glossary: a `Glossary`, whose terms must be translated as it says. A translation that
                lacks some all the same, as its longest length left no room, names them in
                `missing`. A soft one writes its translations into the sources instead.
            protect: kinds of parts that are kept byte for byte, such as `urls`; those that the
                model was trained for if unset, none if empty.
            alignment: also give alignments; the translations stay the same.
            batch_size: sentences translated together, instead of `batch_tokens`.
            batch_tokens: positions translated together: sentences × longest source × beam.
            continuous_batching: accepted for older programs; it has no effect.
            first_line: number of the first text, for warnings and random draws: a corpus that is
                translated part by part then gives what it would give at once.
            warn: called with a sentence about long lines, cut translations, and batches that were
                split because memory ran out.
            progress: called with (done, total) segments after each batch.
            **options: fields of `SearchSettings` that override `settings`.

        Raises:
            ConfigError: when settings contradict each other or the model, or no kind of parts has
                such a name.
            DataError: when there are not as many prefixes as texts, or the model cannot spell a
                term of the glossary.
            ModelError: when parts are to be protected and the model has no tokens for them, or the
                glossary is soft and the model has not learned soft terms.
        """
        settings = _settings(settings, options)
        _check_batching(batch_size, batch_tokens)
        texts = _listed(texts, "texts")
        if glossary is not None:
            if not glossary.is_soft:
                _check_searched(settings)
            self.check_glossary(glossary)
        cut = cut_protected(
            texts,
            self.tokenizers,
            self.max_length,
            protect=protect,
            warn=warn,
            first_line=first_line,
        )
        results = self.batched.search(
            search_items(
                cut,
                self.tokenizers,
                prefixes=prefixes,
                glossary=glossary,
                limit=self.max_length,
                first_line=first_line,
                warn=warn,
            ),
            settings,
            alignment=alignment,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            warn=warn,
            progress=progress,
        )
        ordered = iter(results)
        translations = [
            assemble(text, [next(ordered) for _ in text.segments], self.tokenizers.target)
            for text in cut
        ]
        if warn is not None:
            warn_of_cuts(translations, first_line, warn)
        return translations

    def check_glossary(self, glossary: Terminology) -> None:
        """Refuse a glossary that the model cannot follow.

        Args:
            glossary: of a translation.

        Raises:
            DataError: when the model cannot spell a term.
            ModelError: when it is soft and the model has not learned soft terms.
        """
        if glossary.is_soft and not self.tokenizers.soft_terms:
            raise ModelError(
                "This model has not learned soft terms: it cannot read translations in its source",
                where="glossary-mode = soft",
                remedy="Train one with --soft-terms, or take hard terms, which every model obeys",
            )
        glossary.check(self.tokenizers.target)

    def check_protection(self, protect: Sequence[str] | None) -> None:
        """Refuse kinds of parts that the model cannot keep; see `translate`.

        Args:
            protect: names of the kinds.

        Raises:
            ConfigError: when there is no such kind.
            ModelError: when the model has no tokens for them.
        """
        protection_of(self.tokenizers, protect)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str | Sequence[int]],
        *,
        alignment: bool = False,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        warn: Warn | None = None,
        progress: Progress | None = None,
    ) -> list[TargetScore]:
        """Natural-log probabilities of given translations, by the steps a search takes.

        Args:
            sources: texts.
            targets: a text for each source, or its token ids. A text is cut into tokens as in
                training, which need not be how a search put it together.
            alignment: also give alignments of words.
            batch_size: pairs scored together, instead of `batch_tokens`.
            batch_tokens: positions scored together, on the longer side, padding counted.
            warn: called with a sentence when memory ran out and a batch was split.
            progress: called with (done, total) pairs after each batch.

        Raises:
            DataError: when there are not as many targets as sources, or one is longer than a model
                with learned positions can read.
        """
        _check_batching(batch_size, batch_tokens)
        sources = _listed(sources, "sources")
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} sources and {len(targets)} targets",
                remedy="Give one target for each source",
            )
        source_ids = self.tokenizers.source.encode_batch([single_line(s) for s in sources])
        target_ids = [
            self.tokenizers.target.encode(single_line(t)) if isinstance(t, str) else list(t)
            for t in targets
        ]
        frame = len(self.tokenizers.source.first) + len(self.tokenizers.source.last)
        specs = [model.spec for model in self.models]
        for number, pair in enumerate(zip(source_ids, target_ids, strict=True), start=1):
            check_fits(specs, pair[0], f"line {number}", frame=frame)
            check_fits(specs, pair[1], f"line {number}")
            assert not self.specials.ids & set(pair[1]), "targets hold no special tokens"
        scores = self.batched.score(
            source_ids,
            target_ids,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            warn=warn,
            progress=progress,
        )
        target = self.tokenizers.target
        found = [
            TargetScore.of(target.pieces(ids), token_scores)
            for ids, token_scores in zip(target_ids, scores, strict=True)
        ]
        if not alignment:
            return found
        alignments = self.batched.in_batches(
            lambda pairs: align_pairs(self.model, self.device, self.tokenizers, pairs),
            list(zip(source_ids, target_ids, strict=True)),
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            warn=warn,
            progress=None,
        )
        return [
            replace(score, alignment=aligned)
            for score, aligned in zip(found, alignments, strict=True)
        ]


def _settings(settings: SearchSettings | None, options: SearchOptions) -> SearchSettings:
    return SearchSettings.parse({**(settings.plain() if settings else {}), **options})


def _check_searched(settings: SearchSettings) -> None:
    """Refuse samples where a translation must contain phrases."""
    if settings.sampling:
        raise ConfigError(
            "A glossary needs a beam search; samples are drawn token by token",
            where="sampling = true",
            remedy="Search instead, or leave the glossary out",
        )


def _listed(texts: Sequence[str], name: str) -> Sequence[str]:
    if isinstance(texts, str):
        raise DataError(f"{name} is a single string", remedy="Give a list of strings")
    return texts


def _check_batching(batch_size: int | None, batch_tokens: int) -> None:
    for name, value in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value}: a batch holds at least 1")
