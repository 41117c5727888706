"""Pairs of an English and a German sentence about models, texts and machines, made by a grammar.

    python benchmarks/pretrained/field_sentences.py --out DIR

Who looks into a Transformer types sentences about Transformers, whose words hardly stand in corpora
of everyday sentences. Each pattern here draws such a sentence from the words of en_de_field.toml,
with its translation: articles and adjectives follow gender, case and number, verbs their clause.
`field-train.tsv` holds the sentences to train on; `field.tsv` tests combinations of the same words
that are not among them, in the columns of grammar_sentences.py.
"""

from __future__ import annotations

import argparse
import random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grammar_words import ARTICLES, Noun

WORDS = Path(__file__).with_name("en_de_field.toml")

SENTENCES = 40_000
TESTED = 50
"""Test sentences of each pattern."""

ENDINGS = {
    "nom": {"m": "er", "f": "e", "n": "es", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "es", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
    "gen": {"m": "es", "f": "er", "n": "es", "p": "er"},
}
"""Endings of `dies-`, and of an adjective that nothing stands before."""

BARE = {("nom", "m"), ("nom", "n"), ("acc", "n")}
"""Cases and genders in which `ein` has no ending, and an adjective after it has that of `dies-`."""

DEFINITE = {"the": "", "this": "dies", "every": "jed"}
INDEFINITE = {"a": "ein", "no": "kein", "my": "mein", "our": "unser"}
THE = {**ARTICLES, "gen": {"m": "des", "f": "der", "n": "des", "p": "der"}}
COUNTS = {"two": "zwei", "three": "drei", "four": "vier", "six": "sechs", "many": "viele"}
MODALS = [
    ("can", "kann", "können"),
    ("must", "muss", "müssen"),
    ("should", "sollte", "sollten"),
    ("will", "wird", "werden"),
]
PRONOUNS = [
    ("I", "ich", "i"),
    ("we", "wir", "p"),
    ("they", "sie", "p"),
    ("he", "er", "s"),
    ("she", "sie", "s"),
]
ADVERBS = [("often", "oft"), ("always", "immer"), ("never", "nie"), ("sometimes", "manchmal")]
TIMES = [
    ("Today", "Heute"),
    ("Every day", "Jeden Tag"),
    ("Now", "Jetzt"),
    ("In the end", "Am Ende"),
]
CLAUSES = [("because", "weil"), ("if", "wenn"), ("when", "wenn"), ("before", "bevor")]
SAYS = [("I know", "Ich weiß"), ("She says", "Sie sagt"), ("We think", "Wir denken")]
FEELS = [("love", "liebe", "lieben"), ("like", "mag", "mögen"), ("need", "brauche", "brauchen")]
ORDERED = ("first", "next", "last")
"""Adjectives that stand after `the` alone."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class FieldNoun(Noun):
    """A noun that also has a genitive; `adjective` is the stem of one that belongs to its name."""

    genitive: str = ""
    adjective: str = ""

    def word(self, case: str, *, plural: bool = False) -> str:
        """Return the German noun without an article; `case` is also gen."""
        if case == "gen" and not plural:
            return self.genitive
        return super().word(case, plural=plural)

    def phrase(
        self, case: str, before: str, adjectives: Sequence[str] = (), *, plural: bool = False
    ) -> str:
        """Return the German noun with what stands before it.

        Args:
            case: nom, acc, dat or gen.
            before: English determiner or number; empty for none.
            adjectives: German stems.
            plural: flag of the plural.
        """
        gender = "p" if plural else self.gender
        strong = ENDINGS[case][gender]
        if before in INDEFINITE and (case, gender) in BARE:
            article, ending = INDEFINITE[before], strong
        elif before in DEFINITE or before in INDEFINITE:
            is_weak = (case == "nom" and not plural) or (case == "acc" and gender in "fn")
            stem = (DEFINITE | INDEFINITE)[before]
            article = THE[case][gender] if before == "the" else stem + strong
            ending = "e" if is_weak else "en"
        else:
            article, ending = COUNTS.get(before, ""), strong
        stems = [*adjectives, *filter(None, [self.adjective])]
        words = [article, *(stem + ending for stem in stems), self.word(case, plural=plural)]
        return " ".join(filter(None, words))


@dataclass(frozen=True)
class Verb:
    """A verb in both languages."""

    english: str
    third: str
    participle: str
    german: str
    first: str
    er: str
    german_participle: str

    @property
    def prefix(self) -> str:
        """What is parted from the German verb in main clauses."""
        return self.german.partition("|")[0] if "|" in self.german else ""

    def infinitive(self, to: str = "") -> str:
        """Return the infinitive, with `zu` where it is asked for."""
        prefix, bar, rest = self.german.rpartition("|")
        return f"{prefix}{to}{rest}" if bar else f"{to} {rest}".strip()

    def main(self, person: str) -> str:
        """Return the form of a person (i, s, p), without its prefix."""
        return {"i": self.first, "s": self.er, "p": self.german.rpartition("|")[2]}[person]


@dataclass(frozen=True)
class Phrase:
    """A noun with what stands before it: English, German by case, and its person (i, s, p)."""

    english: str
    german: Mapping[str, str]
    person: str


class Field:
    """Words of the field, and draws from them."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.table: dict[str, Any] = tomllib.loads(WORDS.read_text(encoding="utf-8"))
        self.nouns = {
            kind: [self._noun(english, *entry.split()) for english, entry in entries.items()]
            for kind, entries in self.table["nouns"].items()
        }
        self.verbs = [Verb(word, *entry.split()) for word, entry in self.table["verbs"].items()]

    def _noun(
        self, english: str, gender: str, german: str, plural: str, genitive: str, rest: str = ""
    ) -> FieldNoun:
        many = self.table["plurals"].get(english, f"{english}s")
        weak = rest == "weak"
        adjective = "" if weak else rest
        return FieldNoun(english, many, gender, german, plural, weak, genitive, adjective)

    def one_of(self, name: str) -> Pair:
        """Return an entry of a table."""
        found: Pair = self.draw.choice(list(self.table[name].items()))
        return found

    def noun(self, *kinds: str) -> FieldNoun:
        return self.draw.choice([noun for kind in kinds for noun in self.nouns[kind]])

    def phrase(
        self,
        *kinds: str,
        before: str | None = None,
        plural: bool | None = None,
        adjectives: int | None = None,
    ) -> Phrase:
        """Return a noun of these kinds with determiner and adjectives, drawn where not given."""
        draw, noun = self.draw, self.noun(*kinds)
        many = draw.random() < 0.25 if plural is None else plural
        some = ["the", "the", "the", "this", "my", "our"]
        if before is None:
            before = draw.choice([*some, "", ""] if many else [*some, "a", "a", "every"])
        count = draw.choices([0, 1, 2], [6, 3, 0.5])[0] if adjectives is None else adjectives
        words = draw.sample(list(self.table["adjectives"].items()), count)
        words = [word for word in words if word[0] not in ORDERED or before == "the"]
        stems = [stem for _, stem in words]
        german = {case: noun.phrase(case, before, stems, plural=many) for case in ENDINGS}
        first = "these" if many and before == "this" else before
        named = noun.plural if many else noun.english
        english = " ".join([first, *(word for word, _ in words), named])
        return Phrase(_articled(english.strip()), german, "p" if many else "s")

    def subject(self) -> Phrase:
        """Return who does something: a noun, or a pronoun."""
        if self.draw.random() < 0.25:
            english, german, person = self.draw.choice(PRONOUNS)
            return Phrase(english, {"nom": german}, person)
        return self.phrase("machine", "person")

    def thing(self, **how: Any) -> Phrase:
        """Return what something is done to."""
        return self.phrase("text", "text", "number", "thing", "machine", **how)

    def act(self) -> tuple[Phrase, Verb, Phrase]:
        """Return who does what to what."""
        return self.subject(), self.draw.choice(self.verbs), self.thing()


def _articled(english: str) -> str:
    """Return a phrase with `an` where its next word asks for it."""
    vowel = english[2:3] in tuple("aeio")
    return f"an {english[2:]}" if english.startswith("a ") and vowel else english


def _begun(pair: Pair) -> Pair:
    """Return a pair whose sentences begin with capitals."""
    source, target = (text[0].upper() + text[1:] for text in pair)
    return source, target


def _said(who: Phrase, verb: Verb, what: Phrase) -> str:
    form = verb.third if who.person == "s" else verb.english
    return f"{who.english} {form} {what.english}"


def _joined(*words: str) -> str:
    return " ".join(word for word in words if word)


def _main(who: Phrase, verb: Verb, what: str, middle: str = "") -> str:
    return _joined(who.german["nom"], verb.main(who.person), middle, what, verb.prefix)


def _last(who: Phrase, verb: Verb, what: Phrase) -> str:
    return _joined(who.german["nom"], what.german["acc"], verb.prefix + verb.main(who.person))


def does(field: Field) -> Pair:
    """The model translates every sentence (with a computer)."""
    who, verb, what = field.act()
    english, german = _said(who, verb, what), what.german["acc"]
    if field.draw.random() < 0.2:
        tool = field.phrase("thing", "machine")
        return f"{english} with {tool.english}.", _main(
            who, verb, f"{german} mit {tool.german['dat']}"
        ) + "."
    if field.draw.random() < 0.2:
        often, oft = field.draw.choice(ADVERBS)
        said = english.replace(who.english, f"{who.english} {often}", 1)
        return f"{said}.", _main(who, verb, german, oft) + "."
    if field.draw.random() < 0.2:
        today, heute = field.draw.choice(TIMES)
        turned = _joined(verb.main(who.person), who.german["nom"], german, verb.prefix)
        return f"{today} {english}.", f"{heute} {turned}."
    return f"{english}.", f"{_main(who, verb, german)}."


def does_not(field: Field) -> Pair:
    """The model doesn't understand the sentence."""
    who, verb = field.subject(), field.draw.choice(field.verbs)
    what = field.thing(before=field.draw.choice(["the", "this", "my", "our"]))
    if field.draw.random() < 0.4:
        has, hat = {"i": ("have", "habe"), "s": ("has", "hat"), "p": ("have", "haben")}[who.person]
        no, nicht = field.draw.choice([(" not", "nicht"), ("", "")])
        german = _joined(who.german["nom"], hat, what.german["acc"], nicht, verb.german_participle)
        return f"{who.english} {has}{no} {verb.participle} {what.english}.", f"{german}."
    do = ("does" if who.person == "s" else "do") + field.draw.choice(["n't", " not"])
    german = _main(who, verb, f"{what.german['acc']} nicht")
    return f"{who.english} {do} {verb.english} {what.english}.", f"{german}."


def can(field: Field) -> Pair:
    """The model can translate this sentence; can it?"""
    who, verb, what = field.act()
    modal, one, many = field.draw.choice(MODALS)
    german = many if who.person == "p" else "werde" if (modal, who.person) == ("will", "i") else one
    rest = f"{what.german['acc']} {verb.infinitive()}"
    if field.draw.random() < 0.3:
        return (
            f"{modal} {who.english} {verb.english} {what.english}?",
            f"{german} {who.german['nom']} {rest}?",
        )
    said = f"{who.english} {modal} {verb.english} {what.english}."
    return said, f"{who.german['nom']} {german} {rest}."


def asks(field: Field) -> Pair:
    """Does the model understand the sentence? How does a transformer work?"""
    who, verb, what = field.act()
    do = "Does" if who.person == "s" else "Do"
    if field.draw.random() < 0.5:
        turned = _joined(verb.main(who.person), who.german["nom"], what.german["acc"], verb.prefix)
        return f"{do} {who.english} {verb.english} {what.english}?", f"{turned}?"
    it = field.phrase("machine", "number", "thing", "text")
    do, works = ("does", "funktioniert") if it.person == "s" else ("do", "funktionieren")
    be, ist = ("is", "ist") if it.person == "s" else ("are", "sind")
    return field.draw.choice(
        [
            (f"How {do} {it.english} work?", f"Wie {works} {it.german['nom']}?"),
            (f"What {be} {it.english}?", f"Was {ist} {it.german['nom']}?"),
            (f"Where {be} {it.english}?", f"Wo {ist} {it.german['nom']}?"),
        ]
    )


def joined(field: Field) -> Pair:
    """The encoder reads the sentence, and the decoder writes the translation."""
    one, other = field.act(), field.act()
    if field.draw.random() < 0.5:
        word, und = field.draw.choice([(", and", ", und"), (" and", " und"), (", but", ", aber")])
        german = f"{_main(*one[:2], one[2].german['acc'])}{und} "
        german += _main(*other[:2], other[2].german["acc"])
        return f"{_said(*one)}{word} {_said(*other)}.", f"{german}."
    if field.draw.random() < 0.3:
        says, sagt = field.draw.choice(SAYS)
        return f"{says} that {_said(*one)}.", f"{sagt}, dass {_last(*one)}."
    word, weil = field.draw.choice(CLAUSES)
    german = f"{_main(*one[:2], one[2].german['acc'])}, {weil} {_last(*other)}."
    return f"{_said(*one)} {word} {_said(*other)}.", german


def passive(field: Field) -> Pair:
    """The sentence is translated by the model."""
    what, verb = field.thing(), field.draw.choice(field.verbs)
    who = field.phrase("machine", "person")
    be, wird = ("is", "wird") if what.person == "s" else ("are", "werden")
    done = verb.german_participle
    if field.draw.random() < 0.3:
        modal, one, many = field.draw.choice(MODALS)
        kann = one if what.person == "s" else many
        said = f"{what.english} {modal} be {verb.participle}."
        return said, f"{what.german['nom']} {kann} {done} werden."
    return (
        f"{what.english} {be} {verb.participle} by {who.english}.",
        f"{what.german['nom']} {wird} von {who.german['dat']} {done}.",
    )


def is_a(field: Field) -> Pair:
    """The transformer is a neural network. The model is very small."""
    draw = field.draw
    it = field.phrase("machine", "thing", "number", "text", adjectives=0)
    be, ist = draw.choice([("is", "ist"), ("was", "war")])
    if it.person == "p":
        be, ist = {"is": "are", "was": "were"}[be], {"ist": "sind", "war": "waren"}[ist]
    if draw.random() < 0.5:
        words = [each for each in field.table["adjectives"].items() if each[0] not in ORDERED]
        word, stem = draw.choice(words)
        much, sehr = draw.choice(
            [("", ""), ("very ", "sehr "), ("too ", "zu "), ("not ", "nicht ")]
        )
        return f"{it.english} {be} {much}{word}.", f"{it.german['nom']} {ist} {sehr}{stem}."
    many = it.person == "p"
    other = field.phrase(
        "machine", "thing", "number", "text", before="" if many else "a", plural=many
    )
    named = it.english if many else draw.choice(["This", "That", it.english])
    german = it.german["nom"] if named == it.english else "Das"
    return f"{named} {be} {other.english}.", f"{german} {ist} {other.german['nom']}."


def has(field: Field) -> Pair:
    """The model has six layers. The first word of the sentence is short."""
    draw = field.draw
    it = field.phrase("machine", "text")
    have, hat = ("has", "hat") if it.person == "s" else ("have", "haben")
    if draw.random() < 0.5:
        parts = field.phrase(
            "machine", "number", "text", before=draw.choice([*COUNTS]), plural=True
        )
        return (
            f"{it.english} {have} {parts.english}.",
            f"{it.german['nom']} {hat} {parts.german['acc']}.",
        )
    part = field.phrase("text", "number", before="the", plural=False)
    whole = field.phrase(
        "machine", "text", before=draw.choice(["the", "this", "a", "my"]), plural=False
    )
    verb, who = draw.choice(field.verbs), field.subject()
    act = (who, verb, Phrase(f"{part.english} of {whole.english}", {}, "s"))
    german = _main(who, verb, f"{part.german['acc']} {whole.german['gen']}")
    return f"{_said(*act)}.", f"{german}."


def topic(field: Field) -> Pair:
    """Attention is all you need. I love machine learning."""
    draw = field.draw
    (english, german), (other, anderes) = field.one_of("topics"), field.one_of("topics")
    if draw.random() < 0.25:
        networks = field.phrase("machine", "text", "number", before="", plural=True)
        english, german = networks.english, networks.german["acc"]
        be, ist = "are", "sind"
    else:
        be, ist = "is", "ist"
    love, liebe, lieben = draw.choice(FEELS)
    who, wer, braucht = draw.choice(
        [
            ("you need", "du", "brauchst"),
            ("we need", "wir", "brauchen"),
            ("I need", "ich", "brauche"),
            ("you want", "du", "willst"),
            ("we have", "wir", "haben"),
        ]
    )
    hard, schwer = draw.choice(
        [("hard", "schwer"), ("important", "wichtig"), ("interesting", "interessant")]
    )
    return draw.choice(
        [
            (
                f"{english} {be} all {who}.",
                f"{german} {ist} alles, was {wer} {braucht}.",
            ),
            (
                f"All {who} is {english}.",
                f"Alles, was {wer} {braucht}, ist {german}.",
            ),
            (f"I {love} {english}.", f"Ich {liebe} {german}."),
            (f"We {love} {english}.", f"Wir {lieben} {german}."),
            (f"{english} {be} {hard}.", f"{german} {ist} {schwer}."),
            (f"I think {english} {be} {hard}.", f"Ich denke, {german} {ist} {schwer}."),
            (f"What {be} {english}?", f"Was {ist} {german}?"),
            (f"There is no {other} without {english}.", f"Es gibt keine {anderes} ohne {german}.")
            if anderes in ("Aufmerksamkeit", "Mathematik", "Übung", "Musik", "Liebe", "Zeit")
            else (f"I know nothing about {english}.", f"Ich weiß nichts über {german}."),
        ]
    )


def place(field: Field) -> Pair:
    """The quick brown fox jumps over the lazy dog."""
    animals = field.draw.random() < 0.5
    table, kinds = (
        ("places", ("animal", "person"))
        if animals
        else ("places_many", ("machine", "text", "number"))
    )
    english, german = field.one_of(table)
    verb, preposition, case, *prefix = german.split()
    who = field.phrase(*kinds, plural=False, adjectives=field.draw.choice([0, 1, 2]))
    what = field.phrase(*kinds, plural=False, adjectives=field.draw.choice([0, 0, 1]))
    return f"{who.english} {english} {what.english}.", _joined(
        who.german["nom"], verb, preposition, what.german[case], *prefix
    ) + "."


def other(field: Field) -> Pair:
    """Every word looks at every other word."""
    it = field.noun("machine", "text", "number")
    every = it.phrase("nom", "every")
    looks, sieht, case = field.draw.choice(
        [
            ("looks at", "schaut auf {}", "acc"),
            ("sees", "sieht {}", "acc"),
            ("depends on", "hängt von {} ab", "dat"),
            ("knows", "kennt {}", "acc"),
        ]
    )
    form, after = field.draw.choice(
        [("every other", "every"), ("the other", "the"), ("all other", "")]
    )
    many = form == "all other" or (form == "the other" and field.draw.random() < 0.5)
    what = it.phrase(case, after, ["ander"], plural=many)
    named = it.plural if many else it.english
    if form == "all other":  # which has the endings after `die`
        plain = it.phrase(case, "the", ["ander"], plural=True)
        what = f"alle{'n' if case == 'dat' else ''} {plain.split(' ', 1)[1]}"
    return f"Every {it.english} {looks} {form} {named}.", f"{every} {sieht.format(what)}."


def to(field: Field) -> Pair:
    """It is hard to translate this sentence."""
    verb, what = field.draw.choice(field.verbs), field.thing()
    be, ist = field.draw.choice([("is", "ist"), ("was", "war")])
    hard, schwer = field.draw.choice(
        [("easy", "leicht"), ("hard", "schwer"), ("important", "wichtig"), ("possible", "möglich")]
    )
    done = f"{what.german['acc']} {verb.infinitive('zu')}"
    who = field.phrase("machine", "person", plural=False)
    return field.draw.choice(
        [
            (f"It {be} {hard} to {verb.english} {what.english}.", f"Es {ist} {schwer}, {done}."),
            (
                f"{who.english} tries to {verb.english} {what.english}.",
                f"{who.german['nom']} versucht, {done}.",
            ),
            (
                f"{who.english} learns to {verb.english} {what.english}.",
                f"{who.german['nom']} lernt, {done}.",
            ),
        ]
    )


def learns(field: Field) -> Pair:
    """A neural network learns from data."""
    who = field.phrase("machine", "person")
    source = field.draw.choice(
        [
            ("data", "Daten"),
            ("examples", "Beispielen"),
            ("mistakes", "Fehlern"),
            ("texts", "Texten"),
            ("many examples", "vielen Beispielen"),
            ("experience", "Erfahrung"),
            ("books", "Büchern"),
        ]
    )
    third = who.person == "s"
    learn, lernt = ("learns", "lernt") if third else ("learn", "lernen")
    work, arbeitet = ("works", "arbeitet") if third else ("work", "arbeiten")
    consist, besteht = ("consists", "besteht") if third else ("consist", "bestehen")
    return field.draw.choice(
        [
            *[
                (
                    f"{who.english} {learn} from {source[0]}.",
                    f"{who.german['nom']} {lernt} aus {source[1]}.",
                )
            ]
            * 2,
            (
                f"{who.english} {work} with {source[0]}.",
                f"{who.german['nom']} {arbeitet} mit {source[1]}.",
            ),
            (
                f"{who.english} {consist} of {source[0]}.",
                f"{who.german['nom']} {besteht} aus {source[1]}.",
            ),
        ]
    )


def saying(field: Field) -> Pair:
    """I think, therefore I am."""
    return field.one_of("sayings")


PATTERNS: dict[Callable[[Field], Pair], float] = {
    does: 5,
    does_not: 3,
    can: 3,
    asks: 3,
    joined: 4,
    passive: 2,
    is_a: 5,
    has: 3,
    topic: 4,
    place: 3,
    other: 2,
    to: 2,
    learns: 2,
    saying: 0.5,
}
"""Patterns with their weights."""


def parts(sentences: int = SENTENCES) -> dict[str, list[str]]:
    """Return the lines of the files by their names."""
    tested, tests = Field(1), dict[str, str]()
    for make in PATTERNS:
        if make is saying:  # there are no others of these
            continue
        different = dict(_begun(make(tested)) for _ in range(2 * TESTED))
        for source, target in list(different.items())[:TESTED]:
            tests[source] = f"{source}\t{target}\t\tfield_{make.__name__}"
    field = Field(2)
    makes = field.draw.choices(list(PATTERNS), list(PATTERNS.values()), k=sentences)
    made = [_begun(make(field)) for make in makes]
    return {
        "field-train": [f"{source}\t{target}" for source, target in made if source not in tests],
        "field": list(tests.values()),
    }


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, lines in parts().items():
        (arguments.out / f"{name}.tsv").write_text("".join(f"{x}\n" for x in lines), "utf-8")


if __name__ == "__main__":
    main()
