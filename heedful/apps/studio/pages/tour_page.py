"""Page "Tour": one drawing from the text of a sentence to the predicted word."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from heedful.apps.studio.model_figure import figure  # noqa: F401, a call of this page
from heedful.apps.studio.page import PromptRequest, call, check_length, round_digits, subject_of
from heedful.apps.studio.walkthrough import HiddenToken, TextPass, open_layers, pass_text
from heedful.apps.studio.workspace import Workspace
from heedful.errors import DataError
from heedful.inspect.subject import stack_of
from heedful.pipelines.encoder_input import MASK

LONGEST = 300
"""Maximum number of characters of a text, since the drawing has a column for each token."""
MOST_PIECES = 20
SHOWN_CHANNELS = 12
"""Number of drawn channels of a vector; the drawing states the full number."""
SHOWN_INNER = 48
"""Number of drawn neurons of the feed-forward network; they have the largest activations."""
CANDIDATES = 10
MOST_CHOSEN = 64


class WalkRequest(PromptRequest):
    """A text, the output tokens so far, and the head to open."""

    chosen: Annotated[tuple[int, ...], Field(max_length=MOST_CHOSEN)] = ()
    layer: Annotated[int, Field(ge=-1, le=10_000)] = Field(
        -1, description="index of the layer, from 0; -1 is the first that can be opened"
    )
    head: Annotated[int, Field(ge=0, le=10_000)] = 0


@call(WalkRequest)
def walk(request: WalkRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the tensors of each stop of the tour."""
    check_length(request.text, LONGEST, where="text")
    subject = subject_of(request.model, workspace)
    text = request.text if subject.model.spec.generates else hide_a_word(request.text)
    version = workspace.place(request.model).load().version
    key = ("tour", request.model, version, text, request.chosen)
    passed = workspace.recent.get(key, lambda: pass_text(subject, text, request.chosen))
    way = passed.open(request.layer, request.head)
    tokens = passed.next.reading.tokens(passed.stack)
    if len(tokens) > MOST_PIECES:
        raise DataError(
            f"The text has {len(tokens)} tokens, more than the tour can show: {MOST_PIECES}",
            where="text",
            remedy="Shorten it; the page Attention shows longer texts",
        )
    embedding = passed.tensors[f"{passed.stack}.embedding"]
    token_vectors, position_vectors = passed.summands()
    vectors = ("query", "key", "value", "context")
    outputs = ("attention_output", "feedforward_output", "output")
    layers = len(stack_of(subject.model, passed.stack).blocks)
    return {
        "text": text,
        "stack": passed.stack,
        "pieces": list(tokens.pieces),
        "special": list(tokens.special),
        "ids": list(tokens.ids),
        "vocabulary": len(passed.next.names),
        "width": int(embedding.shape[1]),
        "tokens": _first(token_vectors),
        "positions": _first(position_vectors),
        "embedding": _first(embedding),
        "layer": way.layer,
        "layers": layers,
        "after": [_first(passed.tensors[f"{passed.stack}.{i}.output"]) for i in range(layers)],
        "can_open": open_layers(subject, passed.stack),
        "head": way.head,
        "heads": way.attention.num_heads,
        "head_width": int(way.tensors["query"].shape[1]),
        "factor": way.attention.scale,
        "scores": _finite(way.tensors["scores"]),
        "weights": round_digits(way.tensors["weights"]),
        **{name: _first(way.tensors[name]) for name in (*vectors, *outputs)},
        **_feedforward(way.tensors["inner"]),
        **_written(passed, request),
    }


def hide_a_word(text: str) -> str:
    """Return a text with a masked word; if none is masked, mask the last word."""
    words = list(re.finditer(r"\w+(?:['’]\w+)*", text))
    if MASK in text or not words:
        return text
    return text[: words[-1].start()] + MASK + text[words[-1].end() :]


def _written(passed: TextPass, request: WalkRequest) -> dict[str, Any]:
    """Return the text so far, the attention to the source, and candidates for the next token."""
    step = passed.next
    best = step.scores.argsort(kind="stable")[::-1][:CANDIDATES].tolist()
    end = None if isinstance(step, HiddenToken) else step.end
    if isinstance(step, HiddenToken):
        facts = {"predicts": "hidden", "from": step.row, "written": "", "read": [], "ended": False}
    else:
        facts = {
            "predicts": "next",
            "from": len(step.reading.tokens(passed.stack)) - 1,
            "written": step.text,
            "read": list(step.reading.tokens("decoder").pieces),
            "ended": step.ended,
        }
    cross = None
    if passed.cross is not None:
        layer, weights = passed.cross
        back = None if passed.back is None else round_digits(passed.back.mean(0))
        cross = {
            "layer": layer,
            "weights": round_digits(weights.mean(0)),
            "back": back,
            "stream": {
                name: round_digits(vector[:SHOWN_CHANNELS])
                for name, vector in passed.stream.items()
            },
        }
    return {
        **facts,
        "cross": cross,
        "candidates": [
            {
                "id": token,
                "piece": step.names[token],
                "word": passed.subject.target.decode([token]).strip() if token != end else "",
                "logit": float(step.logits[token]),
                "probability": math.exp(step.scores[token]),
                "end": token == end,
            }
            for token in best
            if step.scores[token] > -math.inf
        ],
        "others": max(0.0, 1 - float(sum(math.exp(step.scores[token]) for token in best))),
    }


def _feedforward(inner: np.ndarray | None) -> dict[str, Any]:
    """Return the strongest neurons of each token, and the share of nonzero neurons."""
    if inner is None:
        return {"inner": None, "inner_width": 0, "active": None}
    order = np.argsort(-np.abs(inner).max(0), kind="stable")[:SHOWN_INNER]
    return {
        "inner": round_digits(inner[:, np.sort(order)]),
        "inner_width": int(inner.shape[1]),
        "active": (np.abs(inner) > 1e-6).mean(1).tolist(),
    }


def _first(values: np.ndarray | None) -> Any:
    """Return the first channels of vectors [L, D]."""
    return None if values is None else round_digits(values[:, :SHOWN_CHANNELS])


def _finite(scores: np.ndarray) -> list[list[float | None]]:
    """Return scores with None where a key is hidden."""
    return [
        [round(float(value), 5) if math.isfinite(value) else None for value in row]
        for row in scores
    ]
