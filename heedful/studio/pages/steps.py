"""Page "Step by step": one attention in numbers, on matrices a person types or on a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.studio.mask_expression import LONGEST, parse_mask
from heedful.studio.page import Call, Page
from heedful.studio.pages.steps_model import FollowRequest, follow

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.studio.workspace import Workspace

MOST = 12
"""Rows and columns of a matrix that is still to be read."""

Number = Annotated[float, Field(ge=-1e6, le=1e6)]
Vector = Annotated[tuple[Number, ...], Field(min_length=1, max_length=MOST)]
Matrix = Annotated[tuple[Vector, ...], Field(min_length=1, max_length=MOST)]


class AttendRequest(Config):
    """Queries, keys and values; or the tokens and weight matrices that they are made of."""

    q: Matrix
    k: Matrix
    v: Matrix
    x: Matrix | None = Field(
        None, description="tokens; q, k and v are then weight matrices applied to them"
    )
    scale: Annotated[float, Field(ge=-1000, le=1000)] | None = Field(
        None, description="factor on scores; 1/sqrt(width of a key) if unset"
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


def attend_to(asked: AttendRequest, workspace: Workspace) -> dict[str, Any]:
    """Every stage of an attention, for every query."""
    import torch

    from heedful.nn.attend import attend, attention_weights, make_request
    from heedful.nn.biases import Alibi
    from heedful.nn.masks import build_mask
    from heedful.nn.positions import Positions
    from heedful.studio.numbers import plain

    q, k, v = (torch.tensor(rows, dtype=torch.float64) for rows in (asked.q, asked.k, asked.v))
    if asked.x is not None:
        x = torch.tensor(asked.x, dtype=torch.float64)
        q, k, v = x @ q, x @ k, x @ v
    mask = build_mask(parse_mask(asked.mask))
    positions = Positions(torch.arange(len(q))[None], torch.arange(len(k))[None])
    biases = [Alibi(1)] if asked.bias == "alibi" else []
    given = (_headed(q), _headed(k), _headed(v), positions)
    with torch.inference_mode():
        request = make_request(*given, mask, biases, scale=asked.scale)
        weights = attention_weights(request)[0, 0]
        output = attend(*given, mask, biases, scale=asked.scale, kernel="reference")[0, 0]
        raw = q @ k.T
        added = biases[0](given[0] * request.scale, positions)[0, 0] if biases else None
        scored = raw * request.scale + (0 if added is None else added)
    visible = positions.visible(mask)[0, 0]
    return {
        "q": plain(q),
        "k": plain(k),
        "v": plain(v),
        "products": plain(q[:, None] * k[None]),
        "raw": plain(raw),
        "factor": float(request.scale),
        "scaled": plain(raw * request.scale),
        "added": None if added is None else plain(added),
        "visible": visible.tolist(),
        "scores": plain(scored),
        "powers": plain(_powers(scored, visible)),
        "weights": plain(weights),
        "parts": plain(weights[:, :, None] * v[None]),
        "output": plain(output),
        "sentence": f"A query sees {mask.describe()}.",
    }


def _headed(rows: Tensor) -> Tensor:
    """[L, E] as a batch of one sentence and one head."""
    return rows[None, None]


def _powers(scores: Tensor, visible: Tensor) -> Tensor:
    """e to the power of each score below the highest that its query sees; 0 where it sees none.

    Taking the highest away changes no weight and keeps large scores from overflowing.
    """
    highest = scores.masked_fill(~visible, -1e30).amax(-1, keepdim=True)
    return (scores - highest).masked_fill(~visible, -1e30).exp() * visible


PAGE = Page(
    name="steps",
    title="Step by step",
    summary="One attention in numbers, on a model or on matrices you type.",
    about=(
        "One query is followed through attention: multiplied with every key, scaled, masked, "
        "turned into weights by the softmax, and answered with the weighted sum of the values. "
        "Type numbers, begin with an example, or follow a word through a head of a model of yours; "
        "every stage is computed by the same code that runs the models."
    ),
    calls={
        "attend": Call(AttendRequest, attend_to),
        "follow": Call(FollowRequest, follow),
    },
)
