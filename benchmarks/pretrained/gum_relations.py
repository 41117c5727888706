"""Pairs of words that stand in a relation in the sentences of the GUM treebank."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MENTION = re.compile(r"\(([^-()]+)[^()]*(\)?)|([^()]+)\)")
"""The begin of a mention with its entity, which may end at the same word, or the end of one."""

BRACKETS = {")": "(", "]": "[", "”": "“", "’": "‘", "}": "{"}

RELATIONS = {
    "subject → verb": "verb → subject",
    "object → verb": "verb → object",
    "determiner → noun": "noun → determiner",
    "adjective → noun": "noun → adjective",
    "negation → verb": "verb → negation",
    "closing bracket → opening": "opening bracket → closing",
}
"""Relations and their reverses; the last, pronoun → noun, has none."""

PRONOUN = "pronoun → noun"


@dataclass(frozen=True)
class Word:
    """A word of a tree; `head` is its head's index from 0, or −1 for the root."""

    form: str
    lemma: str
    kind: str
    features: str
    head: int
    relation: str
    mentions: str


@dataclass
class Sentence:
    """A sentence: its document, its text, the span of each word, and pairs by their relation.

    Pairs say for the index of a word which words are right.
    """

    document: str
    text: str
    spans: list[tuple[int, int]]
    pairs: dict[str, dict[int, set[int]]] = field(default_factory=dict)

    def relate(self, relation: str, word: int, other: int) -> None:
        """Add a pair in a relation, and in the reverse one."""
        ways = [(relation, word, other)]
        if relation in RELATIONS:
            ways.append((RELATIONS[relation], other, word))
        for name, one, two in ways:
            self.pairs.setdefault(name, {}).setdefault(one, set()).add(two)


def read_sentences(path: Path, most_words: int) -> Iterator[Sentence]:
    """Yield the sentences of a file of trees, in their order.

    Args:
        path: a .conllu.gz file of GUM.
        most_words: of a sentence that is used.
    """
    document, text, rows = "", "", []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith("# newdoc id = "):
                document = line.rpartition(" = ")[2].strip()
            elif line.startswith("# text = "):
                text = line.removeprefix("# text = ").rstrip("\n")
            elif line[0].isdigit():
                rows.append(line.rstrip("\n").split("\t"))
            elif not line.strip() and rows:
                # Ranges (2-3 don't) and empty words (2.1) are no words of a tree.
                words = [_word(row) for row in rows if row[0].isdigit()]
                spans = _spans(text, words)
                if len(words) <= most_words and spans:
                    yield _related(Sentence(document, text, spans), words)
                rows = []


def _word(row: list[str]) -> Word:
    mentions = next((x[7:] for x in row[9].split("|") if x.startswith("Entity=")), "")
    return Word(row[1], row[2], row[3], row[5], int(row[6]) - 1, row[7], mentions)


def _spans(text: str, words: list[Word]) -> list[tuple[int, int]]:
    """Return the span of each word in the text; none if the text lacks one."""
    spans, end = [], 0
    for word in words:
        start = text.find(word.form, end)
        # Only spaces may be between words, or a later repetition was found.
        if start < 0 or text[end:start].strip():
            return []
        end = start + len(word.form)
        spans.append((start, end))
    return spans


def _related(sentence: Sentence, words: list[Word]) -> Sentence:
    for index, word in enumerate(words):
        above = words[word.head].kind if word.head >= 0 else ""
        if above == "VERB" and word.relation in ("nsubj", "nsubj:pass"):
            sentence.relate("subject → verb", index, word.head)
        elif above == "VERB" and word.relation == "obj":
            sentence.relate("object → verb", index, word.head)
        elif above in ("NOUN", "PROPN") and word.relation == "det":
            sentence.relate("determiner → noun", index, word.head)
        elif above in ("NOUN", "PROPN") and word.relation == "amod" and word.kind == "ADJ":
            sentence.relate("adjective → noun", index, word.head)
        elif above == "VERB" and word.relation == "advmod" and word.lemma in ("not", "n't"):
            sentence.relate("negation → verb", index, word.head)
    _relate_brackets(sentence, words)
    _relate_pronouns(sentence, words)
    return sentence


def _relate_brackets(sentence: Sentence, words: list[Word]) -> None:
    opened: list[int] = []
    for index, word in enumerate(words):
        if word.kind != "PUNCT":  # an apostrophe
            continue
        wanted = '"' if word.form == '"' else BRACKETS.get(word.form)
        if opened and wanted == words[opened[-1]].form:
            sentence.relate("closing bracket → opening", index, opened.pop())
        elif word.form in ('"', *BRACKETS.values()):
            opened.append(index)


def _relate_pronouns(sentence: Sentence, words: list[Word]) -> None:
    """Relate pronouns of the third person to the nouns before them that mean the same."""
    nouns: dict[str, list[int]] = {}  # heads of mentions by their entity
    pronouns = []
    for entity, start, end in _mentions(words):
        inner = range(start, end + 1)
        heads = [i for i in inner if words[i].head not in inner]
        if len(heads) != 1:
            continue
        word = words[heads[0]]
        if word.kind in ("NOUN", "PROPN"):
            nouns.setdefault(entity, []).append(heads[0])
        elif word.kind == "PRON" and start == end and "Person=3" in word.features:
            pronouns.append((entity, start))
    for entity, index in pronouns:
        for noun in nouns.get(entity, []):
            if noun < index:
                sentence.relate(PRONOUN, index, noun)


def _mentions(words: list[Word]) -> Iterator[tuple[str, int, int]]:
    """Yield entity, first and last word of each mention that is one span."""
    begun: dict[str, list[int]] = {}
    for index, word in enumerate(words):
        for opened, at_once, closed in MENTION.findall(word.mentions):
            if at_once:
                yield opened, index, index
            elif opened:
                begun.setdefault(opened, []).append(index)
            elif begun.get(closed):
                yield closed, begun[closed].pop(), index
