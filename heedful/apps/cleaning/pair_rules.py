"""The rules about single pairs: characters, lengths, copies and numbers.

Each rule gives a pair a doubt, which is 1 at the rule's limit and more beyond it; doubts rank
pairs.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from heedful.apps.cleaning.cleaning_settings import CleaningSettings, RuleName
from heedful.apps.cleaning.text_keys import without_code
from heedful.apps.quality.number_forms import Number, find_numbers, pair_numbers
from heedful.apps.quality.wording_checks import text_length
from heedful.errors import ConfigError
from heedful.text.pretokenization import is_spaceless

ABOUT: dict[RuleName, str] = {
    "no_pair": "the line is not a source and a target",
    "undecodable": "bytes that are not UTF-8, or a NUL byte",
    "empty": "a side has nothing but white space",
    "control_character": "a control, private or unassigned character",
    "replacement_character": "U+FFFD, left by a conversion for what it could not read",
    "mojibake": "UTF-8 that was read in another encoding, such as Ã¼ for ü",
    "lost_letters": "question marks in place of letters, such as f?r for für",
    "lost_spaces": "a side has lost its spaces",
    "markup": "HTML on one side only",
    "too_long": "a side is longer than a limit",
    "length_ratio": "one side is too long for the other",
    "copied": "the target is its source",
    "numbers": "each side has a number that the other lacks",
    "language": "a side is in another language",
    "leak": "the source is in the test data",
    "near_leak": "the source is nearly the same as one in the test data",
    "model": "the source tells a model little about its target",
    "shifted": "targets belong to the lines before or after",
    "duplicate": "the pair is the same as an earlier one",
    "many_targets": "the source has many other targets before",
    "many_sources": "the target has many other sources before",
}
"""Descriptions of the rules, in the order in which rules remove pairs."""

SMOOTHING = 10
"""Letters added to both sides of a length ratio, since ratios of short pairs vary more."""

_FEWEST_WORDS = 4
"""Minimum number of words of a copy; shorter texts are often names and titles."""

# Unicode's Cc without the tab, private use, non-characters, and a byte order mark inside a text.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ue000-\uf8ff\ufdd0-\ufdef\ufeff\ufffe\uffff]")
# Letters and digits of any script, without the underscore that \w includes.
_WORD = re.compile(r"[^\W_]+")
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class PairRule:
    """One rule about single pairs.

    Args:
        name: name of the rule.
        doubt: function that returns the doubt of source and target, at least 1 if the rule finds
            them.
        detail: function that describes the finding in source and target in a phrase.
    """

    name: RuleName
    doubt: Callable[[str, str], float]
    detail: Callable[[str, str], str]


def pair_rules(settings: CleaningSettings) -> list[PairRule]:
    """Return the rules that are switched on, in their order.

    Args:
        settings: limits of the rules.

    Raises:
        ConfigError: when a library that a rule needs is not installed.
    """
    s = settings
    rules = [
        PairRule("empty", _empty, lambda a, b: "target" if a.strip() else "source"),
        PairRule("control_character", _matches(_CONTROL), _first(_CONTROL)),
        PairRule("replacement_character", _replaced, lambda a, b: "U+FFFD"),
        PairRule("mojibake", _mojibake, _damaged_words),
        PairRule("lost_letters", _letters_lost, _questioned_words),
        PairRule(
            "lost_spaces",
            _spaces_lost,
            _crowded_side,
        ),
        PairRule("markup", _one_sided_markup, lambda a, b: ", ".join(_TAG.findall(a + b)[:3])),
        PairRule(
            "too_long",
            # Half a character is added, so that a text of exactly the limit stays below 1.
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
        _is_damaged()  # loads ftfy, so that a missing library is reported before a corpus is read
    return [rule for rule in rules if s.is_on(rule.name)]


def length_ratio(source: str, target: str) -> float:
    """Return the ratio of the longer side to the shorter one, after adding 10 letters to each.

    Args:
        source, target: texts of the pair.
    """
    a, b = text_length(source) + SMOOTHING, text_length(target) + SMOOTHING
    return max(a, b) / min(a, b)


def overlap(source: str, target: str) -> float:
    """Return the share of the longer side's words that the other side has; 0 below 4 words.

    Words that look like code are left out, since they are the same in all languages.

    Args:
        source, target: texts of the pair.
    """
    left, right = (_WORD.findall(text.casefold()) for text in (source, target))
    # Most pairs share no word and need no slower comparison without code.
    if set(left).isdisjoint(right):
        return 0.0
    # Words that look like code are removed only here, because removing them is slow.
    left, right = (_WORD.findall(without_code(text.casefold())) for text in (source, target))
    if min(len(left), len(right)) < _FEWEST_WORDS:
        return 0.0
    common = sum((Counter(left) & Counter(right)).values())
    return common / max(len(left), len(right))


def _lacking(source: str, target: str) -> tuple[list[Number], list[Number]]:
    _, left, right = pair_numbers(find_numbers(source), find_numbers(target))
    return left, right


def _numbers_differ(source: str, target: str) -> float:
    """Return 1 if each side has a number that the other side lacks, in whatever form it is written.

    A number on one side only is mostly spelled out on the other, so it does not count.
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


# Question marks between letters, before a word, before punctuation, or where a sentence goes on.
_QUESTIONED = re.compile(
    r"[^\W\d_]\?[^\W\d_]|(?<![^\s(\"'’„“«])\?[^\W\d_]{2}"
    r"|[^\W\d_]\?(?=[.,;]| [a-zß-ÿ])|(?<= )\?(?= [a-zß-ÿ])"
)


def _letters_lost(source: str, target: str) -> float:
    """Return 1 if question marks replace letters that a conversion could not encode."""
    if "?" not in source and "?" not in target:
        return 0.0
    left, right = (len(_QUESTIONED.findall(without_code(each))) for each in (source, target))
    # A real question has a question mark on both sides.
    return float(left != right and source.count("?") != target.count("?"))


def _questioned_words(source: str, target: str) -> str:
    text = target if "?" in target else source
    return ", ".join([word for word in text.split() if "?" in word][:3])


_CROWDED = 9  # least mean word length of a text that has lost its spaces
_TIMES_AS_MANY = 3  # least ratio of the numbers of words of the two texts
_LONGEST_WORD = 24  # a longer word must be a sentence without spaces
_AS_LONG = 0.6  # least ratio of lengths: the short "Schade!" translates "What a pity!"


def _spaces_lost(source: str, target: str) -> float:
    """Return 1 if one side has lost its spaces, and the other side has many words."""
    crowded, other = (source, target) if _crowd(source) > _crowd(target) else (target, source)
    words, other_words = len(crowded.split()), len(other.split())
    if _crowd(crowded) < _CROWDED or other_words < max(4, _TIMES_AS_MANY * words):
        return 0.0
    letters = len(other) - other_words
    if words == 1 and len(crowded) <= _LONGEST_WORD and crowded[-1] not in ".!?…":
        return 0.0  # "Feuerwehrhauptmann", the fire department captain
    is_lost = len(crowded) >= _AS_LONG * letters and not any(map(is_spaceless, crowded + other))
    return float(is_lost and "://" not in crowded)


def _crowded_side(source: str, target: str) -> str:
    return "source" if _crowd(source) > _crowd(target) else "target"


def _crowd(text: str) -> float:
    """Return the mean length of words."""
    words = text.split()
    return sum(map(len, words)) / max(len(words), 1)


_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]*)?/?>|&(?:[a-z]{2,8}|#\d{2,6});")


def _one_sided_markup(source: str, target: str) -> float:
    """Return 1 if only one side has HTML tags or entities."""
    return float(bool(_TAG.search(source)) != bool(_TAG.search(target)))


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
    """Load ftfy's detector of text that was decoded wrongly (Speer 2019)."""
    if importlib.util.find_spec("ftfy") is None:
        raise ConfigError(
            "The rule for damaged encodings needs ftfy, which is not installed",
            where="mojibake",
            remedy="Install it with: pip install 'heedful[data]', or switch the rule off: "
            "--off mojibake",
        )
    from ftfy.badness import is_bad

    return is_bad
