"""Pairs of an English and a German sentence, made by a grammar, in which one word decides another.

    python benchmarks/pretrained/grammar_sentences.py --out DIR

German chooses pronouns by the gender of what they stand for, nouns by their sense, and the place of
a verb by the kind of clause; corpora of everyday sentences have few that show it. Each pattern here
draws such a sentence from the words of en_de_words.toml with its translation, and says which words
the translation must have, so that a translator can be scored by them.

Of every six nouns one is held out, and of every eight verbs where two are left of a class: no
training sentence has them. The pattern `reason_as` is held out as a whole. `train.tsv` holds the
sentences to train on; `known.tsv`, `unseen.tsv` and `pattern.tsv` test new combinations of known
words, held-out words and the held-out pattern, with the words that are wanted in a third column and
the pattern in a fourth. `all.tsv` has sentences of all words and patterns, but none of the tests: a
model learns from it that was measured before.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from grammar_words import ARTICLES, PRONOUNS, Noun, Verb, Words, nouns_of, vocabulary

SENTENCES = 80_000
TESTED = 200
"""Test sentences of each pattern, or a quarter of those that it makes."""

FEWEST = 50
"""Test sentences of a pattern that makes few, if there are as many."""


@dataclass(frozen=True)
class Item:
    """A sentence, its translation, and words that stand in a right translation."""

    source: str
    target: str
    wanted: tuple[str, ...] = ()


def too(words: Words) -> tuple[str, str]:
    """Return `too` in both languages, or nothing."""
    return words.draw.choice([("too ", "zu "), ("", ""), ("very ", "sehr ")])


def reason_way(words: Words) -> Item:
    """The animal did not cross the street because it was too tired, or too wide."""
    return _way(words, "{0} didn't {1} {2} because it was {3}.", "{0} {1} nicht, weil {2}.")


def reason_first(words: Words) -> Item:
    """Because it was too wide, the animal did not cross the street."""
    return _way(
        words, "Because it was {3}, {0} did not {1} {2}.", "Weil {2}, {1} nicht.", turned=True
    )


def reason_as(words: Words) -> Item:
    """The animal did not cross the street, as it was too tired (held out)."""
    return _way(words, "{0} did not {1} {2}, as it was {3}.", "{0} {1} nicht, da {2}.")


def _way(words: Words, source: str, target: str, *, turned: bool = False) -> Item:
    animal, way, verb = words.noun("animal"), words.noun("way"), words.verb("cross")
    kind, meant = words.draw.choice([("animal", animal), ("way", way)])
    (english, german), (much, viel) = words.adjective(kind), too(words)
    it = PRONOUNS["nom"][meant.gender]
    # After a clause the verb stands before its subject.
    middle = f"{animal.the('nom')} {way.the('acc')}" if turned else way.the("acc")
    made = target.format(animal.the("nom"), verb.main(middle), f"{it} {viel}{german} war")
    said = source.format(
        f"the {animal.english}", verb.english, f"the {way.english}", much + english
    )
    conjunction = "da" if ", da " in made else "weil"
    return Item(_begun(said), _begun(made), (f"{conjunction} {it}",))


def reason_seat(words: Words) -> Item:
    """The cat sat on the mat because it was tired, or soft."""
    animal, seat, verb = words.noun("animal"), words.noun("seat"), words.verb("rest")
    kind, meant = words.draw.choice([("animal", animal), ("seat", seat)])
    (english, german), (much, viel) = words.adjective(kind), too(words)
    it = PRONOUNS["nom"][meant.gender]
    return Item(
        f"The {animal.english} {verb.past} on the {seat.english} because it was {much}{english}.",
        f"{_begun(animal.the('nom'))} {verb.main('auf ' + seat.the('dat'))}, "
        f"weil {it} {viel}{german} war.",
        (f"weil {it}",),
    )


def reason_thing(words: Words) -> Item:
    """The woman sold the coat because it was old, or because she was poor."""
    person, thing, verb = words.noun("person"), words.noun("thing"), words.verb("take")
    kind, meant = words.draw.choice([("person", person), ("thing", thing)])
    (english, german), (much, viel) = words.adjective(kind), too(words)
    it = PRONOUNS["nom"][meant.gender]
    he = "it" if meant is thing else {"m": "he", "f": "she"}[person.gender]
    return Item(
        f"The {person.english} {_parted(verb, thing)} because {he} was {much}{english}.",
        f"{_begun(person.the('nom'))} {verb.main(thing.the('acc'))}, weil {it} {viel}{german} war.",
        (f"weil {it}",),
    )


def reason_many(words: Words) -> Item:
    """The cats didn't cross the street because they were tired, or because it was wide."""
    animal, way, verb = words.noun("animal"), words.noun("way"), words.verb("cross")
    kind = words.draw.choice(["animal", "way"])
    (english, german), (much, viel) = words.adjective(kind), too(words)
    they, be = ("they", "were") if kind == "animal" else ("it", "was")
    sie = "sie" if kind == "animal" else PRONOUNS["nom"][way.gender]
    waren = "waren" if kind == "animal" else "war"
    return Item(
        f"The {animal.plural} didn't {verb.english} the {way.english} "
        f"because {they} {be} {much}{english}.",
        f"{_begun(animal.the('nom', plural=True))} {verb.main(way.the('acc'), plural=True)} nicht, "
        f"weil {sie} {viel}{german} {waren}.",
        (f"weil {sie}", waren),
    )


def object_pronoun(words: Words) -> Item:
    """John picked up the ball. He threw it away."""
    (name, gender), thing = words.name(), words.noun("thing")
    first, second = words.draw.sample(words.verbs["take"], 2)
    he, him = PRONOUNS["nom"][gender], PRONOUNS["acc"][thing.gender]
    english = {"m": "He", "f": "She"}[gender]
    parts = second.past.split(" ")
    return Item(
        f"{name} {_parted(first, thing)}. {english} {' '.join([parts[0], 'it', *parts[1:]])}.",
        f"{name} {first.main(thing.the('acc'))}. {_begun(he)} {second.main(him)}.",
        (him,),
    )


def order(words: Words) -> Item:
    """The verb is second, last, or in two parts."""
    person, thing, verb = words.noun("person"), words.noun("thing"), words.verb("take")
    the, a, das = f"the {person.english}", person.the("nom"), thing.the("acc")
    when, wann = words.draw.choice(
        [
            *[("Yesterday", "Gestern"), ("In the morning", "Am Morgen")],
            *[("Last week", "Letzte Woche"), ("In the end", "Am Ende")],
        ]
    )
    know, weiss = words.draw.choice(
        [
            *[("I know", "Ich weiß"), ("He says", "Er sagt"), ("She believes", "Sie glaubt")],
            *[("We heard", "Wir hörten"), ("It is true", "Es ist wahr")],
        ]
    )
    want, will = words.draw.choice(
        [("wants to", "will"), ("has to", "muss"), ("can", "kann"), ("should", "sollte")]
    )
    infinitive = verb.prefix + verb.german
    said, asked = _parted(verb, thing), _parted(verb, thing, past=False)
    return words.draw.choice(
        [
            Item(f"{when}, {the} {said}.", f"{wann} {verb.main(f'{a} {das}')}."),
            Item(f"{know} that {the} {said}.", f"{weiss}, dass {a} {das} {verb.last()}."),
            Item(f"{_begun(the)} {want} {asked}.", f"{_begun(a)} {will} {das} {infinitive}."),
            Item(f"Did {the} {asked}?", f"Hat {a} {das} {verb.participle}?"),
        ]
    )


def roles(words: Words) -> Item:
    """The dog bit the man, and the other way round."""
    first, second = words.two("animal", "person")
    verb = words.verb("meet")
    if words.draw.random() < 0.2:
        english, german = words.draw.choice(list(words.table["headlines"].items()))
        made = f"{first.word('nom')} {german} {second.word('acc')}."
        return Item(f"{_begun(first.english)} {english} {second.english}.", made)
    return Item(
        f"The {first.english} {verb.past} the {second.english}.",
        f"{_begun(first.the('nom'))} {verb.main(second.the('acc'))}.",
        (second.the("acc"),),
    )


def nested(words: Words) -> Item:
    """The cat that the dog that the boy owned chased ran away."""
    first, second = words.two("animal")
    third, verb, go = words.noun("person"), words.verb("meet"), words.verb("go")
    hold = words.verb("hold")
    which = ARTICLES["acc"]  # relative pronouns of objects have the article's forms
    a, das = _begun(first.the("nom")), which[first.gender]
    kind = words.draw.randrange(3)
    if kind == 0:
        inner = f"{which[second.gender]} {third.the('nom')} {hold.last()}"
        return Item(
            f"The {first.english} that the {second.english} that the {third.english} {hold.past} "
            f"{verb.past} {go.past}.",
            f"{a}, {das} {second.the('nom')}, {inner}, {verb.last()}, {go.main('')}.",
            (f"{das} {second.the('nom')}", inner),
        )
    if kind == 1:
        return Item(
            f"The {first.english} that the {third.english} {verb.past} {go.past}.",
            f"{a}, {das} {third.the('nom')} {verb.last()}, {go.main('')}.",
            (f"{das} {third.the('nom')}",),
        )
    subject = ARTICLES["nom"][first.gender]
    return Item(
        f"The {first.english} that {verb.past} the {third.english} {go.past}.",
        f"{a}, {subject} {third.the('acc')} {verb.last()}, {go.main('')}.",
        (f"{subject} {third.the('acc')}",),
    )


def negation(words: Words) -> Item:
    """Nothing, nobody, never and no."""
    person, thing, verb = words.noun("person"), words.noun("thing"), words.verb("take")
    the, a, das = f"The {person.english}", _begun(person.the("nom")), thing.the("acc")
    no = thing.none()
    return words.draw.choice(
        [
            Item(
                f"{the} did not {_parted(verb, thing, past=False)}.",
                f"{a} {verb.main(f'{das} nicht')}.",
                ("nicht",),
            ),
            Item(
                f"{the} never {_parted(verb, thing)}.", f"{a} {verb.main(f'{das} nie')}.", ("nie",)
            ),
            Item(f"Nobody {_parted(verb, thing)}.", f"Niemand {verb.main(das)}.", ("Niemand",)),
            Item(f"{the} has no {thing.english}.", f"{a} hat {no}.", (no,)),
        ]
    )


def instrument(words: Words) -> Item:
    """I saw the man with the telescope."""
    person, verb = words.noun("person", "animal"), words.verb("meet")
    tool = words.draw.choice(nouns_of(words.table["tools"], words.table["plurals"]))
    english, german = words.draw.choice([("I", "Ich"), ("He", "Er"), ("She", "Sie")])
    return Item(
        f"{english} {verb.past} the {person.english} with the {tool.english}.",
        f"{german} {verb.main(person.the('acc'))} mit {tool.the('dat')}.",
        (f"mit {tool.the('dat')}",),
    )


def names(words: Words) -> Item:
    """My name is Badorin."""
    one, other = words.made_name(), words.made_name()
    source, target = words.draw.choice(list(words.table["named"].items()))
    number = words.draw.randrange(len((_choices(source) or [[""]])[0]))
    source, target = _chosen(source, number), _chosen(target, number)
    wanted = tuple(name for place, name in (("{0}", one), ("{1}", other)) if place in source)
    return Item(source.format(one, other), target.format(one, other), wanted)


def bank(words: Words) -> Item:
    """She sat on the bank of the river; the bank lent the woman money."""
    table, draw = words.table["bank"], words.draw
    person, animal = words.noun("person"), words.noun("animal", "person")
    (water, des), things = draw.choice(table["water"]), draw.choice(table["things"])
    (adjective, inflected, plain) = draw.choice(table["shore"])
    verb = words.verb("rest")
    moved, german_moved = draw.choice(table["moving"])
    if draw.random() < 0.5:
        river = [
            Item(
                f"The {animal.english} {verb.past} on the bank of the {water}.",
                f"{_begun(animal.the('nom'))} {verb.main(f'am Ufer des {des}')}.",
            ),
            Item(
                f"The {animal.english} {moved} to the {adjective} bank of the {water}.",
                f"{_begun(animal.the('nom'))} {german_moved} zum {inflected}n Ufer des {des}.",
            ),
            Item(
                f"There are {things[0]} on the bank of the {water}.",
                f"Am Ufer des {des} sind {things[1]}.",
            ),
        ]
        if plain:
            said, made = draw.choice([("is", "ist"), ("was", "war")])
            river.append(
                Item(
                    f"The bank of the {water} {said} {adjective}.",
                    f"Das Ufer des {des} {made} {plain}.",
                )
            )
        item, wanted = draw.choice(river), "Ufer"
    else:
        (english, german), state = draw.choice(table["money"]), draw.choice(table["open"])
        gave, gab, what, was = draw.choice(table["gives"])
        money = [
            Item(f"The {person.english} {english}.", f"{_begun(person.the('nom'))} {german}."),
            Item(
                f"The bank {gave} the {person.english} {what}.",
                f"Die Bank {gab} {person.the('dat')} {was}.",
            ),
            Item(f"The bank is {state[0]}.", f"Die Bank ist {state[1]}."),
        ]
        item, wanted = draw.choice(money), "Bank"
    return Item(item.source, item.target, (wanted,))


def senses(words: Words) -> Item:
    """The bat slept in the cave; he hit the ball with a bat."""
    word = words.draw.choice(list(words.table["senses"]))
    source, target = words.draw.choice(words.table["senses"][word])
    # The last choice of each template is for tests.
    last = len(_choices(source)[0]) - 1
    number = last if words.tested else words.draw.randrange(last)
    made = _chosen(target, number)
    found = re.search(SENSE_WORDS[word], made)
    return Item(_chosen(source, number), made, (found[0],) if found else ())


def reason_since(words: Words) -> Item:
    """The animal could not cross the street since it was too tired, or too wide."""
    return _not_able(words, "since", "da")


def reason_able(words: Words) -> Item:
    """The animal can't cross the street because it is too tired, or too wide."""
    return _not_able(words, "because", "weil")


def _not_able(words: Words, conjunction: str, german_conjunction: str) -> Item:
    animal, way, verb = words.noun("animal"), words.noun("way"), words.verb("cross")
    kind, meant = words.draw.choice([("animal", animal), ("way", way)])
    (english, german), (much, viel) = words.adjective(kind), too(words)
    it = PRONOUNS["nom"][meant.gender]
    (not_able, nicht), be, war = words.draw.choice(
        [
            *[(modal, "was", "war") for modal in words.table["modals"]["past"]],
            *[(modal, "is", "ist") for modal in words.table["modals"]["present"]],
        ]
    )
    return Item(
        f"The {animal.english} {not_able} {verb.english} the {way.english} "
        f"{conjunction} it {be} {much}{english}.",
        f"{_begun(animal.the('nom'))} {nicht} {way.the('acc')} nicht {verb.german}, "
        f"{german_conjunction} {it} {viel}{german} {war}.",
        (f"{german_conjunction} {it}",),
    )


def fit(words: Words) -> Item:
    """The ball did not fit in the box because it was too big, or too small."""
    thing = words.noun("thing")
    holders = words.table["holders"]
    holder = words.draw.choice(nouns_of(holders, words.table["plurals"]))
    while holder.english == thing.english:
        thing = words.noun("thing")
    (english, german), meant = words.draw.choice(
        [
            *[(("big", "groß"), thing), (("wide", "breit"), thing), (("long", "lang"), thing)],
            *[(("small", "klein"), holder), (("full", "voll"), holder)],
            (("narrow", "schmal"), holder),
        ]
    )
    it = PRONOUNS["nom"][meant.gender]
    into = words.draw.choice(["in", "into"])
    return Item(
        f"The {thing.english} did not fit {into} the {holder.english} because it was too "
        f"{english}.",
        f"{_begun(thing.the('nom'))} passte nicht in {holder.the('acc')}, weil {it} zu {german} "
        "war.",
        (f"weil {it}",),
    )


def bank_place(words: Words) -> Item:
    """The bank by the river was eroded."""
    water, by, des = words.draw.choice(words.table["bank"]["by"])
    adjective, inflected, plain = words.draw.choice(
        [s for s in words.table["bank"]["shore"] if s[2]]
    )
    who = words.noun("person", "animal")
    be, war = words.draw.choice([("is", "ist"), ("was", "war")])
    item = words.draw.choice(
        [
            Item(f"The bank by the {water} {be} {adjective}.", f"Das Ufer {by} {war} {plain}."),
            Item(
                f"The {adjective} bank of the {water} {be} empty.",
                f"Das {inflected} Ufer des {des} {war} leer.",
            ),
            Item(
                f"The {who.english} walked along the bank of the {water}.",
                f"{_begun(who.the('nom'))} ging am Ufer des {des} entlang.",
            ),
        ]
    )
    return Item(item.source, item.target, ("Ufer",))


SENSE_WORDS = {
    "bat": "Fledermaus|Schläger",
    "spring": "Frühling|Quelle",
    "match": "Streichholz|Spiel",
    "letter": "Brief|Buchstaben",
    "glasses": "Brille|Gläser",
    "plant": r"Pflanze|\w*abrik",
    "light": "leicht|hell",
    "key": "Schlüssel|Taste",
    "seal": "Robbe|Siegel",
    "crane": "Kranich|Kran",
    "trunk": "Rüssel|Kofferraum",
}

PATTERNS: dict[str, tuple[Callable[[Words], Item], float]] = {
    "reason_way": (reason_way, 2),
    "reason_seat": (reason_seat, 2),
    "reason_thing": (reason_thing, 2),
    "reason_many": (reason_many, 1),
    "reason_first": (reason_first, 3),
    "reason_as": (reason_as, 0),
    "object_pronoun": (object_pronoun, 6),
    "order": (order, 2),
    "roles": (roles, 3),
    "nested": (nested, 1),
    "negation": (negation, 0.5),
    "instrument": (instrument, 0.5),
    "names": (names, 6),
    "bank": (bank, 4),
    "senses": (senses, 1),
    "reason_since": (reason_since, 1),
    "reason_able": (reason_able, 2),
    "fit": (fit, 1),
    "bank_place": (bank_place, 2),
}
"""Patterns with their weights in training; that of weight 0 is held out."""


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="training sentences")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, lines in parts(arguments.sentences).items():
        (arguments.out / f"{name}.tsv").write_text("".join(f"{x}\n" for x in lines), "utf-8")


def parts(sentences: int = SENTENCES) -> dict[str, list[str]]:
    """Return the lines of the files by their names."""
    words = {
        "known": vocabulary(random.Random(1), tested=True),
        "unseen": vocabulary(random.Random(2), tested=True, held_out=True),
        "pattern": vocabulary(random.Random(3), tested=True),
    }
    lines: dict[str, list[str]] = {name: [] for name in words}
    asked: set[str] = set()
    for name, (make, weight) in PATTERNS.items():
        for place in ("known", "unseen") if weight else ("pattern",):
            for item in _different(make, words[place], TESTED):
                asked.add(item.source)
                fields = [item.source, item.target, "|".join(item.wanted), name]
                lines[place].append("\t".join(fields))
    made = {
        "train": _drawn(vocabulary(random.Random(4)), sentences),
        "all": _drawn(vocabulary(random.Random(5), held_out=None), sentences, held_out=1),
    }
    # Repeats stay: patterns with few sentences (66 of `senses`) would count for nothing without.
    fresh = {
        name: [f"{each.source}\t{each.target}" for each in items if each.source not in asked]
        for name, items in made.items()
    }
    return {**fresh, **lines}


def _drawn(words: Words, count: int, *, held_out: float = 0) -> list[Item]:
    """Return sentences of patterns by their weights, with that of the pattern held out."""
    weights = [weight or held_out for _, weight in PATTERNS.values()]
    patterns = [make for make, _ in PATTERNS.values()]
    return [make(words) for make in words.draw.choices(patterns, weights, k=count)]


def _different(make: Callable[[Words], Item], words: Words, count: int) -> list[Item]:
    """Return up to `count` items with different sources: no more than leaves enough to train on."""
    found: dict[str, Item] = {}
    for _ in range(count * 20):
        item = make(words)
        found[item.source] = item
        if len(found) == 4 * count:
            break
    # Where a pattern makes few sentences, all would be tests and none be left to learn from.
    return list(found.values())[: max(len(found) // 4, FEWEST)]


def _parted(verb: Verb, thing: Noun, *, past: bool = True) -> str:
    """Return an English verb with its object before its particle: threw the coat away."""
    first, *particle = (verb.past if past else verb.english).split(" ")
    return " ".join([first, "the", thing.english, *particle])


def _begun(text: str) -> str:
    return text[0].upper() + text[1:]


def _choices(text: str) -> list[list[str]]:
    return [found.split("|") for found in re.findall(r"\{([^{}]*\|[^{}]*)\}", text)]


def _chosen(text: str, number: int) -> str:
    """Return a template with the choice of that number in each place."""
    return re.sub(r"\{([^{}]*\|[^{}]*)\}", lambda found: found[1].split("|")[number], text)


Test = tuple[str, str, tuple[str, ...], str]
"""Source, translation, wanted words and pattern."""


def read_tests(path: Path) -> Iterator[Test]:
    """Yield the tests of a file, one a line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        source, target, wanted, pattern = line.split("\t")
        yield source, target, tuple(filter(None, wanted.split("|"))), pattern


def has(translation: str, words: str) -> bool:
    """Return whether a translation has these words, punctuation and case aside."""
    said, wanted = (
        " ".join(["", *re.findall(r"\w+", text.lower()), ""]) for text in (translation, words)
    )
    return wanted in said


if __name__ == "__main__":
    main()
