"""Page "Scale": the softmax of random scores, with and without the division by √dₖ."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from heedful.apps.studio.page import call, round_digits
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config
from heedful.nn.attention.attend import attention_weights, make_request
from heedful.nn.positions import Positions

WIDEST = 1024
WIDTHS = tuple(2**power for power in range(11))
QUERIES = 64
"""Number of random queries that are averaged for each point of the curves."""


class SweepRequest(Config):
    """Many random queries at every width."""

    keys: int = Field(12, ge=2, le=64)
    seed: int = Field(1, ge=0, lt=2**31)


class RandomQueryRequest(SweepRequest):
    """A random query and its random keys."""

    width: int = Field(64, ge=1, le=WIDEST)


@call(RandomQueryRequest)
def compare(request: RandomQueryRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the weights of one query, with and without the scale."""
    # All widths share their first channels, so a small change of the width changes little.
    query, keys = _draw(1, request.keys, WIDEST, request.seed)
    query, keys = query[..., : request.width], keys[..., : request.width]
    return {
        "scores": round_digits((query @ keys.mT)[0, 0, 0]),
        "factor": 1 / math.sqrt(request.width),
        "without": _facts(_weights(query, keys, 1.0)[0]),
        "with": _facts(_weights(query, keys, None)[0]),
        "even": math.log(request.keys),
    }


@call(SweepRequest)
def sweep(request: SweepRequest, workspace: Workspace) -> dict[str, Any]:
    """Return means over many random queries at widths from 1 to 1,024."""
    curves: dict[str, list[float]] = {
        f"{figure}_{scaled}": []
        for figure in ("entropy", "gradient", "deviation")
        for scaled in ("without", "with")
    }
    for width in WIDTHS:
        query, keys = _draw(QUERIES, request.keys, width, request.seed)
        for scaled, factor in (("without", 1.0), ("with", width**-0.5)):
            weights = _weights(query, keys, factor)
            curves[f"entropy_{scaled}"].append(float(_entropy(weights).mean()))
            curves[f"gradient_{scaled}"].append(float(_gradient(weights).mean()))
            curves[f"deviation_{scaled}"].append(float((query @ keys.mT * factor).std()))
    return {"widths": list(WIDTHS), "even": math.log(request.keys), **curves}


def _draw(queries: int, keys: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return random queries [R, 1, 1, E] and keys [R, 1, N, E], of mean 0 and variance 1."""
    source = torch.Generator().manual_seed(seed)
    drawn = torch.randn((queries, 1, keys + 1, width), generator=source)
    return drawn[:, :, :1], drawn[:, :, 1:]


def _weights(query: Tensor, keys: Tensor, factor: float | None) -> Tensor:
    """Return attention weights [R, N]; the scale is 1/√dₖ if `factor` is None."""
    rows, _, count, _ = keys.shape
    query_positions = torch.zeros((rows, 1), dtype=torch.int64)
    positions = Positions(query_positions, torch.arange(count).expand(rows, -1))
    inputs = make_request(query, keys, keys, positions, scale=factor)
    return attention_weights(inputs)[:, 0, 0]


def _facts(weights: Tensor) -> dict[str, Any]:
    entropy = float(_entropy(weights))
    return {
        "weights": round_digits(weights),
        "largest": float(weights.max()),
        "entropy": entropy,
        "effective": math.exp(entropy),
        "gradient": float(_gradient(weights)),
    }


def _entropy(weights: Tensor) -> Tensor:
    """Return the entropy of weights [..., N], in nats."""
    entropy: Tensor = torch.special.entr(weights.double()).sum(-1)
    return entropy


def _gradient(weights: Tensor) -> Tensor:
    """Return the norm of the derivative of weights [..., N] by the input of the softmax."""
    weights = weights.double()
    derivative = weights.diag_embed() - weights[..., :, None] * weights[..., None, :]
    return derivative.square().sum((-1, -2)).sqrt()
