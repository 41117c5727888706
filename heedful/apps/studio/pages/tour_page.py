"""Page "Tour": one drawing from the text of a sentence to the predicted word."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.apps.studio.page import Call, Page, check_length, round_digits, subject_of
from heedful.config import Config
from heedful.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from heedful.apps.studio.walkthrough import Walkthrough
    from heedful.apps.studio.workspace import Workspace
    from heedful.inspect.subject import Subject

LONGEST = 300
"""Most characters of a text: the drawing has a column for each token."""
MOST_PIECES = 20
SHOWN_CHANNELS = 32
"""Channels of a vector that are drawn; the drawing gives the full number."""
SHOWN_INNER = 64
"""Neurons of the feed-forward network that are drawn, those with the largest activations."""
CANDIDATES = 10
MOST_CHOSEN = 64


class WalkRequest(Config):
    """A text, the output tokens so far, and the head to open."""

    model: str
    text: str
    chosen: Annotated[tuple[int, ...], Field(max_length=MOST_CHOSEN)] = ()
    layer: Annotated[int, Field(ge=-1, le=10_000)] = Field(
        -1, description="index of the layer, from 0; -1 is the first that can be opened"
    )
    head: Annotated[int, Field(ge=0, le=10_000)] = 0


def walk(request: WalkRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the tensors of each stop of the tour."""
    from heedful.apps.studio.walkthrough import pass_text

    check_length(request.text, LONGEST, where="text")
    subject = subject_of(request.model, workspace)
    text = request.text if subject.model.spec.generates else hide_a_word(request.text)
    version = workspace.place(request.model).load().version
    key = ("tour", request.model, version, text, request.chosen)
    passed = workspace.recent.get(key, lambda: pass_text(subject, text, request.chosen))
    way = passed.open(request.layer, request.head)
    if len(way.tokens) > MOST_PIECES:
        raise DataError(
            f"The text has {len(way.tokens)} tokens, more than the tour can show: {MOST_PIECES}",
            where="text",
            remedy="Shorten it; the page Attention shows longer texts",
        )
    return {
        "text": text,
        "stack": way.stack,
        "pieces": list(way.tokens.pieces),
        "special": list(way.tokens.special),
        "ids": list(way.tokens.ids),
        "vocabulary": len(way.next.names),
        "width": int(way.embedding.shape[1]),
        "tokens": _first(way.token_vectors),
        "positions": _first(way.position_vectors),
        "embedding": _first(way.embedding),
        "layer": way.layer,
        "layers": way.layers,
        "can_open": way.can_open,
        "head": way.head,
        "heads": way.heads,
        "head_width": int(way.query.shape[1]),
        **{name: _first(getattr(way, name)) for name in ("query", "key", "value", "context")},
        "factor": way.factor,
        "scores": _finite(way.scores),
        "weights": round_digits(_tensor(way.weights)),
        "attention_output": _first(way.attention_output),
        **_feedforward(way),
        "feedforward_output": _first(way.feedforward_output),
        "output": _first(way.output),
        **_written(subject, way, request),
    }


def hide_a_word(text: str) -> str:
    """Return a text with a masked word; if none is masked, mask the last word."""
    from heedful.pipelines.text_encoding import MASK

    words = list(re.finditer(r"\w+(?:['’]\w+)*", text))
    if MASK in text or not words:
        return text
    return text[: words[-1].start()] + MASK + text[words[-1].end() :]


def _written(subject: Subject, way: Walkthrough, request: WalkRequest) -> dict[str, Any]:
    """Return the text so far, the attention to the source, and the candidates for the next word."""
    from heedful.apps.studio.walkthrough import HiddenToken

    step = way.next
    best = step.scores.argsort(kind="stable")[::-1][:CANDIDATES].tolist()
    end = None if isinstance(step, HiddenToken) else step.end
    if isinstance(step, HiddenToken):
        facts = {"predicts": "hidden", "from": step.row, "written": "", "read": [], "ended": False}
    else:
        facts = {
            "predicts": "next",
            "from": len(way.tokens) - 1,
            "written": step.text,
            "read": list(step.reading.tokens("decoder").pieces),
            "ended": step.ended,
        }
    cross = None
    if way.cross is not None:
        mean = way.cross.weights.mean(0)
        cross = {"layer": way.cross.layer, "weights": round_digits(_tensor(mean))}
    return {
        **facts,
        "cross": cross,
        "candidates": [
            {
                "id": token,
                "piece": step.names[token],
                "word": subject.target.decode([token]).strip() if token != end else "",
                "logit": float(step.logits[token]),
                "probability": math.exp(step.scores[token]),
                "end": token == end,
            }
            for token in best
            if step.scores[token] > -math.inf
        ],
        "others": max(0.0, 1 - float(sum(math.exp(step.scores[token]) for token in best))),
    }


def _feedforward(way: Walkthrough) -> dict[str, Any]:
    """Return the strongest neurons of each token, and the share of nonzero ones."""
    if way.inner is None:
        return {"inner": None, "inner_width": 0, "active": None}
    import numpy as np

    order = np.argsort(-np.abs(way.inner).max(0), kind="stable")[:SHOWN_INNER]
    return {
        "inner": round_digits(_tensor(way.inner[:, np.sort(order)])),
        "inner_width": int(way.inner.shape[1]),
        "active": (np.abs(way.inner) > 1e-6).mean(1).tolist(),
    }


def _tensor(values: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(values)


def _first(values: np.ndarray | None) -> Any:
    """Return the first channels of vectors [L, D]."""
    return None if values is None else round_digits(_tensor(values[:, :SHOWN_CHANNELS]))


def _finite(scores: np.ndarray) -> list[list[float | None]]:
    """Return scores with None where a key is hidden."""
    return [
        [round(float(value), 5) if math.isfinite(value) else None for value in row]
        for row in scores
    ]


PAGE = Page(
    name="tour",
    title="The tour",
    summary="One sentence from its text to the next word.",
    about=(
        "Follow one sentence through a model, stop by stop. Every colour is a number that the "
        "model computed for your sentence."
    ),
    calls={"walk": Call(WalkRequest, walk)},
)
