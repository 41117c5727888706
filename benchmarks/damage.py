"""Kinds of damage that is done to sentence pairs on purpose."""

from __future__ import annotations

import random
from collections.abc import Callable

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


KINDS: tuple[Damage, ...] = (
    shuffled, wrong_language, swapped, truncated, copied, mojibake, changed_number, repeated,
)  # fmt: skip
