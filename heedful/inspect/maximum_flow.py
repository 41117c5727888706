"""Maximum flow through layers of tokens, exact up to rounding (Dinic 1970)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

_DUST = 1e-12
"""Less than this is left of a capacity by rounding alone."""


def flow_from(capacities: Sequence[np.ndarray], row: int) -> np.ndarray:
    """Maximum flows from one state of the last layer to each input token.

    Args:
        capacities: from the first layer to the last, [L, L]: from each token after the layer to
            each before it.
        row: the token after the last layer.

    Returns:
        [L] float64.
    """
    tokens, layers = len(capacities[0]), len(capacities)
    # Node n · L + t is token t after n layers.
    graph = np.zeros((tokens * (layers + 1),) * 2)
    for number, capacity in enumerate(capacities):
        below, above = number * tokens, (number + 1) * tokens
        graph[above : above + tokens, below : below + tokens] = capacity
    source = layers * tokens + row
    return np.array([max_flow(graph, source, token) for token in range(tokens)])


def max_flow(capacities: np.ndarray, source: int, sink: int) -> float:
    """The maximum flow between two nodes of a graph.

    Args:
        capacities: [V, V], at least 0.
        source: where it starts.
        sink: where it goes, another node.
    """
    left = capacities.astype(np.float64)
    total = 0.0
    while (levels := _levels(left, source, sink))[sink] >= 0:
        total += _block(left, levels, source, sink)
    return total


def _levels(left: np.ndarray, source: int, sink: int) -> np.ndarray:
    """Steps from the source to each node over edges with room; −1 where there is no way."""
    levels = np.full(len(left), -1)
    levels[source] = step = 0
    frontier = np.array([source])
    while len(frontier) and levels[sink] < 0:
        step += 1
        frontier = np.flatnonzero((left[frontier] > _DUST).any(0) & (levels < 0))
        levels[frontier] = step
    return levels


def _block(left: np.ndarray, levels: np.ndarray, source: int, sink: int) -> float:
    """Fill shortest ways until none has room; changes `left` and returns what was added."""
    onward: dict[int, list[int]] = {}
    total = 0.0
    path = [source]
    while path:
        node = path[-1]
        if node == sink:
            edges = list(itertools.pairwise(path))
            amount = min(left[edge] for edge in edges)
            for start, end in edges:
                left[start, end] -= amount
                left[end, start] += amount
            total += float(amount)
            full = next(i for i, edge in enumerate(edges) if left[edge] <= _DUST)
            del path[full + 1 :]
            continue
        if node not in onward:
            room = (left[node] > _DUST) & (levels == levels[node] + 1)
            onward[node] = np.flatnonzero(room).tolist()
        choices = onward[node]
        while choices and left[node, choices[-1]] <= _DUST:
            choices.pop()
        if choices:
            path.append(choices[-1])
        else:
            path.pop()
            if path:
                onward[path[-1]].pop()
    return total
