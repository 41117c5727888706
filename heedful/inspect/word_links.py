"""Links between words: symmetrization, the Pharaoh format, the alignment error rate."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, get_args

from heedful.errors import ConfigError, DataError, suggest

Link = tuple[int, int]
"""Numbers of a source word and a target word, from 0."""

Links = frozenset[Link]

Symmetry = Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]

_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(
    forward: Collection[Link], backward: Collection[Link], method: Symmetry = "grow-diag-final"
) -> Links:
    """Make one set of links from those of two directions (Och and Ney 2003; Koehn 2005).

    Args:
        forward: from each target word to the source.
        backward: from each source word to the target; pairs stand in the same order.
        method: the growing ones begin with the intersection, add neighbours from the union, then
            the other links of words that have no link yet (with `-and`: both words).

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
        for side in (forward, backward):
            _finish(links, side, both=method.endswith("and"))
    return frozenset(links)


def _grow(links: set[Link], either: Collection[Link]) -> None:
    """Add neighbours of links while one of their words has no link."""
    grown = True
    while grown:
        grown = False
        for source, target in sorted(links):
            for down, right in _NEIGHBOURS:
                new = (source + down, target + right)
                if new in either and new not in links and not all(_linked(links, new)):
                    links.add(new)
                    grown = True


def _finish(links: set[Link], side: Iterable[Link], *, both: bool) -> None:
    """Add links of words without any: of both words, or of at least one."""
    for new in sorted(side):
        linked = _linked(links, new)
        if not (any(linked) if both else all(linked)):
            links.add(new)


def _linked(links: Collection[Link], new: Link) -> tuple[bool, bool]:
    """Test for each word of a pair if it has a link."""
    return any(s == new[0] for s, _ in links), any(t == new[1] for _, t in links)


def pharaoh(links: Iterable[Link]) -> str:
    """Write links as `0-0 1-2 …`: source word, target word, from 0."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_pharaoh(line: str, where: str = "links") -> tuple[Links, Links]:
    """Read sure and possible links of a line; `?` or `p` in place of `-` means only possible.

    Args:
        line: such as `0-0 1-2 2?2`.
        where: its name in an error.

    Returns:
        The sure links, and all of them.

    Raises:
        DataError: when the line has another form.
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
        links: of each sentence.
        sure: those people were sure of.
        possible: those they allowed, the sure ones among them; only the sure ones if None.

    Raises:
        DataError: when there are not as many sentences of each.
    """
    possible = sure if possible is None else possible
    if not len(links) == len(sure) == len(possible):
        raise DataError(f"Links of {len(links)} sentences, gold of {len(sure)} and {len(possible)}")
    hits = total = 0
    for a, s, p in zip(links, sure, possible, strict=True):
        hits += len(set(a) & set(s)) + len(set(a) & (set(p) | set(s)))
        total += len(set(a)) + len(set(s))
    return 1 - hits / total if total else 0.0
