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
from heedful.apps.quality.negation_check import check_negation
from heedful.apps.quality.number_check import check_numbers
from heedful.apps.quality.reports import CheckResult, Languages
from heedful.apps.quality.wording_checks import (
    check_copies,
    check_length,
    check_quotes,
    check_repetition,
    check_sentences,
    without_markup,
)
from heedful.config import Config

CHECKS = {
    "numbers": "each number of the source is in the translation, and no other",
    "urls": "URLs and e-mail addresses are those of the source",
    "placeholders": "placeholders, tags, code and emoji are there as often as in the source",
    "quotes": "as much is quoted as in the source",
    "repetition": "no phrase follows itself, and nothing loops",
    "too_short": "not much shorter than the source, nor without its end",
    "too_long": "not much longer than the source",
    "sentences": "no sentence of the source is lost",
    "negation": "it denies something if the source does",
    "copied": "the source was not copied",
    "untranslated": "no words in a row stand there as in the source",
    "script": "written in the script of its language",
    "language": "written in its language",
    "lost_names": "each name of the source is in the translation, or a word like it",
    "unseen_word": "each word is one of the source or of the model's training data",
    "unsure": "the mean log-probability of its tokens is not low",
    "unsure_word": "no token has a very low probability",
    "uncovered": "the words of the source were attended to",
    "detached": "the source makes the translation more probable",
    "names": "no name of the source is another one",
    "lost_words": "it is more probable with each word of the source than without",
}
"""The names of checks, each with the property of a translation that passes."""


class CheckSettings(Config):
    """Thresholds of the checks.

    They were chosen on the validation parts of Tatoeba and Multi30k and on news, and evaluated on
    other sentences (`benchmarks/checks.py`).
    """

    shortest: Annotated[float, Field(lt=0)] = Field(
        -1.5, description="minimum deviation from the expected length, in standard deviations"
    )
    longest: Annotated[float, Field(gt=0)] = Field(
        3.0, description="maximum deviation from the expected length, in standard deviations"
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
        0.2, description="minimum attention to a source word, summed over the translation"
    )
    most_uncovered: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.2, description="maximum share of source words below the minimum attention"
    )
    least_difference: float | None = Field(
        None,
        description="minimum mean gain in log-probability of a target token by the source, plus "
        "what both texts have in common; if unset, 0.75, and in files what 95 of 100 translations "
        "do not reach with the source of another line",
    )
    least_repair: float = Field(
        -10.0,
        description="change of log-probability, when a name of the source replaces a word of the "
        "translation, above which the word counts as a wrong name",
    )
    most_gain: float = Field(
        0.3,
        description="change of log-probability, when a word of the source is left out, above which "
        "the word counts as lost",
    )
    advisory: tuple[str, ...] | None = Field(
        None,
        description="checks whose failures are reported without putting a translation in doubt; "
        "if unset, quotes, and for given translations also lost_names, unseen_word, unsure, "
        "unsure_word and uncovered",
    )

    def advises(self, name: str, *, given: bool) -> bool:
        """Return True for a check that puts no translation in doubt.

        Args:
            name: name of the check.
            given: True for translations that the model did not make: people write text that a model
                finds improbable.
        """
        if self.advisory is not None:
            return name in self.advisory
        return name == "quotes" or (given and name in _OF_ITS_OWN)


_OF_ITS_OWN = ("lost_names", "unseen_word", "unsure", "unsure_word", "uncovered")
DEFAULT = CheckSettings()


def _check_denial(source: str, target: str, languages: Languages) -> list[CheckResult]:
    left, right = languages
    return [] if left is None or right is None else [check_negation(source, target, left, right)]


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
        languages: codes of source and target language, such as en and de. With None for an unknown
            language, number words, script and language are not checked.
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
        check_sentences(source, target, languages),
        *_check_denial(source, target, languages),
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
