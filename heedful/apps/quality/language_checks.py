"""Checks of the script and the language of a translation."""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter

from heedful.apps.language_detector import detect_languages
from heedful.apps.quality.reports import CheckResult, Evidence

_SCRIPTS = {
    "Arab": ("ARABIC",),
    "Armn": ("ARMENIAN",),
    "Beng": ("BENGALI",),
    "Cyrl": ("CYRILLIC",),
    "Deva": ("DEVANAGARI",),
    "Ethi": ("ETHIOPIC",),
    "Geor": ("GEORGIAN",),
    "Grek": ("GREEK",),
    "Gujr": ("GUJARATI",),
    "Guru": ("GURMUKHI",),
    "Hans": ("CJK",),
    "Hant": ("CJK",),
    "Hebr": ("HEBREW",),
    "Jpan": ("CJK", "HIRAGANA", "KATAKANA"),
    "Khmr": ("KHMER",),
    "Knda": ("KANNADA",),
    "Kore": ("HANGUL", "CJK"),
    "Laoo": ("LAO",),
    "Latn": ("LATIN",),
    "Mlym": ("MALAYALAM",),
    "Mymr": ("MYANMAR",),
    "Sinh": ("SINHALA",),
    "Taml": ("TAMIL",),
    "Telu": ("TELUGU",),
    "Thai": ("THAI",),
}
"""Codes of scripts in CLDR, with the first words of the Unicode names of their letters."""

_MOST_FOREIGN = 0.5
_SEVERAL_SCRIPTS = frozenset(("sr", "uz", "az", "kk", "mn", "pa", "tt", "ku", "zh", "bs"))


def check_language(
    target: str,
    language: str,
    *,
    least_probability: float,
    fewest_letters: int,
) -> tuple[CheckResult, CheckResult]:
    """Check the script and the language of a translation.

    Args:
        target: translation with spaces in place of protected parts and code.
        language: code of the expected language.
        least_probability: probability of the language below which the check fails.
        fewest_letters: number of letters below which a translation is too short to identify its
            language.

    Returns:
        The results of the check of the script and of the check of the language.
    """
    letters = [character for character in target if character.isalpha()]
    return (
        _script_result(letters, target, language),
        _language_result(letters, target, language, least_probability, fewest_letters),
    )


def _script_result(letters: list[str], target: str, language: str) -> CheckResult:
    expected = _expected(language)
    share = 0.0
    if expected and letters and not (expected == ("LATIN",) and target.isascii()):
        scripts = Counter(map(_script, letters))
        share = 1 - sum(scripts[name] for name in expected) / len(letters)
    failed = share > _MOST_FOREIGN
    evidence = (Evidence("target", 0, len(target), target, "in another script"),) if failed else ()
    return CheckResult("script", failed, share, _MOST_FOREIGN, evidence)


def _language_result(
    letters: list[str], target: str, language: str, least: float, fewest: int
) -> CheckResult:
    code = language.split("-")[0].split("_")[0]
    ranked = detect_languages(target) if len(letters) >= fewest else []
    probabilities = dict(ranked)
    if code not in probabilities:
        return CheckResult("language", False, 1.0, least)
    value = probabilities[code]
    if len(letters) < 2 * fewest:  # names and loanwords weigh more in a short text
        least /= 10
    failed = value < least
    note = f"looks like {ranked[0][0]}"
    evidence = (Evidence("target", 0, len(target), target, note),) if failed else ()
    return CheckResult("language", failed, value, least, evidence)


@functools.cache
def _expected(language: str) -> tuple[str, ...]:
    """Return the script names of a language; empty for several scripts or an unknown language."""
    from babel.core import get_global

    code = language.replace("-", "_")
    if code in _SEVERAL_SCRIPTS:
        return ()
    likely = get_global("likely_subtags").get(code, code)
    scripts = [part for part in likely.split("_") if len(part) == 4]
    return _SCRIPTS.get(scripts[0], ()) if scripts else ()


@functools.lru_cache(maxsize=4096)
def _script(character: str) -> str:
    return unicodedata.name(character, "").split(" ")[0].split("-")[0]
