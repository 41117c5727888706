"""Pages "Step by step" and "Scale": one attention in numbers, and the division by √dₖ.

Vectors are typed, random, or those of a model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.apps.studio.page import (
    AttentionViewRequest,
    Call,
    Page,
    attentions_of,
    layer_of,
    read_text,
    round_digits,
)
from heedful.config import Config
from heedful.nn.mask_text import LONGEST, parse_mask

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.apps.studio.workspace import Workspace
    from heedful.inspect.attention_maps import AttentionSteps


MOST = 12
"""Most rows and columns of a matrix."""

MOST_KEYS = 16
"""Keys that are shown with all numbers: those with the largest weights."""
LEADING = 4
"""Largest channels of a dot product that are listed; the others are summed."""
LISTED = 4
"""Largest channels of the output that are listed."""

Index = Annotated[int, Field(ge=0, le=100_000)]

Number = Annotated[float, Field(ge=-1e6, le=1e6)]
Vector = Annotated[tuple[Number, ...], Field(min_length=1, max_length=MOST)]
Matrix = Annotated[tuple[Vector, ...], Field(min_length=1, max_length=MOST)]


class AttendRequest(Config):
    """Queries, keys and values, or the tokens and weight matrices that give them."""

    q: Matrix
    k: Matrix
    v: Matrix
    x: Matrix | None = Field(
        None, description="token vectors; if set, q, k and v are weight matrices applied to them"
    )
    scale: Annotated[float, Field(ge=-1000, le=1000)] | None = Field(
        None, description="factor on scores; 1/sqrt(key width) if unset"
    )
    mask: Annotated[str, Field(max_length=4 * LONGEST)] = "everything"
    bias: Literal["none", "alibi"] = "none"

    @model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        for name in ("q", "k", "v", "x"):
            rows = getattr(self, name)
            if rows is not None and len({len(row) for row in rows}) > 1:
                raise ValueError(f"the rows of {name.upper()} are not of the same length")
        if len(self.q[0]) != len(self.k[0]):
            raise ValueError(
                f"queries have {len(self.q[0])} numbers and keys {len(self.k[0])}; "
                "a dot product needs as many of each"
            )
        if self.x is None and len(self.k) != len(self.v):
            raise ValueError(f"there are {len(self.k)} keys and {len(self.v)} values")
        if self.x is not None and {len(self.q), len(self.k), len(self.v)} != {len(self.x[0])}:
            raise ValueError(
                f"tokens have {len(self.x[0])} numbers, so each weight matrix needs "
                f"{len(self.x[0])} rows"
            )
        return self


def attend_to(request: AttendRequest, workspace: Workspace) -> dict[str, Any]:
    """Return every stage of attention, for every query."""
    import torch

    from heedful.nn.attention.attend import attend, attention_weights, make_request
    from heedful.nn.attention.masks import build_mask
    from heedful.nn.attention.relative_positions import Alibi
    from heedful.nn.positions import Positions

    q, k, v = (
        torch.tensor(rows, dtype=torch.float64) for rows in (request.q, request.k, request.v)
    )
    if request.x is not None:
        x = torch.tensor(request.x, dtype=torch.float64)
        q, k, v = x @ q, x @ k, x @ v
    mask = build_mask(parse_mask(request.mask))
    positions = Positions(torch.arange(len(q))[None], torch.arange(len(k))[None])
    biases = [Alibi(1)] if request.bias == "alibi" else []
    args = (q[None, None], k[None, None], v[None, None], positions, mask, biases)
    with torch.inference_mode():
        inputs = make_request(*args, scale=request.scale)
        weights = attention_weights(inputs)[0, 0]
        output = attend(*args, scale=request.scale, kernel="reference")[0, 0]
        raw = q @ k.T
        added = biases[0](args[0] * inputs.scale, positions)[0, 0] if biases else None
        scores = raw * inputs.scale + (0 if added is None else added)
    visible = positions.visible(mask)[0, 0]
    return {
        "q": round_digits(q),
        "k": round_digits(k),
        "v": round_digits(v),
        "products": round_digits(q[:, None] * k[None]),
        "raw": round_digits(raw),
        "factor": float(inputs.scale),
        "scaled": round_digits(raw * inputs.scale),
        "added": None if added is None else round_digits(added),
        "visible": visible.tolist(),
        "scores": round_digits(scores),
        "powers": round_digits(_exponentials(scores, visible)),
        "weights": round_digits(weights),
        "parts": round_digits(weights[:, :, None] * v[None]),
        "output": round_digits(output),
        "sentence": f"A query sees {mask.describe()}.",
    }


def _exponentials(scores: Tensor, visible: Tensor) -> Tensor:
    """Return the exponential of each score less the highest of its row; 0 for hidden keys.

    Subtracting the highest score changes no weight and avoids overflow.
    """
    highest = scores.masked_fill(~visible, -1e30).amax(-1, keepdim=True)
    return (scores - highest).masked_fill(~visible, -1e30).exp() * visible


class FollowRequest(AttentionViewRequest):
    """A text, and a query position of a model to follow."""

    head: Index = 0
    row: Index = 0


def follow(request: FollowRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the stages of one query, with the keys that get the largest weights."""
    from heedful.inspect.attention_maps import attention_steps, num_heads, parts_of

    subject, reading = read_text(request, workspace)
    part, modules, layer = attentions_of(subject, request.part, request.layer)
    steps = attention_steps(subject, reading, part, layer=layer, head=request.head, row=request.row)
    return {
        "target": reading.target,
        "parts": list(parts_of(subject.model)),
        "part": part,
        "layer": layer,
        "blocks": [*map(layer_of, modules)],
        "heads": num_heads(modules),
        "row": steps.row,
        "rows": list(steps.rows),
        "columns": list(steps.columns),
        **_stages(steps),
    }


def _stages(steps: AttentionSteps) -> dict[str, Any]:
    import numpy as np

    # The largest weight first; equal ones, such as hidden keys, in the order of the text.
    listed = np.sort(np.argsort(-steps.weights, kind="stable")[:MOST_KEYS])
    others = np.setdiff1d(np.arange(len(steps.weights)), listed)
    channels = np.sort(np.argsort(-np.abs(steps.context), kind="stable")[:LISTED])
    keys = [_key(steps, int(key)) for key in listed]
    for key in keys:
        key["values"] = steps.values[key["key"], channels].tolist()
        key["parts"] = steps.parts[key["key"], channels].tolist()
    return {
        "address": steps.address,
        "width": len(steps.query),
        "rotary": steps.rotary,
        "factor": steps.factor,
        "softcap": steps.softcap,
        "biased": steps.bias is not None,
        "mask": steps.mask,
        "hidden": int((~steps.visible).sum()),
        "query": steps.query.tolist(),
        "query_length": float(np.linalg.norm(steps.query)),
        "keys": keys,
        "sum": float(steps.exponentials.sum()),
        "weights": steps.weights.tolist(),
        "others": {
            "count": len(others),
            "weight": float(steps.weights[others].sum()),
            "parts": steps.parts[others][:, channels].sum(0).tolist(),
        },
        "channels": channels.tolist(),
        "context": steps.context[channels].tolist(),
        "mixed": steps.context.tolist(),
    }


def _key(steps: AttentionSteps, key: int) -> dict[str, Any]:
    """Return the stages of one key; those after the mask are None for a hidden key."""
    import numpy as np

    products = steps.products[key]
    leading = np.argsort(-np.abs(products), kind="stable")[:LEADING]
    query, own = steps.query, steps.keys[key]
    lengths = float(np.linalg.norm(query) * np.linalg.norm(own))
    visible = bool(steps.visible[key])
    return {
        "key": key,
        "vector": own.tolist(),
        "products": products.tolist(),
        "value": steps.values[key].tolist(),
        "length": float(np.linalg.norm(own)),
        "cosine": float(query @ own) / lengths if lengths else 0.0,
        "value_length": float(np.linalg.norm(steps.values[key])),
        "leading": [[int(channel), float(products[channel])] for channel in leading],
        "rest": float(np.delete(products, leading).sum()),
        "raw": float(steps.raw[key]),
        "scaled": float(steps.scaled[key]),
        "bias": None if steps.bias is None else float(steps.bias[key]),
        "score": float(steps.scores[key]) if visible else None,
        "power": float(steps.exponentials[key]) if visible else None,
        "weight": float(steps.weights[key]),
    }


STEPS = Page(
    name="steps",
    title="Step by step",
    summary="One attention in numbers, on a model or on matrices you type.",
    about=(
        "Follow one query through attention, step by step. Type numbers, begin with an example, or "
        "follow a word through a head of a model; the code that runs the models computes them all."
    ),
    calls={
        "attend": Call(AttendRequest, attend_to),
        "follow": Call(FollowRequest, follow),
    },
)


WIDEST = 1024
WIDTHS = tuple(2**power for power in range(11))
QUERIES = 64
"""Random queries that are averaged for a point of the curves."""

Keys = Annotated[int, Field(ge=2, le=64)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class RandomQueryRequest(Config):
    """A random query and its random keys."""

    width: Annotated[int, Field(ge=1, le=WIDEST)] = 64
    keys: Keys = 12
    seed: Seed = 1


class SweepRequest(Config):
    """Many random queries at every width."""

    keys: Keys = 12
    seed: Seed = 1


def compare(request: RandomQueryRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the weights of one query, with and without the scale."""
    # Widths share the first channels, so that a small change of the width changes little.
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
    import torch

    source = torch.Generator().manual_seed(seed)
    drawn = torch.randn((queries, 1, keys + 1, width), generator=source)
    return drawn[:, :, :1], drawn[:, :, 1:]


def _weights(query: Tensor, keys: Tensor, factor: float | None) -> Tensor:
    """Return attention weights [R, N]."""
    import torch

    from heedful.nn.attention.attend import attention_weights, make_request
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
    """Return the entropy of weights [..., N], in nats."""
    import torch

    entropy: Tensor = torch.special.entr(weights.double()).sum(-1)
    return entropy


def _gradient(weights: Tensor) -> Tensor:
    """Return the norm of the derivative of weights [..., N] by the input of the softmax."""
    weights = weights.double()
    derivative = weights.diag_embed() - weights[..., :, None] * weights[..., None, :]
    return derivative.square().sum((-1, -2)).sqrt()


SCALE = Page(
    name="scale",
    title="Scale",
    summary="The softmax with and without the division by √dₖ.",
    about=(
        "A query and its keys are drawn at random, with mean 0 and variance 1 in every channel. "
        "The standard deviation of their dot products is √dₖ: without the division, a wide head "
        "puts all its weight on one key, and the gradient that could change that vanishes. "
        "Divided by √dₖ, the weights are similar at every width."
    ),
    calls={"compare": Call(RandomQueryRequest, compare), "sweep": Call(SweepRequest, sweep)},
)
