"""Bracketed trees of sentences, such as (S (NP (NN Rain)) (VP (VBZ falls)))."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_NOTHING = "-NONE-"
"""The tag of what is not written in the text, such as traces."""


def leaves(tree: str) -> Iterator[tuple[str, str]]:
    """The words of a tree with their tags; brackets that are words are written as such.

    Raises:
        ValueError: when brackets do not match, or a leaf is no tag and word.
    """
    depth = 0
    inside: list[str] = []  # what has stood since the last opening bracket
    for token in re.findall(r"[()]|[^\s()]+", tree):
        if token == "(":
            depth += 1
            inside = []
        elif token == ")":
            depth -= 1
            if depth < 0:
                raise ValueError(f"a bracket is closed that was not opened: {tree}")
            if len(inside) == 2:
                tag, word = inside
                if tag != _NOTHING:
                    yield _BRACKETS.get(word, word), tag
            elif len(inside) > 2:
                raise ValueError(f"a leaf is a tag and a word, not {' '.join(inside)!r}: {tree}")
            inside = []
        else:
            inside.append(token)
    if depth:
        raise ValueError(f"{depth} brackets are not closed: {tree}")
