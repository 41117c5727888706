"""Attention rollout and flow: shares of input tokens in later states (Abnar and Zuidema 2020).

Both model the output of a layer as half its input, through the residual connection, and half the
attention-weighted mean of all inputs, averaged over heads. Maximum flows are computed by Dinic's
algorithm (1970), exactly up to rounding.
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
    """Shares of the input tokens in the states of layers.

    Args:
        rows: tokens of the states.
        columns: tokens of the input.
        layers: indices of the layers whose output the states are.
        weights: [layers, rows, columns] float64 shares.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    layers: tuple[int, ...]
    weights: np.ndarray


def rollout(attention: AttentionMap) -> Tracing:
    """Compute attention rollout, the matrix product of the mixing matrices up to each layer.

    Args:
        attention: self-attention of all layers and rows.

    Returns:
        Shares of the input tokens after each layer; a row sums to 1.

    Raises:
        ConfigError: when layers or rows are missing, or the map is one of cross-attention.
    """
    traced: list[np.ndarray] = []
    for mixing in _mixing(attention):
        # The newest layer is on the left: rows are its states, columns the tokens of the input.
        traced.append(mixing @ traced[-1] if traced else mixing)
    return Tracing(attention.rows, attention.columns, attention.layers, np.stack(traced))


def flow(attention: AttentionMap, rows: Sequence[int] | None = None) -> Tracing:
    """Compute attention flow, the maximum flow from states of the last layer to input tokens.

    A row costs a maximum flow for each token: a moment for a sentence, minutes for a page.

    Args:
        attention: self-attention of all layers and rows.
        rows: indices of the states; all if None.

    Returns:
        Flows from 0 to 1 for the last layer; rows need not sum to 1.

    Raises:
        ConfigError: when layers or rows are missing, or the map is one of cross-attention.
    """
    mixing = _mixing(attention)
    chosen = choose(rows, len(attention.rows), "row")
    weights = np.stack([flow_from(mixing, row) for row in chosen])
    names = tuple(attention.rows[row] for row in chosen)
    return Tracing(names, attention.columns, attention.layers[-1:], weights[None])


def _mixing(attention: AttentionMap) -> list[np.ndarray]:
    """Return the mixing matrix [L, L] of each layer, (attention + identity) / 2; rows sum to 1."""
    whole = attention.layers == tuple(range(len(attention.layers)))
    if attention.part == "cross" or not whole or len(attention.rows) != len(attention.columns):
        raise ConfigError(
            "States can only be traced back through self-attention of all layers and rows",
            remedy="Give what `attention` returns for part encoder or decoder, all layers and rows",
        )
    # Pruned heads are zeros and would make rows sum to less than 1.
    counts = attention.weights.any((2, 3)).sum(1)
    heads = attention.weights.astype(np.float64).sum(1) / np.maximum(counts, 1)[:, None, None]
    identity = np.eye(len(attention.rows))
    return [
        # A layer whose heads were all pruned passes the stream on unchanged.
        (layer + identity) / 2 if count else identity
        for layer, count in zip(heads, counts, strict=True)
    ]


_EPSILON = 1e-12
"""Capacities up to this are taken for rounding errors of subtractions, and as used up."""


def flow_from(capacities: Sequence[np.ndarray], row: int) -> np.ndarray:
    """Compute maximum flows from one state of the last layer to each input token.

    Args:
        capacities: [L, L] mixing matrix of each layer, from the first: rows are tokens after the
            layer, columns tokens before it.
        row: index of the state after the last layer.

    Returns:
        [L] float64 maximum flows.
    """
    tokens, layers = len(capacities[0]), len(capacities)
    # Node n * L + t is token t after n layers; edges lead from a layer to the one below.
    graph = np.zeros((tokens * (layers + 1),) * 2)
    for number, capacity in enumerate(capacities):
        below, above = number * tokens, (number + 1) * tokens
        graph[above : above + tokens, below : below + tokens] = capacity
    source = layers * tokens + row
    return np.array([max_flow(graph, source, token) for token in range(tokens)])


def max_flow(capacities: np.ndarray, source: int, sink: int) -> float:
    """Compute the maximum flow between two nodes of a graph.

    Args:
        capacities: [V, V] capacities of the edges, at least 0.
        source: index of the node where the flow starts.
        sink: index of the node where the flow ends, different from the source.
    """
    # A copy becomes the residual graph: the remaining capacities, and flows that can be taken back.
    residual = capacities.astype(np.float64)
    total = 0.0
    # Each phase lengthens the shortest path by at least one edge, so there are fewer phases than
    # nodes.
    while (levels := _levels(residual, source, sink))[sink] >= 0:
        total += _block(residual, levels, source, sink)
    return total


def _levels(residual: np.ndarray, source: int, sink: int) -> np.ndarray:
    """Return the distance of each node from the source over edges with capacity, or −1."""
    levels = np.full(len(residual), -1)
    levels[source] = step = 0
    frontier = np.array([source])
    while len(frontier) and levels[sink] < 0:
        step += 1
        frontier = np.flatnonzero((residual[frontier] > _EPSILON).any(0) & (levels < 0))
        levels[frontier] = step
    return levels


def _block(residual: np.ndarray, levels: np.ndarray, source: int, sink: int) -> float:
    """Saturate all shortest paths (a blocking flow) and return the flow that was added."""
    next_nodes: dict[int, list[int]] = {}
    total = 0.0
    path = [source]
    while path:
        node = path[-1]
        if node == sink:
            edges = list(itertools.pairwise(path))
            amount = min(residual[edge] for edge in edges)
            for start, end in edges:
                residual[start, end] -= amount
                # The reverse edge lets a later phase take this flow back.
                residual[end, start] += amount
            total += float(amount)
            full = next(i for i, edge in enumerate(edges) if residual[edge] <= _EPSILON)
            # Continue from the node before the first saturated edge: what leads there is still
            # open.
            del path[full + 1 :]
            continue
        if node not in next_nodes:
            open_edges = (residual[node] > _EPSILON) & (levels == levels[node] + 1)
            next_nodes[node] = np.flatnonzero(open_edges).tolist()
        choices = next_nodes[node]
        while choices and residual[node, choices[-1]] <= _EPSILON:
            choices.pop()
        if choices:
            path.append(choices[-1])
        else:
            path.pop()
            if path:
                # A dead end stays one for the rest of this phase, so its edge is not tried again.
                next_nodes[path[-1]].pop()
    return total
