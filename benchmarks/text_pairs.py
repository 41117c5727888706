"""Pairs of input and target of five tasks, from their corpora."""

from __future__ import annotations

import ast
import gzip
import io
import json
import random
import sysconfig
import tokenize
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heedful.evaluate.brackets import read_tree, tree_code

GAP = "<?>"
"""The mark in code where something is missing."""


class Example(NamedTuple):
    """One example: what is read, what is to be written, and what it is scored with.

    Args:
        source: text that the model reads, without the prefix of its task.
        target: text to be written.
        references: right answers; of trees the bracketed tree, of code the function with a gap.
    """

    source: str
    target: str
    references: list[str]


class Task(NamedTuple):
    """A task: its prefix, and the reader of its examples of training, validation and test."""

    prefix: str
    read: Callable[[Path], dict[str, list[Example]]]


def summaries(data: Path) -> dict[str, list[Example]]:
    """Abstracts and one-sentence summaries of SciTLDR; its dev file is the test."""
    parts = {}
    for name in ("train", "dev"):
        records = map(json.loads, _lines(data / "scitldr" / f"{name}.jsonl.gz"))
        parts[name] = [
            Example(
                plain(" ".join(record["source"])),
                plain(record["target"][0]),
                [*map(plain, record["target"])],
            )
            for record in records
        ]
    return {"train": parts["train"][:-150], "valid": parts["train"][-150:], "test": parts["dev"]}


def abstracts(data: Path) -> list[list[str]]:
    """The sentences of each abstract of the test."""
    records = map(json.loads, _lines(data / "scitldr" / "dev.jsonl.gz"))
    return [[plain(text) for text in record["source"]] for record in records]


def entities(data: Path) -> dict[str, list[Example]]:
    """Messages of WNUT 2017 and their named entities; its dev file is the test."""

    def example(message: Sequence[tuple[str, str]]) -> Example:
        found: list[list[str]] = []
        for word, tag in message:
            if tag.startswith("B-"):
                found.append([f"{tag[2:]}:", word])
            elif tag.startswith("I-"):
                found[-1].append(word)
        target = " ; ".join(map(" ".join, found)) or "none"
        return Example(" ".join(word for word, _ in message), target, [target])

    parts = {name: [example(m) for m in messages(data, name)] for name in ("train", "dev")}
    return {"train": parts["train"][:-400], "valid": parts["train"][-400:], "test": parts["dev"]}


def messages(data: Path, name: str) -> list[list[tuple[str, str]]]:
    """The messages of a part of WNUT 2017, as words and tags."""
    found: list[list[tuple[str, str]]] = [[]]
    for line in _lines(data / "wnut17" / f"{name}.conll.gz"):
        if line.strip():
            word, tag = line.split("\t")
            found[-1].append((word, tag))
        elif found[-1]:
            found.append([])
    return [message for message in found if message]


def questions(data: Path, language: str = "en") -> dict[str, list[Example]]:
    """Questions of XQuAD with their passages; parts share no passage, in both languages."""
    parts = {}
    for name, articles in squad(data, language).items():
        parts[name] = [
            Example(
                plain(f"{each['question']} passage: {passage['context']}"),
                plain(each["answers"][0]["text"]),
                [answer["text"] for answer in each["answers"]],
            )
            for article in articles
            for passage in article["paragraphs"]
            for each in passage["qas"]
        ]
    return parts


def squad(data: Path, language: str) -> dict[str, list[dict[str, Any]]]:
    """XQuAD's articles by part: of 240 passages 184 of training, 16 of validation, 40 of the test.

    Passages of one article stay together: they share names and words.
    """
    text = "\n".join(_lines(data / "xquad" / f"xquad.{language}.json.gz"))
    articles = json.loads(text)["data"]
    random.Random(1).shuffle(articles)  # the same order in both languages, whose articles are equal
    parts: dict[str, list[dict[str, Any]]] = {"test": [], "valid": [], "train": []}
    wanted = {"test": 40, "valid": 16, "train": 10_000}
    for article in articles:
        passages = article["paragraphs"]
        name = next(
            part
            for part, most in wanted.items()
            if sum(len(a["paragraphs"]) for a in parts[part]) + len(passages) <= most
        )
        parts[name].append({"title": article.get("title", ""), "paragraphs": passages})
    return parts


def trees(data: Path) -> dict[str, list[Example]]:
    """Sentences of GUM of at most 40 words, and the codes of their trees; dev is the test."""
    parts = {}
    for name in ("train", "dev"):
        parts[name] = []
        for line in _lines(data / "gum" / f"{name}.ptb.gz"):
            tree = read_tree(line)
            if len(tree.children) == 1 and tree.children[0].word is None:
                tree = tree.children[0]  # the root says nothing
            words = [leaf.word or "" for leaf in tree.leaves()]
            if len(words) <= 40:
                parts[name].append(Example(" ".join(words), tree_code(tree), [line]))
    return {"train": parts["train"][:-300], "valid": parts["train"][-300:], "test": parts["dev"]}


def code(data: Path) -> dict[str, list[Example]]:
    """Functions of Python's own library with one span of their tokens missing.

    Parts share no file. Comments and docstrings are left out, and lines are joined by signs.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: dict[str, list[Example]] = {"train": [], "valid": [], "test": []}
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(place.parts):
            continue
        draw = zlib.crc32(str(place).encode()) % 100
        part = "test" if draw < 8 else "valid" if draw < 12 else "train"
        parts[part] += [
            with_gap(function, random.Random(f"{place} {number}"))
            for number, function in enumerate(functions(path))
        ]
    most = {"train": 6000, "valid": 300, "test": 500}
    for name, examples in parts.items():
        random.Random(1).shuffle(examples)
        parts[name] = examples[: most[name]]
    return parts


def functions(path: Path) -> Iterator[str]:
    """The functions of a file of at most 300 characters, as Python writes them."""
    try:
        module = ast.parse(path.read_bytes())
    except SyntaxError:
        return
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
            text = ast.unparse(node)
            if 40 <= len(text) <= 300:
                yield text


def with_gap(function: str, draw: random.Random) -> Example:
    """An example of a function, of which one to five tokens of one line are missing."""
    kinds = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
    tokens = [
        each
        for each in tokenize.generate_tokens(io.StringIO(function).readline)
        if each.type in kinds and each.start[0] > 1 and each.start[0] == each.end[0]
    ]
    first = draw.randrange(len(tokens))
    last = min(first + draw.randint(1, 5), len(tokens)) - 1
    while tokens[last].end[0] != tokens[first].start[0]:
        last -= 1
    lines = function.split("\n")
    row, start, end = tokens[first].start[0] - 1, tokens[first].start[1], tokens[last].end[1]
    missing = lines[row][start:end]
    lines[row] = f"{lines[row][:start]} {GAP} {lines[row][end:]}"
    gapped = "\n".join(lines)
    return Example(in_a_line(gapped), missing, [missing, gapped])


def in_a_line(text: str) -> str:
    """Code in one line: ¶ ends a line and » is a level of indentation."""
    lines = text.split("\n")
    levels = [(len(line) - len(line.lstrip(" "))) // 4 for line in lines]
    pairs = zip(levels, lines, strict=True)
    return " ¶ ".join("» " * level + line.strip() for level, line in pairs)


def parses(answer: str, gapped: str) -> bool:
    """True if a function is Python's once the answer stands in its gap."""
    try:
        ast.parse(gapped.replace(f" {GAP} ", answer))
    except (SyntaxError, ValueError):
        return False
    return True


TASKS = {
    "summaries": Task("summarise: ", summaries),
    "entities": Task("entities: ", entities),
    "questions": Task("answer: ", questions),
    "trees": Task("parse: ", trees),
    "code": Task("complete: ", code),
}


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield line.removesuffix("\n")


def plain(text: str) -> str:
    """A text with single spaces, in one line."""
    return " ".join(text.split())
