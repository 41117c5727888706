"""Nouns and verbs of English and German with their forms, and draws from them."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = Path(__file__).with_name("en_de_words.toml")

ARTICLES = {
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
}
PRONOUNS = {
    "nom": {"m": "er", "f": "sie", "n": "es", "p": "sie"},
    "acc": {"m": "ihn", "f": "sie", "n": "es", "p": "sie"},
}


VOWELS = [*"aeiou" * 3, "ei", "au", "ie", "y", "oo"]


@dataclass(frozen=True)
class Noun:
    """A noun in both languages.

    Args:
        english, plural: English singular and plural.
        gender: m, f or n.
        german, german_plural: German singular and plural.
        weak: flag of the declension with -n in all cases but the nominative.
    """

    english: str
    plural: str
    gender: str
    german: str
    german_plural: str
    weak: bool = False

    def the(self, case: str, *, plural: bool = False) -> str:
        """Return the German noun with its article; `case` is nom, acc or dat."""
        return f"{ARTICLES[case]['p' if plural else self.gender]} {self.word(case, plural=plural)}"

    def word(self, case: str, *, plural: bool = False) -> str:
        """Return the German noun without an article."""
        if plural:
            ending = "" if case != "dat" or self.german_plural[-1] in "ns" else "n"
            return self.german_plural + ending
        return self.german_plural if self.weak and case != "nom" else self.german

    def none(self) -> str:
        """Return the German noun with `kein` as an object."""
        return f"{ {'m': 'keinen', 'f': 'keine', 'n': 'kein'}[self.gender] } {self.word('acc')}"


@dataclass(frozen=True)
class Verb:
    """A verb in both languages; `prefix` is parted from it in main clauses."""

    english: str
    past: str
    german: str
    german_past: str
    participle: str
    prefix: str = ""

    def main(self, rest: str, *, plural: bool = False) -> str:
        """Return the past of a main clause, with what stands between the verb and its prefix."""
        return " ".join(filter(None, [self._past(plural=plural), rest, self.prefix]))

    def last(self, *, plural: bool = False) -> str:
        """Return the past at the end of a subordinate clause."""
        return self.prefix + self._past(plural=plural)

    def _past(self, *, plural: bool) -> str:
        ending = ("n" if self.german_past.endswith("e") else "en") if plural else ""
        return self.german_past + ending


@dataclass
class Words:
    """Words from which patterns draw.

    Args:
        draw: source of random numbers.
        nouns, verbs: nouns and verbs by class.
        table: the other tables of the file.
        tested: flag that the sentences are for tests.
    """

    draw: random.Random
    nouns: dict[str, list[Noun]]
    verbs: dict[str, list[Verb]]
    table: Mapping[str, Any] = field(repr=False)
    tested: bool = False

    def noun(self, *kinds: str) -> Noun:
        return self.draw.choice([noun for kind in kinds for noun in self.nouns[kind]])

    def two(self, *kinds: str) -> tuple[Noun, Noun]:
        first, second = self.draw.sample([n for kind in kinds for n in self.nouns[kind]], 2)
        return first, second

    def verb(self, kind: str) -> Verb:
        return self.draw.choice(self.verbs[kind])

    def adjective(self, kind: str) -> tuple[str, str]:
        return self.draw.choice(list(self.table["adjectives"][kind].items()))

    def name(self) -> tuple[str, str]:
        """Return a name and its gender."""
        name, gender = self.draw.choice(self.table["names"]["given"])
        return name, gender

    def made_name(self) -> str:
        """Return a name that hardly anybody has, to be copied."""
        draw = self.draw
        starts, middles, ends = (
            self.table["names"][part] for part in ("starts", "middles", "ends")
        )
        name = draw.choice(starts) + draw.choice(VOWELS)
        for _ in range(draw.randint(0, 2)):
            name += draw.choice(middles) + draw.choice(VOWELS)
        return name.capitalize() + draw.choice(ends)


def vocabulary(
    draw: random.Random, *, tested: bool = False, held_out: bool | None = False
) -> Words:
    """Return the words of training, those that it never has, or all.

    Args:
        draw: source of random numbers.
        tested: flag that the sentences are for tests.
        held_out: flag of the held-out words; None for all words.
    """
    table = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    nouns = {
        kind: _part(nouns_of(entries, table["plurals"]), 6, held_out=held_out)
        for kind, entries in table["nouns"].items()
    }
    verbs = {
        kind: _part(list(map(_verb, entries.items())), 8, held_out=held_out)
        for kind, entries in table["verbs"].items()
    }
    return Words(draw, nouns, verbs, table, tested)


def _part(words: list[Any], each: int, *, held_out: bool | None) -> list[Any]:
    """Return every `each`-th word, or the others; all where a class would have fewer than two."""
    if held_out is None:
        return words
    kept = [word for number, word in enumerate(words) if (number % each == each - 1) == held_out]
    return kept if len(kept) > 1 else words


def nouns_of(entries: Mapping[str, str], plurals: Mapping[str, str]) -> list[Noun]:
    """Return nouns, given entries of en_de_words.toml and the irregular English plurals."""
    nouns = []
    for english, entry in entries.items():
        gender, german, plural, *rest = entry.split()
        many = plurals.get(english, f"{english}s")
        nouns.append(Noun(english, many, gender, german, plural, weak="weak" in rest))
    return nouns


def _verb(entry: tuple[str, str]) -> Verb:
    english, forms = entry
    past, infinitive, german_past, participle = forms.split()
    prefix, bar, rest = infinitive.partition("|")
    german = rest if bar else infinitive
    prefix = prefix if bar else ""
    return Verb(english, past.replace("_", " "), german, german_past, participle, prefix)
