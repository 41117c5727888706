"""Page "Scale": softmax over dot products with and without division by the root of the width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.config import Config
from heedful.studio.page import Call, Page, round_digits

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.studio.workspace import Workspace

WIDEST = 1024
WIDTHS = tuple(2**power for power in range(11))
QUERIES = 64
"""Random queries whose mean is a point of the curves."""

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


def compare(request: CompareRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the weights of one query with the scale and without."""
    # The first channels of wide vectors, so that a small change of the width changes little.
    query, keys = _draw(1, request.keys, WIDEST, request.seed)
    query, keys = query[..., : request.width], keys[..., : request.width]
    return {
        "scores": round_digits((query @ keys.mT)[0, 0, 0]),
        "factor": 1 / math.sqrt(request.width),
        "without": _facts(_weights(query, keys, 1.0)[0]),
        "with": _facts(_weights(query, keys, None)[0]),
        "even": math.log(request.keys),
    }


def sweep(request: SweepRequest, workspace: Workspace) -> dict[str, Any]:
    """Return means over many queries at widths from 1 to 1,024."""
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
    """In nats, of weights [..., N]."""
    import torch

    entropy: Tensor = torch.special.entr(weights.double()).sum(-1)
    return entropy


def _gradient(weights: Tensor) -> Tensor:
    """Size of the derivative of the weights [..., N] by the input of the softmax."""
    weights = weights.double()
    derivative = weights.diag_embed() - weights[..., :, None] * weights[..., None, :]
    return derivative.square().sum((-1, -2)).sqrt()


PAGE = Page(
    name="scale",
    title="Scale",
    summary="The softmax with and without the division by √dₖ.",
    about=(
        "A query and its keys are drawn at random, with mean 0 and variance 1 in every channel. "
        "The standard deviation of their dot products is √dₖ: without the division, a wide head "
        "puts all its weight on one key, and the gradient that could change that vanishes. "
        "Divided by √dₖ, the weights are similar at every width."
    ),
    calls={"compare": Call(CompareRequest, compare), "sweep": Call(SweepRequest, sweep)},
)
