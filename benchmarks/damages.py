"""Translations damaged in ways that are known, to measure what finds them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from heedful.apps.quality.kept_parts import protected_spans


@dataclass(frozen=True)
class Example:
    """A text and its translation.

    Args:
        source: the text.
        target: its translation.
        other: the translation of another text.
        foreign: its translation to a third language, where there is one.
        other_source: the text of `other`.
    """

    source: str
    target: str
    other: str
    foreign: str | None = None
    other_source: str = ""


Damage = Callable[[Example, random.Random], str | None]
"""Returns the damaged translation; None where the translation has nothing to be damaged."""

_QUOTES = re.compile(r"[\"“„«] ?([^\"“”„«»]+?) ?[\"”“»]")
_LONE_NUMBER = re.compile(r"(?<![\w.,:/-])\d+(?:[.,]\d+)*(?![\w:/-]|[.,]\d)")


def half_dropped(example: Example, draw: random.Random) -> str | None:
    """The second half of the words is missing."""
    words = example.target.split()
    return None if len(words) < 4 else " ".join(words[: len(words) // 2])


def end_dropped(example: Example, draw: random.Random) -> str | None:
    """The last third of the words is missing; the final mark is there."""
    words = example.target.split()
    if len(words) < 6:
        return None
    end = words[-1][-1] if words[-1][-1] in ".!?" else ""
    return " ".join(words[: len(words) * 2 // 3]).rstrip(",;:") + end


def half_closed(example: Example, draw: random.Random) -> str | None:
    """The second half of the words is missing; the final mark is there."""
    half = half_dropped(example, draw)
    end = example.target[-1] if example.target[-1:] in (".", "!", "?") else ""
    return half and half.rstrip(",;:") + end


def other_name(example: Example, draw: random.Random) -> str | None:
    """A name that both texts have is one of the other translation's text."""
    names, others = (
        {w for w in _NAME.findall(a) if re.search(rf"\b{w}\b", b)}
        for a, b in ((example.source, example.target), (example.other_source, example.other))
    )
    others -= set(_NAME.findall(f"{example.source} {example.target}"))
    if not names or not others:
        return None
    name, other = draw.choice(sorted(names)), draw.choice(sorted(others))
    return re.sub(rf"\b{name}\b", other, example.target)


_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")
_NEGATION = re.compile(r"\b(?:not|no|never|nobody|nothing)\b|n['’]t\b")
_DROPPED = re.compile(r"\b(?:nicht|nie|niemals) |\bk(?=ein)")


def negation_dropped(example: Example, draw: random.Random) -> str | None:
    """A word that denies is missing (in German)."""
    if not _NEGATION.search(example.source) or not _DROPPED.search(example.target):
        return None
    return _DROPPED.sub("", example.target, count=1)


def phrase_doubled(example: Example, draw: random.Random) -> str | None:
    """Two to four words stand there twice."""
    words = example.target.split()
    length = draw.randint(2, 4)
    if len(words) <= length:
        return None
    start = draw.randrange(len(words) - length)
    return " ".join(words[: start + length] + words[start:])


def loop(example: Example, draw: random.Random) -> str | None:
    """From some place on, one to three words are repeated."""
    words = example.target.split()
    length = draw.randint(1, 3)
    if len(words) <= length:
        return None
    start = draw.randrange(len(words) - length)
    return " ".join(words[:start] + words[start : start + length] * draw.randint(4, 8))


def number_changed(example: Example, draw: random.Random) -> str | None:
    """One digit of a number is another one."""
    places = _plain_numbers(example.target)
    if not places:
        return None
    start, end = draw.choice(places)
    digits = [i for i in range(start, end) if example.target[i].isdigit()]
    place = draw.choice(digits)
    first = place == digits[0] and len(digits) > 1
    others = [d for d in "0123456789"[first:] if d != example.target[place]]
    return example.target[:place] + draw.choice(others) + example.target[place + 1 :]


def number_dropped(example: Example, draw: random.Random) -> str | None:
    """A number is missing."""
    places = _plain_numbers(example.target)
    if not places:
        return None
    start, end = draw.choice(places)
    return _without(example.target, start, end)


def placeholder_lost(example: Example, draw: random.Random) -> str | None:
    """A placeholder, a tag or code is missing."""
    span = _kept(example, "placeholder", draw)
    return None if span is None else _without(example.target, *span)


def placeholder_doubled(example: Example, draw: random.Random) -> str | None:
    """A placeholder, a tag or code stands there twice."""
    span = _kept(example, "placeholder", draw)
    if span is None:
        return None
    text = example.target[slice(*span)]
    return f"{example.target[: span[1]]} {text}{example.target[span[1] :]}"


def placeholder_changed(example: Example, draw: random.Random) -> str | None:
    """A letter of a placeholder, a tag or code is another one."""
    span = _kept(example, "placeholder", draw)
    return None if span is None else _misspelt(example.target, span, draw)


def url_changed(example: Example, draw: random.Random) -> str | None:
    """A letter of an address is another one."""
    span = _kept(example, "url", draw)
    return None if span is None else _misspelt(example.target, span, draw)


def copied(example: Example, draw: random.Random) -> str | None:
    """The source stands in the place of the translation."""
    return None if len(example.source.split()) < 3 else example.source


def other_sentence(example: Example, draw: random.Random) -> str | None:
    """The translation of another text."""
    return example.other


def wrong_language(example: Example, draw: random.Random) -> str | None:
    """The right text, in a third language."""
    return example.foreign


def quote_lost(example: Example, draw: random.Random) -> str | None:
    """What was quoted is not quoted any more."""
    match = _QUOTES.search(example.target)
    if match is None:
        return None
    return example.target[: match.start()] + match[1] + example.target[match.end() :]


def words_untranslated(example: Example, draw: random.Random) -> str | None:
    """Three words in a row are those of the source."""
    return _mixed(example, 3, draw)


def word_untranslated(example: Example, draw: random.Random) -> str | None:
    """One word is that of the source."""
    return _mixed(example, 1, draw)


DAMAGES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "number changed": (number_changed, ("numbers",)),
    "number dropped": (number_dropped, ("numbers",)),
    "placeholder lost": (placeholder_lost, ("placeholders",)),
    "placeholder doubled": (placeholder_doubled, ("placeholders",)),
    "placeholder changed": (placeholder_changed, ("placeholders",)),
    "URL changed": (url_changed, ("urls",)),
    "quote lost": (quote_lost, ("quotes",)),
    "phrase doubled": (phrase_doubled, ("repetition",)),
    "loop": (loop, ("repetition",)),
    "half dropped": (half_dropped, ("too_short",)),
    "end dropped": (end_dropped, ("too_short",)),
    "negation dropped": (negation_dropped, ("negation",)),
    "source copied": (copied, ("copied", "language")),
    "wrong language": (wrong_language, ("language",)),
    "three words untranslated": (words_untranslated, ("untranslated", "copied")),
    "one word untranslated": (word_untranslated, ("untranslated",)),
}
"""Kinds of damage that texts alone show, and the checks that are to find each."""

OF_MEANING: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "half dropped": (half_dropped, ("too_short", "detached")),
    "half dropped, with its full stop": (half_closed, ("too_short", "detached")),
    "other sentence": (other_sentence, ("detached",)),
    "other name": (other_name, ("names",)),
    "negation dropped": (negation_dropped, ("negation",)),
}
"""Kinds of damage that a model is to find, and its checks."""


def _plain_numbers(text: str) -> list[tuple[int, int]]:
    """Places of numbers that are no part of something protected, and no lone 1 or zeros.

    A 1 may be said by any article, and "9 h 00" says no more than "9 h".
    """
    hidden = [(span.start, span.end) for span in protected_spans(text)]
    return [
        match.span()
        for match in _LONE_NUMBER.finditer(text)
        if match[0] != "1" and match[0].strip("0")
        if not any(start <= match.start() < end for start, end in hidden)
    ]


def _kept(example: Example, kind: str, draw: random.Random) -> tuple[int, int] | None:
    """Choose a part of a translation that is also in its source."""
    keys = {span.key for span in protected_spans(example.source)}
    found = [span for span in protected_spans(example.target) if span.kind == kind]
    spans = [(span.start, span.end) for span in found if span.key in keys]
    return draw.choice(spans) if spans else None


def _without(text: str, start: int, end: int) -> str:
    return " ".join((text[:start] + text[end:]).split())


def _misspelt(text: str, span: tuple[int, int], draw: random.Random) -> str | None:
    """Change one letter of what must stay, such as the target of a role and not its words."""
    letters = [i for i in range(*span) if text[i].isalpha()]
    draw.shuffle(letters)
    key = _key(text[slice(*span)])
    for place in letters:
        letter = draw.choice([each for each in "abcdefgh" if each != text[place].lower()])
        changed = text[:place] + letter + text[place + 1 :]
        if _key(changed[slice(*span)]) != key:
            return changed
    return None


def _key(part: str) -> str | None:
    """Return what must stay of a part; None if it is none any more."""
    spans = protected_spans(part)
    return spans[0].key if len(spans) == 1 and spans[0].text == part else None


def _mixed(example: Example, count: int, draw: random.Random) -> str | None:
    """Put words of the source into the translation, at about the same place."""
    mine, words = example.source.split(), example.target.split()
    # At least one of them is a word that both texts do not share, and no name.
    starts = [
        i
        for i in range(1, len(mine) - count)
        if any(w.isalpha() and w.islower() and w not in words for w in mine[i : i + count])
        and (count > 1 or (mine[i].isalpha() and len(mine[i]) > 3))
    ]
    if not starts or len(words) < count + 2:
        return None
    start = draw.choice(starts)
    place = min(len(words) - count, round(start / len(mine) * len(words)))
    return " ".join(words[:place] + mine[start : start + count] + words[place + count :])
