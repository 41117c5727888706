"""Page "Attention": attention between words in a layer of a model, head by head."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from heedful.apps.studio.head_labels import labels  # noqa: F401, a call of this page
from heedful.apps.studio.page import (
    AttentionViewRequest,
    QueryRequest,
    StackName,
    TextRequest,
    attention_of,
    attentions_of,
    call,
    layer_of,
    mixer_kinds,
    read_text,
)
from heedful.apps.studio.token_influence import influence  # noqa: F401, another call
from heedful.apps.studio.workspace import Workspace
from heedful.inspect.attention_maps import (
    attention_steps,
    attentions,
    choose,
    num_heads,
    parts_of,
    rows_and_columns,
)
from heedful.inspect.readings import StackTokens
from heedful.search.alignment import token_words
from heedful.text.tokenizer import TextTokenizer

MOST_WEIGHTS = 1 << 22
"""Maximum number of weights in an answer: 16 MiB, as for a layer with 64 heads and 256 tokens."""

Indices = Annotated[tuple[Annotated[int, Field(ge=0, le=10_000)], ...], Field(max_length=1000)]


class ShowAttentionRequest(AttentionViewRequest):
    """A text, and the attention to show."""

    heads: Indices | None = Field(
        None, description="indices of heads, from 0; as many as fit in an answer if unset"
    )


@call(ShowAttentionRequest)
def show(request: ShowAttentionRequest, workspace: Workspace) -> dict[str, Any]:
    """Return weights of a layer's heads with the tokens, and the kinds of attention.

    For a model without attention, return only its mixers.
    """
    subject, reading = read_text(request, workspace)
    parts = {part: attentions(subject.model, part) for part in parts_of(subject.model)}
    answer = {
        "kind": subject.model.spec.kind,
        "target": reading.target,
        "parts": [
            {"part": name, "blocks": [*map(layer_of, layers)], "heads": num_heads(layers)}
            for name, layers in parts.items()
        ],
        "mixers": mixer_kinds(subject.model.spec.stacks().values()),
    }
    if not parts:
        return answer
    part, modules, layer = attentions_of(subject, request.part, request.layer)
    rows, columns = rows_and_columns(reading, part)
    heads: Sequence[int] | None = request.heads
    if heads is None:
        most = max(1, MOST_WEIGHTS // (len(rows) * len(columns)))
        heads = range(min(most, num_heads(modules)))
    heads = choose(heads, num_heads(modules), "head")
    weights = attention_of(request, workspace, part, layer)
    return answer | {
        "part": part,
        "layer": layer,
        "address": [*modules][layer],
        "heads": list(heads),
        "rows": _plain(subject.source if part == "encoder" else subject.target, rows),
        "columns": _plain(subject.target if part == "decoder" else subject.source, columns),
        "weights": encode_array(weights[list(heads)]),
    }


MOST_THUMBNAIL = 48
"""Maximum number of rows and columns of a thumbnail; weights of longer texts are averaged."""


class OverviewRequest(TextRequest):
    """A text, and the kind of attention whose heads are shown."""

    part: StackName = ""


@call(OverviewRequest)
def overview(request: OverviewRequest, workspace: Workspace) -> dict[str, Any]:
    """Return a thumbnail of every head of a part, with weights from 0 to 255."""
    subject, _ = read_text(request, workspace)
    part, modules, _ = attentions_of(subject, request.part)
    weights = np.stack(
        [_shrunk(attention_of(request, workspace, part, layer)) for layer in range(len(modules))]
    )
    shades = np.rint(255 * weights).astype(np.uint8)
    return {
        "part": part,
        "shape": list(shades.shape),
        "shades": base64.b64encode(shades.tobytes()).decode("ascii"),
    }


def _shrunk(weights: np.ndarray) -> np.ndarray:
    """Average weights [H, Lq, Lk] to at most `MOST_THUMBNAIL` rows and columns."""
    for axis in (1, 2):
        length = weights.shape[axis]
        if length > MOST_THUMBNAIL:
            starts = np.arange(MOST_THUMBNAIL) * length // MOST_THUMBNAIL
            sizes = np.diff([*starts, length]).reshape([-1 if i == axis else 1 for i in range(3)])
            weights = np.add.reduceat(weights, starts, axis) / sizes
    return weights


MOST_KEYS = 24
"""Number of keys in the neuron view; they have the largest weights."""


@call(QueryRequest)
def neurons(request: QueryRequest, workspace: Workspace) -> dict[str, Any]:
    """Return a query, the keys with the largest weights, and their products by channel."""
    subject, reading = read_text(request, workspace)
    part, _, layer = attentions_of(subject, request.part, request.layer)
    steps = attention_steps(subject, reading, part, layer=layer, head=request.head, row=request.row)
    shown = np.sort(np.argsort(-steps.weights, kind="stable")[:MOST_KEYS])
    return {
        "word": steps.rows[steps.row],
        "left_out": len(steps.weights) - len(shown),
        "factor": steps.factor,
        "query": steps.query.tolist(),
        "keys": [
            {
                "piece": steps.columns[key],
                "visible": bool(steps.visible[key]),
                "key": steps.keys[key].tolist(),
                "products": steps.products[key].tolist(),
                "score": float(steps.scores[key]) if steps.visible[key] else None,
                "weight": float(steps.weights[key]),
                "value": steps.values[key].tolist(),
            }
            for key in shown.tolist()
        ],
        "context": steps.context.tolist(),
    }


def encode_array(weights: np.ndarray) -> dict[str, Any]:
    """Encode an array as its shape and its little-endian float32 elements in base64."""
    data = np.ascontiguousarray(weights, dtype="<f4").tobytes()
    return {"shape": list(weights.shape), "float32": base64.b64encode(data).decode("ascii")}


def _plain(tokenizer: TextTokenizer, tokens: StackTokens) -> dict[str, Any]:
    return {
        "pieces": list(tokens.pieces),
        "special": list(tokens.special),
        "words": word_numbers(tokenizer, tokens),
    }


def word_numbers(tokenizer: TextTokenizer, tokens: StackTokens) -> list[int]:
    """Return the index of each token's word, from 0; a special token counts as a word."""
    numbers: list[int] = []
    alone = [
        special or id == tokenizer.mask
        for id, special in zip(tokens.ids, tokens.special, strict=True)
    ]
    start = 0
    while start < len(tokens):
        stop = start + 1
        while not alone[start] and stop < len(tokens) and not alone[stop]:
            stop += 1
        next_word = numbers[-1] + 1 if numbers else 0
        own = [0] if alone[start] else token_words(tokenizer, tokens.ids[start:stop], "")[1]
        # Tokens without a character, such as a part of a character's bytes, have no word.
        numbers += [next_word + each for each in own or range(stop - start)]
        start = stop
    return numbers
