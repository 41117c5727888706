"""Reports on the translations of a model: all checks, in the order of `CHECKS`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heedful.apps.quality.reports import CheckResult, TranslationReport
from heedful.apps.quality.text_checks import DEFAULT, CheckSettings, Languages, check_texts
from heedful.errors import DataError
from heedful.pipelines.text_splitting import TargetScore, Translation

if TYPE_CHECKING:
    from heedful.apps.quality.calibration import Calibration
    from heedful.pipelines.text_splitting import Warn
    from heedful.pipelines.translation import TranslationPipeline


class Checker:
    """Checks translations of one model.

    Args:
        pipeline: translator that scores translations; needed only for `detached` and
            `report_pairs`.
        languages: codes of source and target, None where unknown.
        settings: thresholds.
        detached: true to check that the source makes a translation more probable, which costs
            another pass of the model.
        calibration: predictor of the chrF of translations; see `heedful calibrate`.
    """

    def __init__(
        self,
        pipeline: TranslationPipeline | None = None,
        languages: Languages = (None, None),
        settings: CheckSettings = DEFAULT,
        *,
        detached: bool = False,
        calibration: Calibration | None = None,
    ) -> None:
        assert pipeline is not None or not detached, "only a model can tell"
        self.pipeline = pipeline
        self.languages = languages
        self.settings = settings
        self.detached = detached
        self.calibration = calibration

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
        without = self._without_source(translations, warn)
        confidence: Sequence[float | None] = [None] * len(sources)
        if self.calibration is not None:
            confidence = self.calibration.predict(sources, translations)
        return [
            TranslationReport(
                tuple(self._checks(source, translation, bare)),
                predicted if translation.token_scores else None,
            )
            for source, translation, bare, predicted in zip(
                sources, translations, without, confidence, strict=True
            )
        ]

    def report_pairs(
        self, sources: Sequence[str], targets: Sequence[str], *, warn: Warn | None = None
    ) -> list[TranslationReport]:
        """Score given translations with the model, and return a report for each.

        Args:
            sources: source texts of one line each.
            targets: translation of each source.
            warn: function called with a message when memory ran out and a batch was split.

        Raises:
            DataError: when the numbers of translations and sources differ, or one is longer than a
                model with learned positions can read.
        """
        assert self.pipeline is not None
        _check_count(sources, targets)
        scores = self.pipeline.score(sources, targets, alignment=True, warn=warn)
        given = [_as_translation(*pair) for pair in zip(targets, scores, strict=True)]
        return self.reports(sources, given, warn=warn)

    def _checks(
        self, source: str, translation: Translation, without_source: TargetScore | None
    ) -> list[CheckResult]:
        settings = self.settings
        results = check_texts(source, translation, self.languages, settings)
        if not translation.token_scores:
            return results
        from heedful.apps.quality.model_checks import (
            check_coverage,
            check_detached,
            check_probabilities,
        )

        results += check_probabilities(
            translation,
            translation.tokens,
            translation.token_scores,
            least_mean=settings.least_mean,
            least_token=settings.least_token,
        )
        if translation.alignment is not None:
            results.append(
                check_coverage(
                    source,
                    translation.alignment,
                    least_attention=settings.least_attention,
                    most_uncovered=settings.most_uncovered,
                )
            )
        if without_source is not None:
            results.append(
                check_detached(
                    translation,
                    translation.token_scores,
                    without_source.token_scores,
                    least=settings.least_difference,
                )
            )
        return results

    def _without_source(
        self, translations: Sequence[Translation], warn: Warn | None
    ) -> list[TargetScore | None]:
        """Return scores of translations given an empty source.

        None stands for a text that was translated in several pieces.
        """
        found: list[TargetScore | None] = [None] * len(translations)
        if not self.detached:
            return found
        assert self.pipeline is not None
        chosen = [
            i for i, each in enumerate(translations) if each and len(each.segment_lengths) < 2
        ]
        texts = [str(translations[i]) for i in chosen]
        for i, score in zip(
            chosen, self.pipeline.score([""] * len(texts), texts, warn=warn), strict=True
        ):
            found[i] = score
        return found


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
