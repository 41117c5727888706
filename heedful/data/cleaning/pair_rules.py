"""The rules that look at one pair: its characters, its lengths, copies and numbers.

Each gives a pair a doubt, 1 at the rule's limit and more past it, so that pairs can be ranked.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from heedful.data.cleaning.cleaning_settings import CleaningSettings, RuleName
from heedful.data.cleaning.text_keys import without_code
from heedful.errors import ConfigError
from heedful.text.number_forms import Number, find_numbers, pair_numbers

ABOUT: dict[RuleName, str] = {
    "no_pair": "the line is not a source and a target",
    "undecodable": "bytes that are not UTF-8, or a NUL byte",
    "empty": "a side has nothing but white space",
    "control_character": "a control, private or unassigned character",
    "replacement_character": "U+FFFD, left by a conversion for what it could not read",
    "mojibake": "UTF-8 that was read in another encoding, such as Ã¼ for ü",
    "too_long": "a side is longer than a limit",
    "length_ratio": "one side is too long for the other",
    "copied": "the target is its source",
    "numbers": "each side has a number that the other lacks",
    "language": "a side is in another language",
    "leak": "the source is in the test data",
    "near_leak": "the source is nearly the same as one in the test data",
    "model": "the source tells a model little about its target",
    "duplicate": "the pair is the same as an earlier one",
    "many_targets": "the source has many other targets before",
}
"""Descriptions of the rules, in the order in which rules remove pairs."""

SMOOTHING = 10
"""Letters added to both sides where lengths are compared: short pairs vary more."""

_FEWEST_WORDS = 4
"""Fewer words are names and titles, which are often the same in both languages."""

# Unicode's Cc but for the tab, private use, non-characters, and a byte order mark inside a text.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ue000-\uf8ff\ufdd0-\ufdef\ufeff\ufffe\uffff]")
_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_SYLLABLE = re.compile("[\u3040-\u30ff\uac00-\ud7a3]")  # kana and hangul
_WORD = re.compile(r"[^\W_]+")
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class PairRule:
    """One rule about one pair.

    Args:
        name: the rule.
        doubt: a number for source and target: 1 or more where the rule finds the pair.
        detail: a sentence part about a pair that was found.
    """

    name: RuleName
    doubt: Callable[[str, str], float]
    detail: Callable[[str, str], str]


def pair_rules(settings: CleaningSettings) -> list[PairRule]:
    """Return the rules that are on, in their order.

    Args:
        settings: their limits.

    Raises:
        ConfigError: when a library that a rule needs is not installed.
    """
    s = settings
    rules = [
        PairRule("empty", _empty, lambda a, b: "target" if a.strip() else "source"),
        PairRule("control_character", _matches(_CONTROL), _first(_CONTROL)),
        PairRule("replacement_character", _replaced, lambda a, b: "U+FFFD"),
        PairRule("mojibake", _mojibake, _damaged_words),
        PairRule(
            "too_long",
            lambda a, b: max(len(a), len(b)) / (s.max_characters + 0.5),
            lambda a, b: f"{max(len(a), len(b)):,} characters",
        ),
        PairRule(
            "length_ratio",
            lambda a, b: length_ratio(a, b) / s.max_length_ratio,
            lambda a, b: f"{len(a):,} characters beside {len(b):,}",
        ),
        PairRule(
            "copied",
            lambda a, b: overlap(a, b) / s.max_overlap,
            lambda a, b: f"{overlap(a, b):.0%} of the words",
        ),
        PairRule("numbers", _numbers_differ, _different_numbers),
    ]
    if s.is_on("mojibake"):
        _is_damaged()  # missing libraries are missed before anything is read
    return [rule for rule in rules if s.is_on(rule.name)]


def letters(text: str) -> int:
    """The length of a text in letters of an alphabet.

    An ideograph counts as 3 letters and a syllable of kana or hangul as 2: what they take in
    translations into languages with alphabets, about.

    Args:
        text: one side of a pair.
    """
    if text.isascii():
        return len(text)
    return len(text) + 2 * len(_IDEOGRAPH.findall(text)) + len(_SYLLABLE.findall(text))


def length_ratio(source: str, target: str) -> float:
    """The length of the longer side over that of the shorter, with 10 letters added to each.

    Args:
        source, target: a pair.
    """
    a, b = letters(source) + SMOOTHING, letters(target) + SMOOTHING
    return max(a, b) / min(a, b)


def overlap(source: str, target: str) -> float:
    """The share of the words of the longer side that both have; 0 for fewer than 4 words.

    Words that look like code are left out: they are the same in both languages.

    Args:
        source, target: a pair.
    """
    left, right = (_WORD.findall(text.casefold()) for text in (source, target))
    if set(left).isdisjoint(right):
        return 0.0
    left, right = (_WORD.findall(without_code(text.casefold())) for text in (source, target))
    if min(len(left), len(right)) < _FEWEST_WORDS:
        return 0.0
    common = sum((Counter(left) & Counter(right)).values())
    return common / max(len(left), len(right))


def _lacking(source: str, target: str) -> tuple[list[Number], list[Number]]:
    _, left, right = pair_numbers(find_numbers(source), find_numbers(target))
    return left, right


def _numbers_differ(source: str, target: str) -> float:
    """1 where each side has a number that the other lacks, in any form.

    One that only one side has is mostly written in letters on the other, so it is no fault.
    """
    if not (_DIGIT.search(source) and _DIGIT.search(target)):
        return 0.0
    return float(all(_lacking(source, target)))


def _different_numbers(source: str, target: str) -> str:
    left, right = (
        ", ".join(sorted(number.text for number in side)) for side in _lacking(source, target)
    )
    return f"{left} beside {right}"


def _empty(source: str, target: str) -> float:
    return float(not source.strip() or not target.strip())


def _replaced(source: str, target: str) -> float:
    return float("\ufffd" in source or "\ufffd" in target)


def _matches(pattern: re.Pattern[str]) -> Callable[[str, str], float]:
    return lambda a, b: float(bool(pattern.search(a) or pattern.search(b)))


def _first(pattern: re.Pattern[str]) -> Callable[[str, str], str]:
    def name(source: str, target: str) -> str:
        match = pattern.search(source) or pattern.search(target)
        return f"U+{ord(match[0]):04X}" if match else ""

    return name


def _mojibake(source: str, target: str) -> float:
    return float(
        (not source.isascii() and _is_damaged()(source))
        or (not target.isascii() and _is_damaged()(target))
    )


def _damaged_words(source: str, target: str) -> str:
    words = [word for word in f"{source} {target}".split() if _mojibake(word, "")]
    return ", ".join(words[:3])


@functools.cache
def _is_damaged() -> Callable[[str], bool]:
    """The detector of ftfy (Speer 2019): sequences that only wrong decoding makes."""
    if importlib.util.find_spec("ftfy") is None:
        raise ConfigError(
            "Damaged encodings are found with ftfy, which is not installed",
            where="mojibake",
            remedy="Install it with: pip install 'heedful[data]', or switch the rule off: "
            "--off mojibake",
        )
    from ftfy.badness import is_bad

    return is_bad
