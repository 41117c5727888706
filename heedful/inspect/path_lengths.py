"""Operations, sequential steps and path lengths of kinds of layer.

The rows of the complexity table (Vaswani 2017, section 4), in exact numbers. The influence of
tokens on each other in real networks is measured in `heedful.inspect.reach`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from heedful.errors import ConfigError
from heedful.inspect.result import Result

Kind = Literal["attention", "recurrent", "window", "convolution", "dilated"]
"""Full attention; a recurrent layer; attention to near tokens; convolutions side by side, and with
gaps that grow from layer to layer (van den Oord 2016)."""

KINDS: tuple[Kind, ...] = get_args(Kind)
LONGEST_DRAWN = 64
"""Tokens of a network whose every connection is listed."""


@dataclass(frozen=True, eq=False)
class Costs(Result):
    """The costs of a kind of layer, by the number of tokens.

    Args:
        kind: of the layer.
        lengths: [N] int64 tokens.
        operations: [N] int64 multiply-adds of the layers' main products.
        steps: [N] int64 operations that must follow one another, on a machine that does all
            others at once.
        path: [N] int64 connections between the first and the last token, in a network of as many
            layers as it takes to connect them.
    """

    kind: Kind
    lengths: np.ndarray
    operations: np.ndarray
    steps: np.ndarray
    path: np.ndarray


def costs(
    lengths: Sequence[int],
    *,
    width: int = 512,
    num_layers: int = 1,
    window: int = 8,
    kernel: int = 3,
) -> tuple[Costs, ...]:
    """Compute operations, sequential steps and longest path of every kind of layer.

    A layer of attention takes n² · d multiply-adds (n · r · d within a window), a recurrent one
    n · d², a convolution k · n · d². Recurrent layers overlap: the second can read the first token
    while the first reads the second.

    Args:
        lengths: tokens n, at least 1 each.
        width: d.
        num_layers: on top of each other, for operations and steps.
        window: tokens r that a query of windowed attention sees on each side, itself among them,
            as in the mask `window(r)`.
        kernel: tokens k that a convolution reads: its own and those before it.

    Returns:
        One for each of `KINDS`, in that order.

    Raises:
        ConfigError: when a length is below 1, or a window or kernel below 2, which connects
            nothing.
    """
    _check(min(lengths, default=1), window, kernel)
    n = np.asarray(lengths, dtype=np.int64)
    once = np.full_like(n, num_layers)
    products = {
        "attention": n * n * width,
        "recurrent": n * width**2,
        "window": _window_pairs(n, window) * width,
        "convolution": kernel * n * width**2,
        "dilated": kernel * n * width**2,
    }
    paths = {
        "attention": np.minimum(n - 1, 1),
        "recurrent": n - 1,
        "window": -((1 - n) // (window - 1)),
        "convolution": -((1 - n) // (kernel - 1)),
        "dilated": np.array([_depth(length, kernel) for length in n.tolist()], dtype=np.int64),
    }
    return tuple(
        Costs(
            kind,
            n,
            num_layers * products[kind],
            n + num_layers - 1 if kind == "recurrent" else once,
            paths[kind],
        )
        for kind in KINDS
    )


@dataclass(frozen=True)
class Network:
    """The connections of a network that is deep enough to connect its first and last token.

    Args:
        kind: of its layers.
        levels: rows of nodes, the tokens themselves among them; a recurrent layer is one row of
            states, each of which reads its own token.
        length: nodes of a row.
        links: pairs of nodes (level, token), from the earlier to the later.
        route: the nodes of a shortest way from the first token to the last.
    """

    kind: Kind
    levels: int
    length: int
    links: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    route: tuple[tuple[int, int], ...]


def network(kind: Kind, length: int, *, window: int = 8, kernel: int = 3) -> Network:
    """Build a network to be drawn.

    Args:
        kind: of its layers.
        length: tokens, 1 to `LONGEST_DRAWN`.
        window: as in `costs`.
        kernel: as in `costs`.

    Raises:
        ConfigError: when it is too long to be drawn, or an argument is too small.
    """
    _check(length, window, kernel)
    if length > LONGEST_DRAWN:
        raise ConfigError(
            f"A network of {length:,} tokens has too many connections to be listed",
            remedy=f"Ask for at most {LONGEST_DRAWN}",
        )
    if kind == "recurrent":
        along = tuple(((0, token - 1), (0, token)) for token in range(1, length))
        return Network(kind, 1, length, along, tuple((0, token) for token in range(length)))
    by_kind = {each.kind: each for each in costs([length], window=window, kernel=kernel)}
    depth = int(by_kind[kind].path[0])
    links = tuple(
        ((level, before), (level + 1, token))
        for level in range(depth)
        for token in range(length)
        for before in _read(kind, level, token, length, window, kernel)
    )
    return Network(kind, depth + 1, length, links, _route(links, depth, length))


def _read(
    kind: Kind, level: int, token: int, length: int, window: int, kernel: int
) -> Sequence[int]:
    """Return the tokens of one level that a token of the next reads."""
    if kind == "attention":
        return range(length)
    if kind == "window":
        return range(max(0, token - window + 1), min(length, token + window))
    gap = kernel**level if kind == "dilated" else 1
    return [token - gap * place for place in range(kernel) if token >= gap * place]


def _route(
    links: Sequence[tuple[tuple[int, int], tuple[int, int]]], depth: int, length: int
) -> tuple[tuple[int, int], ...]:
    """Return a path from the first token to the last one of the top level, longest leaps first."""
    # From the end, so that leaps are long where a reader begins to look.
    below: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for before, after in links:
        below.setdefault(after, []).append(before)
    reaching = {(0, 0)}
    for before, after in links:  # in the order of levels
        if before in reaching:
            reaching.add(after)
    route = [(depth, length - 1)]
    while route[-1][0] > 0:
        route.append(min(node for node in below[route[-1]] if node in reaching))
    return tuple(reversed(route))


def _window_pairs(n: np.ndarray, window: int) -> np.ndarray:
    """Count the pairs of n tokens at a distance below the window, in both directions."""
    reach = np.minimum(window - 1, n - 1)
    pairs: np.ndarray = n + 2 * (n * reach - reach * (reach + 1) // 2)
    return pairs


def _depth(length: int, kernel: int) -> int:
    """Count the dilated layers after which one state has read all tokens: ⌈log_k n⌉, exactly."""
    depth, read = 0, 1
    while read < length:
        depth, read = depth + 1, read * kernel
    return depth


def _check(length: int, window: int, kernel: int) -> None:
    smallest = {"length": (length, 1), "window": (window, 2), "kernel": (kernel, 2)}
    for name, (value, least) in smallest.items():
        if value < least:
            raise ConfigError(f"A {name} of {value} connects nothing; at least {least} is needed")
