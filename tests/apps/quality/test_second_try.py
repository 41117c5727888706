"""Second tries: the search that is asked for, and what is kept of it."""

from __future__ import annotations

import pytest

from heedful.apps.quality.checker import Checker
from heedful.apps.quality.reports import CheckResult, TranslationReport
from heedful.apps.quality.second_try import second_settings, try_again
from heedful.pipelines.text_splitting import Translation
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.search_settings import SearchSettings

SOURCES = ["A man rides a bicycle.", "We were very tired, so we went to bed early."]


def report(*failed: str) -> TranslationReport:
    return TranslationReport(tuple(CheckResult(name, True, 1, 0) for name in failed))


@pytest.mark.parametrize(
    ("failed", "changes"),
    [
        (("numbers",), {}),
        (("repetition",), {"no_repeat_ngram": 3}),
        (("too_short",), {"min_length": 6, "length_penalty": 1.0}),
        (("uncovered", "too_long"), {"min_length": 6, "length_penalty": 1.0, "no_repeat_ngram": 3}),
    ],
)
def test_the_search_follows_from_what_failed(
    failed: tuple[str, ...], changes: dict[str, float]
) -> None:
    plain = {"beam": 10, "n_best": 10, **changes}
    expected = SearchSettings(**plain)
    assert second_settings(SearchSettings(beam=5), report(*failed), 10) == expected


def test_limits_and_draws_are_respected() -> None:
    limited = second_settings(SearchSettings(max_length=4), report("too_short"), 10)
    assert (limited.min_length, limited.max_length) == (4, 4)
    drawn = second_settings(SearchSettings(sampling=True, seed=5), report("numbers"), 10)
    assert drawn.sampling
    assert drawn.seed == 6


def test_a_bad_translation_is_replaced_and_a_good_one_stays(
    translator: TranslationPipeline,
) -> None:
    checker = Checker(translator, ("en", "de"))
    good = translator.translate(SOURCES, alignment=True)
    bad = Translation("Wir waren sehr waren sehr müde, 12")
    first = [good[0], bad]
    reports = checker.reports(SOURCES, first)
    assert [each.in_doubt for each in reports] == [False, True]
    kept, new = try_again(checker, SOURCES, first, reports, SearchSettings())
    assert kept[0] is good[0]
    assert new[0] is reports[0]
    assert not new[1].in_doubt
    assert "12" not in kept[1]
    assert kept[1].others == ()
    assert checker.reports(SOURCES, kept) == new


def test_no_better_candidate_leaves_the_first(translator: TranslationPipeline) -> None:
    source = "Go to http://www.example.org/x?y=1 now."
    checker = Checker(translator, ("en", "de"))
    # Nothing is kept, so that the address is lost.
    first = translator.translate([source], alignment=True, protect=[])
    reports = checker.reports([source], first)
    kept, new = try_again(checker, [source], first, reports, SearchSettings(), protect=[])
    assert new[0].in_doubt
    assert len(new[0].failed) <= len(reports[0].failed)
    if len(new[0].failed) == len(reports[0].failed):
        assert kept[0] is first[0]
