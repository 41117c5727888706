"""The checks that need only a text and its translation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from heedful.apps.quality.kept_parts import (
    blanked,
    check_placeholders,
    check_urls,
    only_in,
    protected_spans,
    without_numbers,
)
from heedful.apps.quality.language_checks import check_language
from heedful.apps.quality.number_check import check_numbers
from heedful.apps.quality.reports import CheckResult
from heedful.apps.quality.wording_checks import (
    check_copies,
    check_length,
    check_quotes,
    check_repetition,
    without_markup,
)
from heedful.config import Config

CHECKS = {
    "numbers": "each number of the source is in the translation, and no other",
    "urls": "URLs and e-mail addresses are those of the source",
    "placeholders": "placeholders, tags, code and emoji are there as often as in the source",
    "quotes": "as much is quoted as in the source",
    "repetition": "no phrase follows itself, and nothing loops",
    "too_short": "not much shorter than the source",
    "too_long": "not much longer than the source",
    "copied": "the source was not copied",
    "untranslated": "no words in a row stand there as in the source",
    "script": "written in the script of its language",
    "language": "written in its language",
    "unsure": "the mean log-probability of its tokens is not low",
    "unsure_word": "no token has a very low probability",
    "uncovered": "the words of the source were attended to",
    "detached": "the source makes the translation more probable",
}
"""The names of checks, with the property of a translation that passes."""


class CheckSettings(Config):
    """Thresholds of the checks.

    They were chosen on Tatoeba and Multi30k, and evaluated on other sentences and on Python's
    documentation (`benchmarks/checks.py`).
    """

    shortest: Annotated[float, Field(lt=0)] = Field(
        -1.5, description="minimum deviation of the length, in standard deviations"
    )
    longest: Annotated[float, Field(gt=0)] = Field(
        3.0, description="maximum deviation of the length, in standard deviations"
    )
    most_copied: Annotated[float, Field(gt=0, le=1)] = Field(
        0.6, description="maximum share of the translation's words copied from the source"
    )
    longest_run: Annotated[int, Field(ge=1)] = Field(
        2, description="maximum number of copied words in a row"
    )
    least_language: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.01, description="minimum probability of the expected language"
    )
    fewest_letters: Annotated[int, Field(ge=1)] = Field(
        10, description="minimum number of letters for language detection"
    )
    least_mean: Annotated[float, Field(lt=0)] = Field(
        -0.9, description="minimum mean log-probability of the tokens of a translation"
    )
    least_token: Annotated[float, Field(lt=0)] = Field(
        -3.5, description="minimum log-probability of a single token"
    )
    least_attention: Annotated[float, Field(ge=0)] = Field(
        0.2, description="minimum sum of attention to a source word"
    )
    most_uncovered: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.2, description="maximum share of source words with less attention"
    )
    least_difference: float = Field(
        1.0, description="minimum gain in log-probability of a token from the source, in the mean"
    )


DEFAULT = CheckSettings()

Languages = tuple[str | None, str | None]


def check_kept(source: str, target: str, languages: Languages = (None, None)) -> list[CheckResult]:
    """Check that a translation keeps numbers, addresses, placeholders and code.

    Args:
        source: source text.
        target: text of its translation.
        languages: codes of source and target language, None where unknown.
    """
    left, right = protected_spans(source), protected_spans(target)
    hidden = without_numbers(left, right), without_numbers(right, left)
    return [
        check_numbers(
            blanked(source, hidden[0]),
            blanked(target, hidden[1]),
            languages,
            (only_in(source, hidden[0], right), only_in(target, hidden[1], left)),
        ),
        check_urls(left, right),
        check_placeholders(left, right, source, target),
    ]


def check_texts(
    source: str,
    target: str,
    languages: Languages = (None, None),
    settings: CheckSettings = DEFAULT,
) -> list[CheckResult]:
    """Check a translation by its text alone.

    Args:
        source: source text.
        target: text of its translation.
        languages: codes of source and target language, such as en and de. None where unknown: then
            number words, script and language are not checked.
        settings: thresholds of the checks.

    Returns:
        A result for each check that could be made, in the order of `CHECKS`.
    """
    plain, other = (blanked(text, protected_spans(text)) for text in (source, target))
    results = [
        *check_kept(source, target, languages),
        check_quotes(plain, other),
        check_repetition(source, target),
        *check_length(source, target, shortest=settings.shortest, longest=settings.longest),
        *check_copies(
            plain,
            other,
            most_copied=settings.most_copied,
            longest_run=settings.longest_run,
        ),
    ]
    if languages[1] is not None:
        results += check_language(
            without_markup(other),
            languages[1],
            least_probability=settings.least_language,
            fewest_letters=settings.fewest_letters,
        )
    return results
