"""Documents that the English language model learns from: prose, and few-shot tasks.

Each part of the data has documents of its own: WikiText-2 comes in parts, and the other texts are
cut into pieces of which every hundredth is held out.
"""

from __future__ import annotations

import datetime
import gzip
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

LONGEST = 330
"""Words of a document: about 450 tokens, so that nearly all fit 512 positions."""
FEW_SHOT = {"train": 12_000, "valid": 200, "test": 100}
WAYS = ("%d %B %Y", "%Y-%m-%d", "%m/%d/%y", "%B %d, %Y", "%d.%m.%Y")
"""Ways to write a date, of which a document of dates uses two."""


Documents = dict[str, list[str]]
"""Documents by what they are."""


def english_documents(data: Path, sentences: dict[str, list[str]]) -> dict[str, Documents]:
    """Return documents by part, and in each by what they are.

    Args:
        data: folder with wikitext2, python_docs and tinyshakespeare.
        sentences: everyday sentences by part, each of which is a document.
    """
    words = frequent_words(sentences["train"])
    documents: dict[str, Documents] = {}
    for number, (part, lines) in enumerate(sentences.items()):
        draw = random.Random(number)
        documents[part] = {
            "sentences of Tatoeba": lines,
            "articles of WikiText-2": list(articles(data / "wikitext2" / f"{part}.txt.gz")),
            "few-shot tasks": [few_shot(draw, words) for _ in range(FEW_SHOT[part])],
        }
    with gzip.open(data / "python_docs" / "en-fr.tsv.gz", "rt", encoding="utf-8") as file:
        lines = [line.split("\t")[0] for line in file]
    plays = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8").split("\n\n")
    for kind, pieces, between in (
        ("Python's documentation", lines, "\n"),
        ("plays of Shakespeare", plays, "\n\n"),
    ):
        for number, document in enumerate(grouped(pieces, between)):
            documents[held_out(number)].setdefault(kind, []).append(document)
    return documents


def held_out(number: int) -> str:
    """Return the part of a piece of a text that comes without parts."""
    return {0: "valid", 1: "test"}.get(number % 100, "train")


def grouped(pieces: Iterable[str], between: str) -> Iterator[str]:
    """Yield neighbouring pieces together, as many as a document holds."""
    group: list[str] = []
    count = 0
    for piece in pieces:
        size = len(piece.split())
        if group and count + size > LONGEST:
            yield between.join(group)
            group, count = [], 0
        group.append(piece.strip())
        count += size
    if group:
        yield between.join(group)


def articles(path: Path) -> Iterator[str]:
    """Yield stretches of the articles of a part of WikiText-2, without sentences of unknown words.

    Args:
        path: a .txt.gz file of tokens with spaces between them.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        paragraphs: list[str] = []
        for line in [*file, " = end = "]:
            if re.fullmatch(r" = [^=].* = \s*", line):  # the title of the next article
                yield from grouped(paragraphs, "\n")
                paragraphs = []
            elif not line.startswith(" ="):
                known = [each for each in sentences_of(line) if "<unk>" not in each.split()]
                if len(known) > 1:
                    paragraphs.append(" ".join(map(detokenized, known)))


def sentences_of(line: str) -> list[str]:
    """Return the sentences of a paragraph of WikiText-2, as tokens with spaces between them."""
    return re.split(r"(?<= [.?!]) (?=[A-Z\"])", line.strip())


def detokenized(sentence: str) -> str:
    """Return a sentence of WikiText-2 as people write it."""
    text = re.sub(r" @([-,.])@ ", r"\1", sentence)
    text = re.sub(r'" ([^"]*?) "', r'"\1"', text).replace(' "', ' "')
    text = re.sub(r" ([,.;:?!%)\]]|'(?:s|re|ve|ll|d|m|t)\b|n't\b)", r"\1", text)
    return re.sub(r"([(\[$£]) ", r"\1", text)


def frequent_words(sentences: Iterable[str], count: int = 2000) -> list[str]:
    """Return the most frequent words of lower-case letters."""
    counts: dict[str, int] = {}
    for sentence in sentences:
        for word in re.findall(r"\b[a-z]{3,}\b", sentence):
            counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: (-counts[word], word))[:count]


def few_shot(draw: random.Random, words: Sequence[str]) -> str:
    """Return a document of examples of one task, a line each."""
    kind = draw.choice(("copy", "reverse", "dates"))
    source, target = draw.sample(WAYS, 2)
    return "\n".join(
        f"{question} -> {answer}"
        for question, answer in (
            task(draw, kind, words, source, target) for _ in range(draw.randint(6, 14))
        )
    )


def task(
    draw: random.Random, kind: str, words: Sequence[str], source: str, target: str
) -> tuple[str, str]:
    """Return a question and its answer.

    Args:
        draw: source of random numbers.
        kind: `copy`, `reverse` or `dates`.
        words: words to choose from.
        source, target: ways of writing a date.
    """
    if kind == "dates":
        day = datetime.date(1950, 1, 1) + datetime.timedelta(draw.randrange(36_525))
        return day.strftime(source), day.strftime(target)
    chosen = draw.sample(words, draw.randint(2, 4))
    return " ".join(chosen), " ".join(chosen[:: 1 if kind == "copy" else -1])
