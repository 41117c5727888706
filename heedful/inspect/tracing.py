"""How much of each input token is in each state: attention rollout and flow (Abnar 2020).

Both take a layer to mix its input half by attention, heads averaged, and half by the residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import ConfigError
from heedful.inspect.maps import AttentionMap, choose
from heedful.inspect.maximum_flow import flow_from


@dataclass(frozen=True, eq=False)
class Tracing:
    """From which input tokens states were made.

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

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "rows": list(self.rows),
            "columns": list(self.columns),
            "layers": list(self.layers),
            "weights": self.weights.tolist(),
        }


def rollout(attention: AttentionMap) -> Tracing:
    """The product of all layers up to each (Abnar and Zuidema 2020).

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
    """The maximum flow from last states to input tokens (Abnar and Zuidema 2020).

    A row costs a maximum flow for each token: a moment for a sentence, minutes for a page.

    Args:
        attention: self-attention of all layers and rows.
        rows: the states to look at; all if None.

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
    """For each layer [L, L], rows summing to 1."""
    whole = attention.layers == tuple(range(len(attention.layers)))
    if attention.part == "cross" or not whole or len(attention.rows) != len(attention.columns):
        raise ConfigError(
            "States can only be traced back through self-attention of all layers and rows",
            remedy="Give what `attention` returns for part encoder or decoder, all layers and rows",
        )
    there = attention.weights.any((2, 3)).sum(1)  # heads that were not pruned
    heads = attention.weights.astype(np.float64).sum(1) / np.maximum(there, 1)[:, None, None]
    identity = np.eye(len(attention.rows))
    return [
        (layer + identity) / 2 if count else identity
        for layer, count in zip(heads, there, strict=True)
    ]
