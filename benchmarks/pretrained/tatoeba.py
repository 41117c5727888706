"""Tatoeba split into training, validation and test parts that share no sentence.

Many sources have several translations and many targets several sources. Pairs that share a sentence
on either side, case and punctuation aside, form a group; each group goes into one part as a whole,
by a hash of its sentences, so the split is the same on every machine.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PARTS = {"valid": 8, "test": 16}
"""Groups of 1,000 that go into each held-out part; the rest is trained on."""

LARGEST_HELD_OUT = 20
"""Pairs of a group above which it is trained on: such groups are stock phrases."""

Pair = tuple[str, str]


def split_pairs(path: Path) -> dict[str, list[Pair]]:
    """The pairs of a .tsv.gz file by part, in the file's order, each pair once.

    Args:
        path: lines `source<TAB>target`; further columns are ignored.

    Returns:
        A list of (source, target) for each of `train`, `valid` and `test`.
    """
    pairs = list(dict.fromkeys(_read(path)))
    members: dict[str, list[int]] = defaultdict(list)
    roots = _groups(pairs)
    for index, (source, _) in enumerate(pairs):
        members[_root(roots, "s" + _plain(source))].append(index)
    part_of = {index: _part(pairs, indices) for indices in members.values() for index in indices}
    parts: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for index, pair in enumerate(pairs):
        parts[part_of[index]].append(pair)
    return parts


def english_lines(paths: Iterable[Path]) -> dict[str, list[str]]:
    """The English sides of several such files, each sentence once, none in two parts.

    A sentence held out in one file and trained on in another counts as held out.

    Args:
        paths: files with English as the source.
    """
    part_of: dict[str, str] = {}
    text_of: dict[str, str] = {}
    for path in paths:
        for part, pairs in split_pairs(path).items():
            for source, _ in pairs:
                plain = _plain(source)
                text_of.setdefault(plain, source)
                if part_of.get(plain, "train") == "train":
                    part_of[plain] = part
    lines: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for plain, part in part_of.items():
        lines[part].append(text_of[plain])
    return lines


def one_reference_each(pairs: Iterable[Pair]) -> list[Pair]:
    """The first translation of each source."""
    first: dict[str, str] = {}
    for source, target in pairs:
        first.setdefault(source, target)
    return list(first.items())


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """One pair a line."""
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)
    path.write_text(text, encoding="utf-8")


def _read(path: Path) -> Iterable[Pair]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            source, target = line.rstrip("\n").split("\t")[:2]
            yield source.strip(), target.strip()


def _plain(sentence: str) -> str:
    return re.sub(r"\W+", " ", sentence.lower()).strip()


def _groups(pairs: list[Pair]) -> dict[str, str]:
    """A forest over the sentences, source and target; sentences of one tree belong together."""
    roots: dict[str, str] = {}
    for source, target in pairs:
        one, other = _root(roots, "s" + _plain(source)), _root(roots, "t" + _plain(target))
        roots[one] = other
    return roots


def _root(roots: dict[str, str], sentence: str) -> str:
    while roots.setdefault(sentence, sentence) != sentence:
        roots[sentence] = roots[roots[sentence]]
        sentence = roots[sentence]
    return sentence


def _part(pairs: list[Pair], indices: list[int]) -> str:
    if len(indices) > LARGEST_HELD_OUT:
        return "train"
    key = min(_plain(pairs[index][0]) for index in indices)
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 1000
    if number < PARTS["valid"]:
        return "valid"
    return "test" if number < PARTS["valid"] + PARTS["test"] else "train"
