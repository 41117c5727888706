"""Page "Step by step": attention in numbers, on typed vectors or on vectors of a model."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from heedful.apps.studio.page import (
    QueryRequest,
    attentions_of,
    call,
    layer_of,
    read_text,
    round_digits,
)
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config
from heedful.inspect.attention_maps import AttentionSteps, attention_steps, num_heads, parts_of
from heedful.nn.attention.attend import attend, attention_weights, make_request
from heedful.nn.attention.relative_positions import Alibi
from heedful.nn.mask_text import LONGEST, parse_mask
from heedful.nn.positions import Positions

MOST = 12
"""Maximum number of rows and of columns of a matrix."""

MOST_KEYS = 16
"""Number of keys, with the largest weights, that are shown with all numbers."""
LEADING = 4
"""Number of largest channels of a dot product that are listed; the others are summed."""
LISTED = 4
"""Number of largest channels of the output that are listed."""

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


@call(AttendRequest, "attend")
def attend_to(request: AttendRequest, workspace: Workspace) -> dict[str, Any]:
    """Return every stage of attention, for every query."""
    q, k, v = (
        torch.tensor(rows, dtype=torch.float64) for rows in (request.q, request.k, request.v)
    )
    if request.x is not None:
        x = torch.tensor(request.x, dtype=torch.float64)
        q, k, v = x @ q, x @ k, x @ v
    mask = parse_mask(request.mask)
    positions = Positions(torch.arange(len(q))[None], torch.arange(len(k))[None])
    biases = [Alibi(1)] if request.bias == "alibi" else []
    args = (q[None, None], k[None, None], v[None, None], positions, mask, biases)
    with torch.inference_mode():
        inputs = make_request(*args, scale=request.scale)
        weights = attention_weights(inputs)[0, 0]
        output = attend(*args, scale=request.scale, kernel="reference")[0, 0]
        raw = q @ k.T
        added = biases[0](args[0] * inputs.scale, args[1], positions)[0, 0] if biases else None
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


@call(QueryRequest)
def follow(request: QueryRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the stages of one query, with the keys that get the largest weights."""
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
    # The largest weights come first; equal weights, as of hidden keys, keep the order of the text.
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
    """Return the stages of one key; for a hidden key, the stages after the mask are None."""
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
