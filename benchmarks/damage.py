"""Kinds of damage that is done to sentence pairs on purpose."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from heedful.apps.quality.number_forms import find_numbers, pair_numbers

Pair = tuple[str, str]
Foreign = list[str]
Damage = Callable[[list[Pair], Foreign, random.Random], list[Pair]]
"""Of pairs, texts in a third language, and draws: the damaged pairs, perhaps fewer."""


def shuffled(pairs: list[Pair], _: Foreign, draw: random.Random) -> list[Pair]:
    """Each with the target of another one."""
    targets = [target for _, target in pairs]
    shift = draw.randrange(1, len(pairs))
    return [(s, targets[(n + shift) % len(pairs)]) for n, (s, _) in enumerate(pairs)]


def wrong_language(pairs: list[Pair], foreign: Foreign, draw: random.Random) -> list[Pair]:
    """Each with a target in a third language."""
    return [(source, draw.choice(foreign)) for source, _ in pairs]


def swapped(pairs: list[Pair], _: Foreign, __: random.Random) -> list[Pair]:
    """Source and target exchanged."""
    return [(target, source) for source, target in pairs]


def truncated(pairs: list[Pair], _: Foreign, __: random.Random) -> list[Pair]:
    """The first third of each target."""
    return [(source, target[: max(1, len(target) // 3)]) for source, target in pairs]


def copied(pairs: list[Pair], _: Foreign, __: random.Random) -> list[Pair]:
    """The source as the target."""
    return [(source, source) for source, _ in pairs]


def mojibake(pairs: list[Pair], _: Foreign, draw: random.Random) -> list[Pair]:
    """Targets whose UTF-8 was read as Latin-1 or Windows-1252; those of ASCII have none."""
    found = []
    for source, target in pairs:
        if target.isascii():
            continue
        raw = target.encode()
        try:
            found.append((source, raw.decode(draw.choice(("latin-1", "cp1252")))))
        except UnicodeDecodeError:
            found.append((source, raw.decode("latin-1")))
    return found


def changed_number(pairs: list[Pair], _: Foreign, draw: random.Random) -> list[Pair]:
    """A digit changed in targets whose numbers are those of the source; others have none."""
    found = []
    for source, target in pairs:
        places = [n for n, letter in enumerate(target) if letter in "0123456789"]
        if places and not any(pair_numbers(find_numbers(source), find_numbers(target))[1:]):
            n = draw.choice(places)
            digit = str((int(target[n]) + draw.randrange(1, 10)) % 10)
            found.append((source, target[:n] + digit + target[n + 1 :]))
    return found


def repeated(pairs: list[Pair], _: Foreign, __: random.Random) -> list[Pair]:
    """Nothing changed; they are there twice."""
    return pairs


def marked_up(pairs: list[Pair], _: Foreign, draw: random.Random) -> list[Pair]:
    """Targets with tags of HTML."""
    forms = ("<p>{}</p>", "<b>{}</b>", '<a href="/x">{}</a>', "{}<br>", "<li>{}")
    return [(source, draw.choice(forms).format(target)) for source, target in pairs]


def question_marks(pairs: list[Pair], _: Foreign, __: random.Random) -> list[Pair]:
    """Targets whose letters beyond ASCII became question marks; those of ASCII have none."""
    return [
        (source, "".join("?" if c.isalpha() and not c.isascii() else c for c in target))
        for source, target in pairs
        if any(c.isalpha() and not c.isascii() for c in target)
    ]


def same_target(pairs: list[Pair], _: Foreign, __: random.Random) -> list[Pair]:
    """Each with one and the same target, for 500 pairs."""
    return [(source, pairs[0][1]) for source, _ in pairs[:500]]


def without_spaces(pairs: list[Pair], _: Foreign, __: random.Random) -> list[Pair]:
    """Targets without spaces, of at least four words."""
    kept = [pair for pair in pairs if len(pair[1].split()) >= 4]
    return [(source, target.replace(" ", "")) for source, target in kept]


def out_of_step(pairs: list[Pair], _: Foreign, __: random.Random) -> list[Pair]:
    """Each with the target of the line after it."""
    return [(s, t) for (s, _), (_, t) in pairwise(pairs)]


KINDS: tuple[Damage, ...] = (
    shuffled, wrong_language, swapped, truncated, copied, mojibake, changed_number, repeated,
    marked_up, question_marks, same_target, without_spaces, out_of_step,
)  # fmt: skip
