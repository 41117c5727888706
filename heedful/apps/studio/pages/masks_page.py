"""Page "Masks and biases": the keys that each query may see, and biases by distance.

A mask has the syntax of the setting `model.mask` (`heedful.nn.mask_text`), so all masks of training
can be drawn. The scores are those of a head of a language model at hand, which reads one sentence.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator

from heedful.apps.studio.page import NoSettings, attentions_of, call, round_digits, subject_of
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config
from heedful.inspect.readings import read, tensors
from heedful.inspect.subject import capture
from heedful.nn.attention.attend import attention_weights, make_request
from heedful.nn.attention.relative_positions import Bias
from heedful.nn.mask_text import LONGEST, mask_kinds, parse_mask
from heedful.nn.mixer import build_bias
from heedful.nn.positions import NOTHING_HERE, Positions
from heedful.nn.spec import AlibiSpec, AttentionSpec, BiasSpec, RelativeKeysSpec, T5BiasSpec

HEAD_WIDTH = 16
_SEED = 1

SENTENCE = "The cat sat on the mat because it was tired and the sun was so warm"
MODEL, LAYER, HEAD = "english", 3, 1
"""A language model, and the indices of a head in which "it" of `SENTENCE` looks at "cat"."""


class DrawRequest(Config):
    """A mask, a bias, and the tokens for which to draw them."""

    mask: Annotated[str, Field(max_length=4 * LONGEST)] = "causal"
    length: Annotated[int, Field(ge=2, le=64)] = 17
    padding: Annotated[int, Field(ge=0)] = 0
    segments: Annotated[int, Field(ge=1, le=8)] = 1
    bias: Literal["none", "alibi", "t5", "relative_keys"] = "none"
    heads: Annotated[int, Field(ge=1, le=16)] = 8
    head: Annotated[int, Field(ge=1, le=16)] = 1
    max_distance: Annotated[int, Field(ge=1, le=64)] = 16

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.padding >= self.length:
            raise ValueError(f"padding {self.padding} leaves nothing of {self.length} tokens")
        if self.head > self.heads:
            raise ValueError(f"there is no head {self.head} of {self.heads}")
        return self


@call(DrawRequest)
def draw(request: DrawRequest, workspace: Workspace) -> dict[str, Any]:
    """Return visible pairs, the bias, and the attention weights for dot products of 0."""
    mask = parse_mask(request.mask)
    positions = _positions(request)
    bias = _bias(request)
    source = torch.Generator().manual_seed(_SEED)
    query = torch.randn((1, request.heads, request.length, HEAD_WIDTH), generator=source)
    zeros = torch.zeros_like(query)  # with keys of zeros every raw score is 0
    visible = positions.visible(mask)[0, 0]
    head = request.head - 1
    with torch.inference_mode():
        inputs = make_request(query, zeros, zeros, positions, mask, [bias] if bias else [])
        weights = attention_weights(inputs, heads=[head])[0, 0]
        added = None if bias is None else bias(query * inputs.scale, zeros, positions)[0, head]
    return {
        "visible": visible.int().tolist(),
        "seen": int(visible.sum()),
        "pairs": request.length**2,
        "sentence": f"A query sees {mask.describe()}.",
        "bounds": _stretches(visible[-1].tolist()),
        "weights": round_digits(weights),
        "added": None if added is None else round_digits(added),
        "positions": positions.query[0].tolist(),
        "segments": None
        if positions.query_segment is None
        else positions.query_segment[0].tolist(),
    }


def _stretches(row: list[bool]) -> list[list[int]]:
    """Return the first and last index of each run of true values."""
    edges = [i for i in range(len(row) + 1) if (i < len(row) and row[i]) != (i > 0 and row[i - 1])]
    return [[first, after - 1] for first, after in zip(edges[::2], edges[1::2], strict=True)]


@call()
def words(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return the masks by name, with their settings and descriptions."""
    return {
        "words": [
            {
                "name": name,
                "settings": kind.setting_names(),
                "about": (kind.__doc__ or "").splitlines()[0],
            }
            for name, kind in mask_kinds().items()
        ]
    }


@call(name="head")
def read_sentence(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return the tokens of `SENTENCE` and the scores of a head for all pairs; None without it.

    A causal model computes the same vectors with and without the words that follow, so the scores
    of a part of the sentence are a part of these.
    """
    place = workspace.places.get(MODEL)
    if place is None or not place.is_at_hand or place.kind() != "causal_lm":
        return {"words": ["start", *SENTENCE.split()], "model": None, "scores": None}
    subject = subject_of(MODEL, workspace)
    reading = read(subject, SENTENCE)
    address, sublayer = [*attentions_of(subject, "decoder")[1].items()][LAYER]
    addresses = [f"{address}.query", f"{address}.key"]
    found = capture(subject.model, tensors(subject, [reading]), addresses)
    query, key = (torch.from_numpy(found[each])[0, HEAD] for each in addresses)
    tokens = reading.tokens("decoder")
    words = [
        "start" if special else piece.strip("\u2581")
        for piece, special in zip(tokens.pieces, tokens.special, strict=True)
    ]
    return {
        "words": words,
        "model": MODEL,
        "layer": LAYER + 1,
        "head": HEAD + 1,
        "scores": round_digits(sublayer.module.scale * query @ key.mT),
        "products": round_digits(query @ key.mT),
        "width": query.shape[-1],
    }


def _positions(request: DrawRequest) -> Positions:
    """Return positions of packed sequences, each counted from 0, with padding at the end."""
    real = request.length - request.padding
    at = torch.full((1, request.length), NOTHING_HERE)
    if request.segments == 1:
        at[0, :real] = torch.arange(real)
        return Positions.of_self(at)
    segment = torch.full((1, request.length), NOTHING_HERE)
    for number, places in enumerate(torch.arange(real).tensor_split(request.segments)):
        at[0, places] = torch.arange(len(places))
        segment[0, places] = number
    return Positions.of_self(at, segment)


def _bias(request: DrawRequest) -> Bias | None:
    specs: dict[str, BiasSpec] = {
        "alibi": AlibiSpec(),
        "t5": T5BiasSpec(max_distance=max(request.max_distance, 9)),
        "relative_keys": RelativeKeysSpec(max_distance=request.max_distance),
    }
    if request.bias == "none":
        return None
    attention = AttentionSpec(num_heads=request.heads, head_width=HEAD_WIDTH)
    bias = build_bias(specs[request.bias], attention, request.heads * HEAD_WIDTH)
    with torch.no_grad():  # untrained tables hold zeros, which would draw nothing
        for parameter in bias.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(_SEED))
    return bias.eval()
