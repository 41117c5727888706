"""A second search for translations in doubt, whose result is kept if its report is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heedful.apps.quality.checker import Checker
from heedful.apps.quality.reports import TranslationReport
from heedful.pipelines.text_splitting import Translation
from heedful.search.search_settings import SearchSettings

if TYPE_CHECKING:
    from heedful.pipelines.glossary import Glossary
    from heedful.pipelines.text_splitting import Warn

_WIDER = 2
_NARROWEST = 8
_NO_REPEAT = 3
_LOW_PENALTY = 1.0
_SHORTEST = 0.6
"""Minimum length of a second search after a translation that was too short, in tokens per source
token."""


def second_settings(
    settings: SearchSettings, report: TranslationReport, source_tokens: int
) -> SearchSettings:
    """Return the settings of a second search, by the failed checks of a translation.

    The beam is twice as wide, at least 8, and all its hypotheses are candidates. After a
    repetition no sequence of three tokens may repeat; after a translation that was too short there
    is a minimum length and a length penalty of 1, which favours longer translations. A search with
    sampling samples again.

    Args:
        settings: settings of the first search.
        report: report on its translation.
        source_tokens: mean number of source tokens of the pieces in which the text was translated.
    """
    failed = set(report.failed)
    changes: dict[str, object] = {}
    if settings.sampling:
        changes |= {"seed": settings.seed + 1, "n_best": max(settings.n_best, _NARROWEST)}
    else:
        width = max(_NARROWEST, _WIDER * settings.beam)
        changes |= {"beam": width, "n_best": width}
    if failed & {"repetition", "too_long"}:
        changes["no_repeat_ngram"] = settings.no_repeat_ngram or _NO_REPEAT
    if failed & {"too_short", "uncovered", "lost_words"}:
        shortest = max(settings.min_length, round(_SHORTEST * source_tokens))
        limit = settings.max_length
        changes["min_length"] = shortest if limit is None else min(shortest, limit)
        changes["length_penalty"] = max(settings.length_penalty, _LOW_PENALTY)
    return SearchSettings.parse({**settings.plain(), **changes})


def try_again(
    checker: Checker,
    sources: Sequence[str],
    translations: Sequence[Translation],
    reports: Sequence[TranslationReport],
    settings: SearchSettings,
    *,
    glossary: Glossary | None = None,
    protect: Sequence[str] | None = None,
    warn: Warn | None = None,
) -> tuple[list[Translation], list[TranslationReport]]:
    """Search again for translations in doubt, and keep candidates with better reports.

    A report is better if fewer checks failed. Among equal reports the first translation wins, then
    the more probable candidate.

    Args:
        checker: checker with the translator.
        sources: source texts.
        translations: translation of each source.
        reports: report on each translation.
        settings: settings of the first search.
        glossary, protect: arguments of the first search.
        warn: function called with a message when memory ran out and a batch was split.

    Returns:
        Translations and reports, replaced where the second search was better. A replaced
        translation has no next-best translations.
    """
    assert checker.pipeline is not None
    kept, new_reports = list(translations), list(reports)
    encode = checker.pipeline.tokenizers.source.encode
    # Texts with the same search settings share batches.
    groups: dict[str, tuple[SearchSettings, list[int]]] = {}
    for i, report in enumerate(reports):
        if report.in_doubt:
            pieces = max(
                len(translations[i].segment_lengths), 1
            )  # the minimum length depends on the source
            other = second_settings(settings, report, len(encode(sources[i])) // pieces)
            groups.setdefault(other.model_dump_json(), (other, []))[1].append(i)
    for other, places in groups.values():
        texts = [sources[i] for i in places]
        found = checker.pipeline.translate(
            texts, settings=other, glossary=glossary, protect=protect, alignment=True, warn=warn
        )
        flat = [(i, each) for i, best in zip(places, found, strict=True) for each in best.n_best]
        candidates = [each for _, each in flat]
        checked = checker.reports([sources[i] for i, _ in flat], candidates, warn=warn)
        for (i, candidate), report in zip(flat, checked, strict=True):
            if candidate and len(report.failed) < len(new_reports[i].failed):
                candidate.others = ()
                kept[i], new_reports[i] = candidate, report
    return kept, new_reports
