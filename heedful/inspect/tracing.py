"""Shares of each input token in each state: attention rollout and flow (Abnar and Zuidema 2020).

Both take the output of a layer as half its input, by the residual, and half the attention's,
heads averaged. Maximum flows are exact up to rounding (Dinic 1970).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heedful.errors import ConfigError
from heedful.inspect.attention_maps import AttentionMap, choose
from heedful.inspect.subject import Result


@dataclass(frozen=True, eq=False)
class Tracing(Result):
    """Shares of the input tokens in the states.

    Args:
        rows: tokens of the states.
        columns: tokens of the input.
        layers: numbers of the layers after which the states are.
        weights: [layers, rows, columns] float64.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    layers: tuple[int, ...]
    weights: np.ndarray


def rollout(attention: AttentionMap) -> Tracing:
    """Multiply the layers up to each (Abnar and Zuidema 2020).

    Args:
        attention: self-attention of all layers and rows.

    Returns:
        For each layer shares of the input tokens; a row sums to 1.

    Raises:
        ConfigError: when layers or rows are left out, or it is no self-attention.
    """
    traced: list[np.ndarray] = []
    for mixing in _mixing(attention):
        traced.append(mixing @ traced[-1] if traced else mixing)
    return Tracing(attention.rows, attention.columns, attention.layers, np.stack(traced))


def flow(attention: AttentionMap, rows: Sequence[int] | None = None) -> Tracing:
    """Compute the maximum flow from last states to input tokens (Abnar and Zuidema 2020).

    A row costs a maximum flow for each token: a moment for a sentence, minutes for a page.

    Args:
        attention: self-attention of all layers and rows.
        rows: numbers of the states; all if None.

    Returns:
        For the last layer, between 0 and 1; rows need not sum to 1.

    Raises:
        ConfigError: when layers or rows are left out, or it is no self-attention.
    """
    mixing = _mixing(attention)
    chosen = choose(rows, len(attention.rows), "row")
    weights = np.stack([flow_from(mixing, row) for row in chosen])
    names = tuple(attention.rows[row] for row in chosen)
    return Tracing(names, attention.columns, attention.layers[-1:], weights[None])


def _mixing(attention: AttentionMap) -> list[np.ndarray]:
    """Return the mixing of each layer [L, L], whose rows sum to 1."""
    whole = attention.layers == tuple(range(len(attention.layers)))
    if attention.part == "cross" or not whole or len(attention.rows) != len(attention.columns):
        raise ConfigError(
            "States can only be traced back through self-attention of all layers and rows",
            remedy="Give what `attention` returns for part encoder or decoder, all layers and rows",
        )
    counts = attention.weights.any((2, 3)).sum(1)  # heads that were not pruned
    heads = attention.weights.astype(np.float64).sum(1) / np.maximum(counts, 1)[:, None, None]
    identity = np.eye(len(attention.rows))
    return [
        (layer + identity) / 2 if count else identity
        for layer, count in zip(heads, counts, strict=True)
    ]


_DUST = 1e-12
"""A capacity below this is left by rounding alone."""


def flow_from(capacities: Sequence[np.ndarray], row: int) -> np.ndarray:
    """Compute maximum flows from one state of the last layer to each input token.

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
    """Compute the maximum flow between two nodes of a graph.

    Args:
        capacities: [V, V], at least 0.
        source: the node where it starts.
        sink: the node where it ends, another one.
    """
    left = capacities.astype(np.float64)
    total = 0.0
    while (levels := _levels(left, source, sink))[sink] >= 0:
        total += _block(left, levels, source, sink)
    return total


def _levels(left: np.ndarray, source: int, sink: int) -> np.ndarray:
    """Count the steps from the source to each node over edges with capacity; −1 for no path."""
    levels = np.full(len(left), -1)
    levels[source] = step = 0
    frontier = np.array([source])
    while len(frontier) and levels[sink] < 0:
        step += 1
        frontier = np.flatnonzero((left[frontier] > _DUST).any(0) & (levels < 0))
        levels[frontier] = step
    return levels


def _block(left: np.ndarray, levels: np.ndarray, source: int, sink: int) -> float:
    """Fill shortest paths until none has capacity left; return the flow that was added."""
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
            open_edges = (left[node] > _DUST) & (levels == levels[node] + 1)
            onward[node] = np.flatnonzero(open_edges).tolist()
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
