"""The check of negation: the translation of a negated text is negated as well."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from heedful.apps.quality.kept_parts import stays_in
from heedful.apps.quality.reports import CheckResult, Evidence, counted

_WORDS = {
    "da": ("ikke aldrig ingen intet ingenting hverken", "uden nej næppe"),
    "de": (
        "nicht nichts nix kein kein(?:s|e[mnrs]?|erlei|esfalls|eswegs|ste[mnrs]) nie niemals "
        "niemand(?:e[mn])? nirgend(?:s|wo\\w*) weder",
        "ohne nein kaum vergeblich\\w* erfolglos\\w* erst mitnichten un(?!d\\b|s\\b|ter|ser)\\w+ "
        "vermeid\\w* vermied\\w* verhinder\\w* \\w*weiger\\w* erspar\\w* widerspr\\w+ leugn\\w* "
        "bestreit\\w* bestritt\\w* zurück\\w*wiesen abgelehnt ablehn\\w* fehl(?:t|te|ten|en) "
        "mangel\\w* entf[aä]ll\\w* entfiel\\w* übers(?:ah|äh|eh|ieh)\\w* verzicht\\w* scheiter\\w* "
        "ausblieb\\w* blieb\\w*(?=[^.,;]*\\baus\\b) weiterhin "
        "wenig(?:en?)? spätestens in\\w{3,}[ai]bel\\w* egal gleichgültig\\w* vergebens "
        "\\w{3,}los(?:e[mnrs]?)? ausgeschlossen ausschließlich nee nö nich net",
    ),
    "en": (
        "not no never nobody nothing none neither nor nowhere cannot \\w+n['’]t",
        "without hardly barely scarcely unable fail(?:s|ed|ure)? refus\\w+ lack\\w* "
        "un(?!ti|de)\\w{3,} \\w{3,}less(?:ly)? i[mn]\\w{3,}ble only non yet(?=\\sto\\b) avoid\\w* "
        "prevent\\w* den(?:y|ies|ied) reject\\w* cancel\\w* absen\\w+ overlook\\w* "
        "dis(?:agree|allow|approve|like)\\w*",
    ),
    "es": (
        "no nunca jamás nada nadie ning[uú]n\\w* tampoco",
        "sin ni apenas des\\w+ in\\w+ble im\\w+ble",
    ),
    "fr": (
        "ne n['’]\\w+ jamais rien aucun\\w*",
        "sans pas non ni personne plus guère nul\\w* in\\w+ble im\\w+ble",
    ),
    "it": ("non mai niente nulla nessun\\w*", "senza no né neanche nemmeno neppure"),
    "nb": ("ikke aldri ingen intet ingenting verken", "uten nei neppe"),
    "nl": ("niet niets geen nooit niemand nergens noch", "zonder nee nauwelijks on\\w{4,}"),
    "pl": ("nie nigdy nic nikt nikogo nikomu żad\\w+", "bez ani nie\\w+"),
    "pt": ("não nunca jamais nada ninguém nenhum\\w*", "sem nem tampouco in\\w+vel im\\w+vel"),
    "ru": ("не нет нельзя никогда никто никого ничего ничто", "без ни не\\w+ бес\\w+ без\\w+"),
    "sv": ("inte ej aldrig ingen inget inga ingenting varken", "utan nej knappast o\\w{4,}"),
    "uk": ("не немає ніколи ніхто нікого нічого", "без ні не\\w+ без\\w+ жодн\\w+"),
}
"""Negation words of each language: sure negations, which need a counterpart, and others, which may
be a counterpart. Languages that negate only by endings or prefixes of verbs are missing."""

# "isn't it?" asks for agreement, "not until" is translated as "erst", "not only" and "no doubt"
# negate nothing, and "non-essential" and "warn not to" have translations without negation words.
_NO_DENIAL = {
    "en": r", ?(?:\w+n['’]t|am not) \w+ ?\?|(?:n['’]t|\bnot) (?:only|until|just)\b"
    r"|\bno[ -](?:doubt|matter|brainer)\b|\bno(?:t|n)?-\w+|\bwarn\w*\b[^.,;]{1,40}\bnot to\b"
    r"|-(?:\w+n['’]t|not?)-\w+|\bNo\. ?\d|(?:n['’]t|\bnot)\b[^.,;!?]{1,40}\b(?:until|unless)\b"
    r"|\bno(?:t|n['’]t)? (?:later than|long (?:after|before|ago))\b|\bnever more so\b"
    r"|\bno (?:kidding|way)\b|\bnothing but\b|\bnone the\b|\bcouldn['’]t (?:help|agree more)\b"
    r"|\b(?:why|how about|would|wo|do|did|is|are|can|could|should)n['’]t (?:we|you|I)\b[^.]*\?",
    "de": r"\bnicht (?:nur|zuletzt|selten)\b|\bwie kein\w*\b|, (?:nicht wahr|oder nicht|nicht) ?\?",
    "fr": r", n['’]est-ce pas ?\?|\bne\b[^.,;]{1,40}\bque\b|\bn['’][^.,;]{1,40}\bque\b",
}


class _Patterns(NamedTuple):
    """Patterns of a language: sure negations, all negations, and phrases that negate nothing."""

    sure: re.Pattern[str]
    any: re.Pattern[str]
    no_denial: re.Pattern[str]


@functools.cache
def _patterns(language: str) -> _Patterns | None:
    """Return the patterns of a language; None for a language without negation words."""
    code = re.split("[-_]", language)[0].lower()
    if code not in _WORDS:
        return None
    sure, other = _WORDS[code]
    # For a language without such phrases the pattern matches nowhere; an empty one would match
    # everywhere.
    texts = (_any_of(sure), _any_of(f"{sure} {other}"), _NO_DENIAL.get(code, r"(?!)"))
    return _Patterns(*(re.compile(text, re.IGNORECASE) for text in texts))


def _any_of(words: str) -> str:
    return rf"\b(?:{'|'.join(words.split())})\b"


def check_negation(
    source: str, target: str, source_language: str, target_language: str
) -> CheckResult:
    """Find a negation of the source that has no counterpart in the translation.

    Args:
        source: source text.
        target: text of its translation.
        source_language, target_language: language codes. Nothing is found if one has no negation
            words.

    Returns:
        The result; its value is the number of negations without a counterpart.
    """
    left, right = _patterns(source_language), _patterns(target_language)
    if left is None or right is None:
        return counted("negation", [])
    plain = left.no_denial.sub(lambda match: " " * len(match[0]), source)
    found = [] if right.any.search(target) else left.sure.finditer(plain)
    return counted(
        "negation",
        [
            Evidence("source", *match.span(), match[0], "not denied there")
            for match in found
            if not stays_in(match[0], target)  # "No justice, no peace" may stay
        ],
    )
