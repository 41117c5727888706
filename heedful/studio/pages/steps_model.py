"""The call of page "Step by step" that follows a query of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pydantic

from heedful.studio.readings import TextRequest, read_text

if TYPE_CHECKING:
    import numpy as np

    from heedful.inspect.steps import AttentionSteps
    from heedful.studio.workspace import Workspace

MOST_KEYS = 16
"""Keys whose numbers are told one by one: those with the most weight."""
LEADING = 4
"""Channels of a product that are told, the largest; the others are added up."""
ANSWERED = 4
"""Channels of the answer that are told, the largest."""

Number = Annotated[int, pydantic.Field(ge=0, le=100_000)]


class FollowRequest(TextRequest):
    """Which query of a model to follow."""

    part: Annotated[str, pydantic.Field(max_length=20)] = pydantic.Field(
        "", description="encoder, decoder or cross; empty: cross where there is any"
    )
    layer: Annotated[int, pydantic.Field(ge=-1, le=10_000)] = pydantic.Field(
        -1, description="from 0; -1: the last"
    )
    head: Number = 0
    row: Number = 0


def follow(asked: FollowRequest, workspace: Workspace) -> dict[str, Any]:
    """The stages of one query, with the numbers of the keys it heeds most."""
    from heedful.inspect.maps import heads_of, parts_of, weight_addresses
    from heedful.inspect.steps import attention_steps

    subject, reading = read_text(asked, workspace)
    part: Any = asked.part or parts_of(subject.model)[-1]
    layers = len(weight_addresses(subject.model, part))
    layer = layers - 1 if asked.layer < 0 else asked.layer
    found = attention_steps(subject, reading, part, layer=layer, head=asked.head, row=asked.row)
    return {
        "target": reading.target,
        "parts": list(parts_of(subject.model)),
        "part": part,
        "layer": layer,
        "layers": layers,
        "heads": heads_of(subject.model, part),
        "row": found.row,
        "rows": list(found.rows),
        "columns": list(found.columns),
        **_stages(found),
    }


def _stages(found: AttentionSteps) -> dict[str, Any]:
    import numpy as np

    # The most weight first; among equals, such as hidden keys, in the order of the text.
    shown = np.sort(np.argsort(-found.weights, kind="stable")[:MOST_KEYS])
    others = np.setdiff1d(np.arange(len(found.weights)), shown)
    answered = np.sort(np.argsort(-np.abs(found.context), kind="stable")[:ANSWERED])
    length = np.linalg.norm
    keys = [_key(found, int(key)) for key in shown]
    for key in keys:
        key["values"] = _plain(found.values[key["key"], answered])
        key["parts"] = _plain(found.parts[key["key"], answered])
    return {
        "address": found.address,
        "width": len(found.query),
        "rotary": found.rotary,
        "factor": found.factor,
        "softcap": found.softcap,
        "biased": found.bias is not None,
        "mask": found.mask,
        "hidden": int((~found.visible).sum()),
        "query_length": float(length(found.query)),
        "keys": keys,
        "sum": float(found.powers.sum()),
        "weights": _plain(found.weights),
        "others": {
            "count": len(others),
            "weight": float(found.weights[others].sum()),
            "parts": _plain(found.parts[others][:, answered].sum(0)),
        },
        "channels": answered.tolist(),
        "context": _plain(found.context[answered]),
    }


def _key(found: AttentionSteps, key: int) -> dict[str, Any]:
    """The numbers of one key; those after the mask are None where it hides the key."""
    import numpy as np

    products = found.products[key]
    leading = np.argsort(-np.abs(products), kind="stable")[:LEADING]
    query, own = found.query, found.keys[key]
    lengths = float(np.linalg.norm(query) * np.linalg.norm(own))
    seen = bool(found.visible[key])
    return {
        "key": key,
        "length": float(np.linalg.norm(own)),
        "cosine": float(query @ own) / lengths if lengths else 0.0,
        "value_length": float(np.linalg.norm(found.values[key])),
        "leading": [[int(channel), float(products[channel])] for channel in leading],
        "rest": float(np.delete(products, leading).sum()),
        "raw": float(found.raw[key]),
        "scaled": float(found.scaled[key]),
        "bias": None if found.bias is None else float(found.bias[key]),
        "score": float(found.scores[key]) if seen else None,
        "power": float(found.powers[key]) if seen else None,
        "weight": float(found.weights[key]),
    }


def _plain(numbers: np.ndarray) -> list[float]:
    return [float(number) for number in numbers]
