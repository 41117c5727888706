"""Translation pipeline, which commands, the server and validation in training share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

from heedful.errors import ConfigError, DataError, ModelError
from heedful.pipelines.batching import list_of_texts
from heedful.pipelines.held_translators import HeldTranslators
from heedful.pipelines.search_items import (
    Terminology,
    cut_protected,
    plan_searches,
    protection_of,
    search_items,
)
from heedful.pipelines.segment_search import Progress
from heedful.pipelines.text_splitting import (
    CutText,
    SegmentResult,
    TargetScore,
    Translation,
    Warn,
    assemble,
    single_line,
    warn_of_cuts,
)
from heedful.search.search_settings import SearchOptions, SearchSettings, check_fits

BATCH_TOKENS = 4096
"""Default number of positions of a batch, padding and hypotheses counted."""


class TranslationPipeline(HeldTranslators):
    """A translator of raw text: one model, or several whose probabilities are averaged.

    Args:
        models: a model, or members of an ensemble; all with the same tokenizers.
        tokenizers: tokenizers of source and target.
        precision: precision of the forward passes; float32 if unset.
        shortlist: shortlist whose tokens translations are made of; all tokens if unset. Scores of
            given translations are always over the whole vocabulary.

    Attributes:
        models: the models themselves, which may be changed.
        engines: what computes them; nobody changes these.
        specials: special tokens of the target.
    """

    @property
    def max_length(self) -> int:
        """Maximum number of source tokens of a segment."""
        # All members of an ensemble read the same segments.
        return min(model.spec.max_length for model in self.engines)

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
        first_line: int = 1,
        warn: Warn | None = None,
        progress: Progress | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[Translation]:
        """Translate texts.

        A text is translated in parts as long as those in training, for most models sentence by
        sentence. A translation has as many lines as its text, and no other line breaks. White space
        gives "", and a part without a letter that the model knows is copied. A part that is too
        long for the model is translated in several segments. Batching changes no result.

        Args:
            texts: any strings.
            settings: settings of the search; defaults if unset.
            prefixes: beginning of each text's translation, "" for none.
            glossary: a `Glossary` with required translations of terms. Required phrases that a
                translation lacks, because it reached its maximum length, are in `missing`. A soft
                glossary writes its translations into the sources instead.
            protect: kinds of parts that are kept byte for byte, such as `urls`; an empty list keeps
                none. If unset, they are the kinds that the model was trained to keep, or all kinds
                if it was not trained to keep any. Kinds that it was not trained to keep are placed
                by word alignment. A sentence in whose translation they have no place stays as it
                is, and is listed in `untranslated`.
            alignment: True to align words, too; it does not change translations.
            batch_size: sentences translated together, instead of `batch_tokens`.
            batch_tokens: positions translated together: sentences × longest source × beam.
            first_line: number of the first text, for warnings and random draws; with it, a corpus
                in parts gives the same translations as a whole.
            warn: receiver of a sentence about long lines, cut translations, and batches that were
                split because memory ran out.
            progress: receiver of (done, total) segments after each batch.
            **options: fields of `SearchSettings` that override `settings`.

        Returns:
            A translation for each text, in the same order.

        Raises:
            ConfigError: when settings contradict each other or the model, or a kind of parts does
                not exist.
            DataError: when there are not as many prefixes as texts, or the model's vocabulary
                cannot spell a target of the glossary.
            ModelError: when the glossary is soft and the model was not trained with soft terms.
        """
        # Parsed anew, so that options are checked together with the settings that they override.
        settings = SearchSettings.parse({**(settings.plain() if settings else {}), **options})
        texts = list_of_texts(texts, "texts")
        self._follow()
        if glossary is not None:
            # A soft glossary changes the source only, so it also works with sampling.
            if not glossary.is_soft:
                _check_searched(settings)
            self.check_glossary(glossary)
        cut = self._cut(texts, protect, warn, first_line)
        items = search_items(
            cut,
            self.tokenizers,
            prefixes=prefixes,
            glossary=glossary,
            limit=self.max_length,
            first_line=first_line,
            warn=warn,
        )
        batching = partial(
            plan_searches, settings=settings, batch_tokens=batch_tokens, batch_size=batch_size
        )
        if any(item.segment.kept is not None for item in items):
            from heedful.pipelines.kept_spans import search_around_parts

            # Segments of all texts are batched together, by similar length.
            results = search_around_parts(
                lambda some, aligns: self.search_segments(
                    some, batching(some), settings, aligns, warn, progress
                ),
                self.tokenizers,
                items,
                alignment=alignment,
                warn=warn,
                strict=prefixes is None and glossary is None,
            )
        else:
            batches = batching(items)
            results = self.search_segments(items, batches, settings, alignment, warn, progress)
        # Results are those of the segments that were searched; copies have none.
        ordered = iter(results)
        translations = [
            assemble(
                text,
                [
                    SegmentResult.copy_of(each.restored(each.text))
                    if each.is_copied
                    else next(ordered)
                    for each in text.segments
                ],
                self.tokenizers.target,
                is_aligned=alignment,
            )
            for text in cut
        ]
        if warn is not None:
            warn_of_cuts(translations, first_line, warn)
        return translations

    def generate(self, prompts: Sequence[str], **options: Any) -> Any:
        """Complete records with an encoder-decoder that reads some of their fields.

        Args:
            prompts, **options: arguments of `RecordPipeline.generate`.

        Raises:
            ModelError: when the model is one of texts, or an ensemble.
            ConfigError, DataError: as `RecordPipeline.generate` does.
        """
        from heedful.pipelines.record_answers import RecordPipeline  # few translators do

        if len(self._held) > 1:
            raise ModelError("An ensemble completes no records", remedy="Load a single model")
        pipeline = RecordPipeline(self._held[0], self.tokenizers, precision=self._precision)
        return pipeline.generate(prompts, **options)

    def _cut(
        self, texts: Sequence[str], protect: Sequence[str] | None, warn: Warn | None, first: int
    ) -> list[CutText]:
        """Cut texts into segments, as the model reads them around the parts that stay."""
        tokenizers, limit, reading = self.tokenizers, self.max_length, self.tokenizers.reads
        cut = cut_protected(
            texts, tokenizers, limit, reading, protect=protect, warn=warn, first_line=first
        )
        # A model with reserved tokens reads them in place of the parts.
        kinds = None
        if tokenizers.protection is None and any(s.parts for text in cut for s in text.segments):
            kinds = protection_of(tokenizers, protect)
        if kinds is None:
            return cut
        from heedful.pipelines.kept_spans import read_around_parts

        return read_around_parts(cut, tokenizers, kinds, limit)

    def check_glossary(self, glossary: Terminology) -> None:
        """Refuse a glossary that the model cannot follow.

        Args:
            glossary: glossary for translations.

        Raises:
            DataError: when the model's vocabulary cannot spell a target.
            ModelError: when the glossary is soft and the model was not trained with soft terms.
        """
        if glossary.is_soft and not self.tokenizers.soft_terms:
            raise ModelError(
                "This model has not learned soft terms: it cannot read translations in its source",
                where="glossary-mode = soft",
                remedy="Train one with --soft-terms, or take hard terms, which every model obeys",
            )
        glossary.check(self.tokenizers.target)

    def check_protection(self, protect: Sequence[str] | None) -> None:
        """Refuse kinds of parts that do not exist; see `translate`.

        Args:
            protect: names of the kinds.

        Raises:
            ConfigError: when there is no such kind.
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
        """Return natural-log probabilities of given translations, by the same steps as a search.

        Args:
            sources: texts.
            targets: target of each source, as text or token ids. Text is tokenized as in training;
                a search may have found it with other tokens.
            alignment: True to align words, too.
            batch_size: pairs scored together, instead of `batch_tokens`.
            batch_tokens: positions scored together, on the longer side, padding counted.
            warn: receiver of a sentence when memory ran out and a batch was split.
            progress: receiver of (done, total) pairs after each batch.

        Raises:
            DataError: when there are not as many targets as sources, or one has more tokens than
                the model has learned positions.
        """
        pairs = self._encode_pairs(sources, targets)
        sizes = {"batch_tokens": batch_tokens, "batch_size": batch_size}
        found, alignments = self.score_pairs(pairs, alignment, warn, progress, sizes)
        target = self.tokenizers.target
        return [
            TargetScore.of(target.pieces(ids), token_scores, aligned)
            for (_, ids), token_scores, aligned in zip(pairs, found, alignments, strict=True)
        ]

    def _encode_pairs(
        self, sources: Sequence[str], targets: Sequence[str | Sequence[int]]
    ) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Encode sources and targets, and refuse those that the models cannot read."""
        sources = list_of_texts(sources, "sources")
        self._follow()
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} sources and {len(targets)} targets",
                remedy="Give one target for each source",
            )
        tokenizers = self.tokenizers
        source_ids = tokenizers.source.encode_batch([single_line(s) for s in sources])
        target_ids = [
            # Token ids are scored as given: their text might be tokenized differently.
            tokenizers.target.encode(single_line(t)) if isinstance(t, str) else list(t)
            for t in targets
        ]
        frame = len(tokenizers.source.first) + len(tokenizers.source.last)
        specs = [model.spec for model in self.engines]
        pairs: list[tuple[Sequence[int], Sequence[int]]] = list(
            zip(source_ids, target_ids, strict=True)
        )
        for number, (source, target) in enumerate(pairs, start=1):
            # A target is framed by the begin token alone, which `check_fits` counts by default.
            check_fits(specs, source, f"line {number}", frame=frame)
            check_fits(specs, target, f"line {number}")
            assert not self.specials.ids & set(target), "targets hold no special tokens"
        return pairs


def _check_searched(settings: SearchSettings) -> None:
    """Refuse sampling if a translation must contain phrases."""
    if settings.sampling:
        raise ConfigError(
            "A glossary needs a beam search; samples are drawn token by token",
            where="sampling = true",
            remedy="Search instead, or leave the glossary out",
        )
