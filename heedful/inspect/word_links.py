"""Word alignment links: symmetrization, the Pharaoh format and the alignment error rate."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, get_args

from heedful.errors import ConfigError, DataError, suggest

Link = tuple[int, int]
"""Indices of a source word and a target word, from 0."""

Links = frozenset[Link]

Symmetry = Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]

# Koehn (2005): horizontal and vertical neighbours first, then diagonal ones.
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(
    forward: Collection[Link], backward: Collection[Link], method: Symmetry = "grow-diag-final"
) -> Links:
    """Merge the links of two directions into one set (Och and Ney 2003; Koehn 2005).

    Args:
        forward: links from each target word to the source.
        backward: links from each source word to the target, also as (source, target).
        method: symmetrization method. `grow-diag` begins with the intersection and adds
            neighbours from the union; `-final` adds links of words without any link, `-final-and`
            only if both words have none.

    Raises:
        ConfigError: when there is no such method.
    """
    if method not in get_args(Symmetry):
        raise ConfigError(
            f"There is no symmetrization method {method!r}",
            remedy=suggest(method, get_args(Symmetry)),
        )
    either = set(forward) | set(backward)
    links = set(forward) & set(backward)
    if method == "union":
        return frozenset(either)
    if method == "intersection":
        return frozenset(links)
    _grow(links, either)
    if method != "grow-diag":
        # The directions are processed in turn, as in Moses: links of the first can block links of
        # the second.
        for side in (forward, backward):
            _finish(links, side, both=method.endswith("and"))
    return frozenset(links)


def _grow(links: set[Link], either: Collection[Link]) -> None:
    """Add neighbours of links from the union while they have a word without a link."""
    grown = True
    while grown:
        grown = False
        # A sorted copy is iterated: the set grows inside the loop, and its own order is undefined.
        for source, target in sorted(links):
            for down, right in _NEIGHBOURS:
                new = (source + down, target + right)
                if new in either and new not in links and not all(_linked(links, new)):
                    links.add(new)
                    grown = True


def _finish(links: set[Link], side: Iterable[Link], *, both: bool) -> None:
    """Add links with at least one word, or with both words, without any link so far."""
    for new in sorted(side):
        linked = _linked(links, new)
        if not (any(linked) if both else all(linked)):
            links.add(new)


def _linked(links: Collection[Link], new: Link) -> tuple[bool, bool]:
    """Return whether the source word and the target word of a pair have a link."""
    return any(s == new[0] for s, _ in links), any(t == new[1] for _, t in links)


def pharaoh(links: Iterable[Link]) -> str:
    """Format links as `0-0 1-2 …`, pairs of source and target word indices from 0."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_pharaoh(line: str, where: str = "links") -> tuple[Links, Links]:
    """Parse sure and possible links of a line; `?` or `p` instead of `-` marks possible ones.

    Args:
        line: links of one sentence, e.g. `0-0 1-2 2?2`.
        where: name of the line in an error.

    Returns:
        The sure links, and the possible links with the sure ones among them.

    Raises:
        DataError: when the line has another format.
    """
    sure: set[Link] = set()
    possible: set[Link] = set()
    for word in line.split():
        match = re.fullmatch(r"(\d+)([-?p])(\d+)", word)
        if match is None:
            raise DataError(
                f"{word!r} is no pair of word numbers",
                where=where,
                remedy="Write links as 0-0 1-2, source word first",
            )
        link = int(match[1]), int(match[3])
        # Sure links are possible links too, in the terms of Och and Ney.
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return frozenset(sure), frozenset(possible)


def alignment_error_rate(
    links: Sequence[Collection[Link]],
    sure: Sequence[Collection[Link]],
    possible: Sequence[Collection[Link]] | None = None,
) -> float:
    """Compute the alignment error rate of a corpus: 0 is best, 1 worst (Och and Ney 2003).

    Args:
        links: predicted links of each sentence.
        sure: gold links that annotators were sure of.
        possible: gold links that annotators accept, sure ones included; the sure ones if None.

    Raises:
        DataError: when the numbers of sentences differ.
    """
    possible = sure if possible is None else possible
    if not len(links) == len(sure) == len(possible):
        raise DataError(f"Links of {len(links)} sentences, gold of {len(sure)} and {len(possible)}")
    hits = total = 0
    for a, s, p in zip(links, sure, possible, strict=True):
        # 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), with counts summed over the corpus.
        hits += len(set(a) & set(s)) + len(set(a) & (set(p) | set(s)))
        total += len(set(a)) + len(set(s))
    return 1 - hits / total if total else 0.0
