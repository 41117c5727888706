"""Reports on the translations of a model: all checks, in the order of `CHECKS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heedful.apps.quality.reports import CheckResult, Languages, TranslationReport
from heedful.apps.quality.text_checks import DEFAULT, CheckSettings, check_texts
from heedful.errors import DataError
from heedful.pipelines.text_splitting import TargetScore, Translation

if TYPE_CHECKING:
    from heedful.apps.quality.calibration import Calibration
    from heedful.pipelines.text_splitting import Warn
    from heedful.pipelines.translation import TranslationPipeline


class Checker:
    """Checks the translations of one model, or given translations.

    Args:
        pipeline: translator that scores translations; None to check texts only.
        languages: codes of source and target, None where unknown.
        settings: thresholds.
        detached: true to compare the model's own translations with other sources and names, and
            with the source without each of its words, which costs a pass of the model for each
            word; given translations are always compared with other sources.
        calibration: predictor of the chrF of translations; see `heedful calibrate`.
        reverse: translator from the target's language to the source's, which also judges whether
            given texts belong together.
    """

    def __init__(
        self,
        pipeline: TranslationPipeline | None = None,
        languages: Languages = (None, None),
        settings: CheckSettings = DEFAULT,
        *,
        detached: bool = False,
        calibration: Calibration | None = None,
        reverse: TranslationPipeline | None = None,
    ) -> None:
        assert pipeline is not None or not detached, "only a model can tell"
        self.pipeline = pipeline
        self.languages = languages
        self.settings = settings
        self.detached = detached
        self.calibration = calibration
        self.reverse = reverse

    def reports(
        self,
        sources: Sequence[str],
        translations: Sequence[Translation],
        *,
        warn: Warn | None = None,
    ) -> list[TranslationReport]:
        """Return a report for each translation that the model made.

        Args:
            sources: source texts.
            translations: translation of each source; `uncovered` is checked only with alignments.
            warn: function called with a message when memory ran out and a batch was split.

        Raises:
            DataError: when the numbers of translations and sources differ.
            ConfigError: when num2words or py3langid is not installed.
        """
        _check_count(sources, translations)
        return self._reports(sources, translations, given=False, warn=warn)

    def report_pairs(
        self, sources: Sequence[str], targets: Sequence[str], *, warn: Warn | None = None
    ) -> list[TranslationReport]:
        """Return a report for each given translation, scored by the model if there is one.

        From 20 pairs on, each target is also scored with the sources of other pairs, so a report
        depends on the other pairs.

        Args:
            sources: source texts of one line each.
            targets: translation of each source.
            warn: function called with a message when memory ran out and a batch was split.

        Raises:
            DataError: when the numbers of translations and sources differ, or one is longer than a
                model with learned positions can read.
            ConfigError: when num2words or py3langid is not installed.
        """
        _check_count(sources, targets)
        if self.pipeline is None:
            given = [Translation(target) for target in targets]
        else:
            scores = self.pipeline.score(sources, targets, alignment=True, warn=warn)
            given = [_as_translation(*pair) for pair in zip(targets, scores, strict=True)]
        return self._reports(sources, given, given=True, warn=warn)

    def _reports(
        self,
        sources: Sequence[str],
        translations: Sequence[Translation],
        *,
        given: bool,
        warn: Warn | None,
    ) -> list[TranslationReport]:
        results = [
            check_texts(source, translation, self.languages, self.settings)
            + self._model_checks(source, translation)
            for source, translation in zip(sources, translations, strict=True)
        ]
        if self.pipeline is not None and (given or self.detached):
            self._compare(results, sources, translations, given=given, warn=warn)
        confidence: Sequence[float | None] = [None] * len(sources)
        if self.calibration is not None:
            confidence = self.calibration.predict(sources, translations)
        advises = self.settings.advises
        return [
            TranslationReport(
                tuple(replace(r, advisory=advises(r.name, given=given)) for r in checks),
                predicted if translation.token_scores else None,
            )
            for checks, translation, predicted in zip(
                results, translations, confidence, strict=True
            )
        ]

    def _model_checks(self, source: str, translation: Translation) -> list[CheckResult]:
        """Return the checks of names, words, probabilities and attention."""
        from heedful.apps.quality.model_checks import (
            check_coverage,
            check_probabilities,
            check_words,
        )
        from heedful.apps.quality.name_check import check_lost_names

        words: list[CheckResult] = []
        if self.pipeline is not None:
            tokenizers = self.pipeline.tokenizers
            words += check_lost_names(source, translation, self.languages, tokenizers.source.encode)
            if tokenizers.words is not None:
                words.append(check_words(source, translation, tokenizers.words))
        if not translation.token_scores:
            return words
        settings = self.settings
        results = [
            *words,
            *check_probabilities(
                translation,
                translation.tokens,
                translation.token_scores,
                least_mean=settings.least_mean,
                least_token=settings.least_token,
            ),
        ]
        if translation.alignment is not None:
            results.append(
                check_coverage(
                    source,
                    translation.alignment,
                    least_attention=settings.least_attention,
                    most_uncovered=settings.most_uncovered,
                )
            )
        return results

    def _compare(
        self,
        results: Sequence[list[CheckResult]],
        sources: Sequence[str],
        translations: Sequence[Translation],
        *,
        given: bool,
        warn: Warn | None,
    ) -> None:
        """Add the checks by likelihood, except for texts that were translated in several pieces."""
        from heedful.apps.quality.likelihood import Likelihood, ScoredPair, least_evidence
        from heedful.apps.quality.lost_words import check_lost_words, gains_without_words
        from heedful.apps.quality.model_checks import check_detached

        assert self.pipeline is not None
        pairs = [
            ScoredPair(
                i, sources[i], str(each), TargetScore(each.score, each.tokens, each.token_scores)
            )
            for i, each in enumerate(translations)
            if each and each.token_scores and len(each.segment_lengths) < 2
        ]
        forward = Likelihood(self.pipeline, pairs, sources, given=given, warn=warn)
        backward = None
        if self.reverse is not None and given:
            targets = [pair.target for pair in pairs]
            scores = self.reverse.score(targets, [pair.source for pair in pairs], warn=warn)
            turned = [
                ScoredPair(i, pair.target, pair.source, score)
                for i, (pair, score) in enumerate(zip(pairs, scores, strict=True))
            ]
            backward = Likelihood(self.reverse, turned, targets, given=True, warn=warn)
        names = forward.names(self.languages, self.settings.least_repair)
        if given:
            places = [_place(results[pair.place], "too_short") for pair in pairs]
            shorts = [results[p.place][n] for p, n in zip(pairs, places, strict=True)]
            for pair, n, each in zip(pairs, places, forward.unfinished(shorts), strict=True):
                results[pair.place][n] = each
        directions = [forward, *([backward] if backward else [])]
        least = self.settings.least_difference
        if least is None:
            least = least_evidence(directions, sources)
        for number, pair in enumerate(pairs):
            gains = [gain for each in directions for gain in each.gains(number)]
            results[pair.place] += [
                check_detached(pair.source, pair.target, gains, least=least),
                names[number],
            ]
        # People say what a word says in ways that a model does not expect, so of given translations
        # that do without some word there are too many: 20 of 100 sentences of Tatoeba.
        if not given:
            texts = [(pair.source, pair.target) for pair in pairs]
            most = self.settings.most_gain
            found = gains_without_words(self.pipeline, texts, warn=warn)
            for pair, gained in zip(pairs, found, strict=True):
                if gained:
                    results[pair.place].append(
                        check_lost_words(pair.source, gained, most_gain=most)
                    )


def _place(results: Sequence[CheckResult], name: str) -> int:
    return next(n for n, each in enumerate(results) if each.name == name)


def _as_translation(text: str, score: TargetScore) -> Translation:
    return Translation(
        text,
        score=score.score,
        tokens=score.tokens,
        token_scores=score.token_scores,
        segment_lengths=(len(score.tokens),),
        alignment=score.alignment,
    )


def _check_count(sources: Sequence[str], translations: Sequence[str]) -> None:
    if len(sources) != len(translations):
        raise DataError(
            f"{len(sources)} sources and {len(translations)} translations",
            remedy="Give one translation for each source",
        )
