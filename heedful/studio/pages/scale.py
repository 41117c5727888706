"""Page "Scale": softmax over dot products with and without division by the root of their width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.config import Config
from heedful.studio.page import Call, Page

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.studio.workspace import Workspace

WIDEST = 1024
WIDTHS = tuple(2**power for power in range(11))
QUERIES = 64
"""Draws that a point of the curves is the mean of."""

Keys = Annotated[int, Field(ge=2, le=64)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class CompareRequest(Config):
    """One query and its keys, drawn at random."""

    width: Annotated[int, Field(ge=1, le=WIDEST)] = 64
    keys: Keys = 12
    seed: Seed = 1


class SweepRequest(Config):
    """Many queries at every width."""

    keys: Keys = 12
    seed: Seed = 1


def compare(asked: CompareRequest, workspace: Workspace) -> dict[str, Any]:
    """Weights of one query with the scale and without."""
    from heedful.studio.numbers import plain

    # The first channels of wide vectors, so that sliding the width changes as little as it can.
    query, keys = _draw(1, asked.keys, WIDEST, asked.seed)
    query, keys = query[..., : asked.width], keys[..., : asked.width]
    return {
        "scores": plain((query @ keys.mT)[0, 0, 0]),
        "factor": 1 / math.sqrt(asked.width),
        "without": _facts(_weights(query, keys, 1.0)[0]),
        "with": _facts(_weights(query, keys, None)[0]),
        "even": math.log(asked.keys),
    }


def sweep(asked: SweepRequest, workspace: Workspace) -> dict[str, Any]:
    """Means over many queries at widths from 1 to 1,024."""
    curves: dict[str, list[float]] = {
        f"{figure}_{scaled}": []
        for figure in ("entropy", "gradient", "deviation")
        for scaled in ("without", "with")
    }
    for width in WIDTHS:
        query, keys = _draw(QUERIES, asked.keys, width, asked.seed)
        for scaled, factor in (("without", 1.0), ("with", width**-0.5)):
            weights = _weights(query, keys, factor)
            curves[f"entropy_{scaled}"].append(float(_entropy(weights).mean()))
            curves[f"gradient_{scaled}"].append(float(_gradient(weights).mean()))
            curves[f"deviation_{scaled}"].append(float((query @ keys.mT * factor).std()))
    return {"widths": list(WIDTHS), "even": math.log(asked.keys), **curves}


def _draw(queries: int, keys: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Queries [R, 1, 1, E], each with keys [R, 1, N, E] of its own: mean 0, variance 1."""
    import torch

    source = torch.Generator().manual_seed(seed)
    drawn = torch.randn((queries, 1, keys + 1, width), generator=source)
    return drawn[:, :, :1], drawn[:, :, 1:]


def _weights(query: Tensor, keys: Tensor, factor: float | None) -> Tensor:
    """Attention weights [R, N]."""
    import torch

    from heedful.nn.attend import attention_weights, make_request
    from heedful.nn.positions import Positions

    rows, _, count, _ = keys.shape
    positions = Positions(torch.zeros((rows, 1), dtype=torch.int64), torch.arange(count)[None])
    positions = Positions(positions.query, positions.key.expand(rows, -1))
    request = make_request(query, keys, keys, positions, scale=factor)
    return attention_weights(request)[:, 0, 0]


def _facts(weights: Tensor) -> dict[str, Any]:
    from heedful.studio.numbers import plain

    entropy = float(_entropy(weights))
    return {
        "weights": plain(weights),
        "largest": float(weights.max()),
        "entropy": entropy,
        "effective": math.exp(entropy),
        "gradient": float(_gradient(weights)),
    }


def _entropy(weights: Tensor) -> Tensor:
    """In nats, of weights [..., N]."""
    weights = weights.double()
    return -(weights * weights.clamp(min=1e-300).log()).sum(-1)


def _gradient(weights: Tensor) -> Tensor:
    """Size of the derivative of the weights [..., N] by what enters the softmax."""
    weights = weights.double()
    derivative = weights.diag_embed() - weights[..., :, None] * weights[..., None, :]
    return derivative.square().sum((-1, -2)).sqrt()


PAGE = Page(
    name="scale",
    title="Scale",
    summary="What the softmax becomes without the division by √dₖ.",
    about=(
        "A query and its keys are drawn at random, with mean 0 and variance 1 in every channel. "
        "Their dot products spread like √dₖ: without the division, a wide head soon puts all its "
        "weight on one key, and the gradient that could change that is gone. Divided by √dₖ, the "
        "weights look alike at every width."
    ),
    calls={"compare": Call(CompareRequest, compare), "sweep": Call(SweepRequest, sweep)},
)
