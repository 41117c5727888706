"""Page "Positions": position encodings and biases of a model."""

from __future__ import annotations

import math
import random
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from heedful.apps.studio.page import NoSettings, call, round_digits
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config
from heedful.errors import DataError, ModelError, suggest
from heedful.nn.attention.attend import attend
from heedful.nn.attention.relative_positions import Alibi, RelativeKeys, T5Bias
from heedful.nn.positions import LearnedPositions, Positions, Rotary, SinusoidalPositions
from heedful.nn.rotary_frequencies import frequencies
from heedful.nn.spec import RotarySpec, T5BiasSpec

Scheme = Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "relative"]
_COLUMNS = 160
"""Maximum number of positions in a chart of a long sequence; beyond it some are left out."""

_MOST_WORDS, _CHANNELS = 8, 24
LATER = 20
"""Positions by which words are moved to show what a scheme says of a place, not of a distance."""


class ShowPositionsRequest(Config):
    """A scheme of positions and its settings; settings of other schemes are ignored."""

    scheme: Scheme = "sinusoidal"
    width: Annotated[int, Field(ge=2, le=512, multiple_of=2)] = 64
    length: Annotated[int, Field(ge=4, le=256)] = 64
    scaling: Literal["none", "linear", "ntk", "yarn"] = "none"
    factor: Annotated[float, Field(ge=1, le=16)] = 4.0
    heads: Annotated[int, Field(ge=1, le=16)] = 8
    buckets: Annotated[int, Field(ge=4, le=64, multiple_of=2)] = 32
    max_distance: Annotated[int, Field(ge=8, le=256)] = 128
    trained: int = Field(64, ge=4, le=512, description="maximum length of training texts in tokens")
    model: str = ""
    table: str = ""


class BeyondRequest(ShowPositionsRequest):
    """A scheme, and the range of positions to show as a multiple of the trained length."""

    times: int = Field(4, ge=1, le=8, description="range to show, in trained lengths")


@call(ShowPositionsRequest)
def show(request: ShowPositionsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return a scheme as vectors (table, dot products by distance, projection) or as biases."""
    if request.scheme == "sinusoidal":
        table = SinusoidalPositions(request.width)(torch.arange(request.length)[None])[0]
        return _vectors(table)
    if request.scheme == "rotary":
        return _rotary(request)
    if request.scheme == "learned":
        module = _table(request, workspace)
        rows = module.weight.detach()[module.unused_rows :][: request.length]
        return _vectors(rows)
    return _biases(request, workspace)


@call()
def tables(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return the learned tables of all models."""
    return {
        "tables": [
            {"model": place.name, "table": name, "scheme": scheme}
            for place in workspace.places.values()
            if place.has_model
            for name, (scheme, _) in _tables(place.load().model).items()
        ]
    }


def _rotary(request: ShowPositionsRequest) -> dict[str, Any]:
    spec = _rotary_spec(request)
    # The same vector at every position, so that only rotations differ.
    vector = torch.zeros((1, 1, request.length, request.width))
    vector[..., 0::2] = (2 / request.width) ** 0.5
    rotated = Rotary(request.width, spec)(vector, torch.arange(request.length)[None])[0, 0]
    return _vectors(rotated)


def _rotary_spec(request: ShowPositionsRequest) -> RotarySpec:
    return RotarySpec(
        layout="pairs",
        scaling=request.scaling,
        factor=request.factor,
        original_length=request.trained,
        temperature=1.0,
    )


def _vectors(table: Tensor) -> dict[str, Any]:
    """Return a table [L, D], mean cosine and dot product by distance, and two main components."""
    table = table.double()
    length = len(table)
    products = table @ table.T
    norms = table.norm(dim=1).clamp(min=1e-12)
    cosines = products / norms[:, None] / norms[None]
    distances = range(-(length // 2), length // 2 + 1)
    centred = table - table.mean(0)
    _, values, directions = torch.linalg.svd(centred, full_matrices=False)
    shares = values.square() / values.square().sum().clamp(min=1e-30)
    return {
        "form": "vectors",
        "table": round_digits(table),
        "distances": list(distances),
        "product": [float(products.diagonal(k).mean()) for k in distances],
        "cosine": [float(cosines.diagonal(k).mean()) for k in distances],
        "projection": round_digits(centred @ directions[:2].T),
        "explained": round_digits(shares[:2]),
    }


def _biases(request: ShowPositionsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the bias that each head adds to a score, by distance from query to key."""
    half = request.length // 2
    keys = torch.arange(2 * half + 1)
    positions = Positions(torch.tensor([[half]]), keys[None])
    nothing = torch.zeros((1, 1, 1, 1))
    bucket: list[int] | None = None
    bias: Any
    if request.scheme == "alibi":
        bias = Alibi(request.heads)
    elif request.scheme == "relative":
        # A bias that is a dot product of a query with a vector per distance shows the index of each
        # vector.
        bias = _numbered(RelativeKeys(1, request.max_distance))
        bucket = bias(torch.ones((1, 1, 1, 1)), nothing, positions)[0, 0, 0].int().tolist()
    else:
        if request.model:
            bias = _table(request, workspace)
        else:
            spec = T5BiasSpec(num_buckets=request.buckets, max_distance=request.max_distance)
            bias = T5Bias(1, spec.num_buckets, spec.max_distance, spec.bidirectional)
        numbering = _numbered(T5Bias(1, bias.num_buckets, bias.max_distance, bias.bidirectional))
        bucket = numbering(nothing, nothing, positions)[0, 0, 0].int().tolist()
    with torch.inference_mode():
        added = bias(nothing, nothing, positions)[0, :, 0]
    return {
        "form": "biases",
        "distances": (keys - half).tolist(),
        "added": round_digits(added) if request.scheme == "alibi" or request.model else None,
        "buckets": bucket,
    }


def _numbered(bias: Any) -> Any:
    """Return a bias whose learned rows hold their indices, to find the row of each distance."""
    with torch.no_grad():
        bias.weight.copy_(torch.arange(len(bias.weight), dtype=torch.float32)[:, None])
    return bias.requires_grad_(False)


class ShuffledRequest(Config):
    """Words, the same words in another order, and the scheme that gives their positions."""

    text: Annotated[str, Field(max_length=200)] = "dog bites man"
    order: Literal["reversed", "shuffled"] = "reversed"
    scheme: Scheme = "sinusoidal"


@call(ShuffledRequest)
def shuffled(request: ShuffledRequest, workspace: Workspace) -> dict[str, Any]:
    """Return what self-attention makes of words in two orders, without and with positions.

    With positions, the words in the first order also stand farther back in a text. The layer and
    what a scheme learns have random weights: what they show holds for all weights.
    """
    words = request.text.split()
    if not 2 <= len(words) <= _MOST_WORDS:
        raise DataError(
            f"Two to {_MOST_WORDS} words can be shuffled; there are {len(words)}",
            where="text",
            remedy="Type as many, with spaces between them",
        )
    order = list(range(len(words)))[::-1]
    if request.order == "shuffled":
        order = random.Random(len(words)).sample(order, len(words))
    index = {word: i for i, word in enumerate(dict.fromkeys(words))}
    weights = torch.Generator().manual_seed(1)
    # One vector a word, so that a word that comes twice has the same.
    vectors = torch.randn((len(index), _CHANNELS), generator=weights)
    maps = torch.randn((3, _CHANNELS, _CHANNELS), generator=weights) / _CHANNELS**0.5
    first = vectors[[index[word] for word in words]]
    modules = _random_scheme(request.scheme)
    before = torch.arange(len(words))
    identity = list(range(len(words)))
    outputs = [
        _attended(first, maps, before, {}),
        _attended(first[order], maps, before, {}),
        _attended(first, maps, before, modules),
        _attended(first[order], maps, before, modules),
        _attended(first, maps, before + LATER, modules),
    ]
    found: dict[str, Any] = {}
    for name, a, b, shown in (
        ("without", 0, 1, order),
        ("with", 2, 3, order),
        ("later", 2, 4, identity),
    ):
        back = outputs[b][[shown.index(i) for i in identity]]
        found[name] = {
            "first": round_digits(outputs[a]),
            "second": round_digits(outputs[b]),
            "difference": float((outputs[a] - back).abs().max()),
        }
    return {"words": words, "order": order, "later_by": LATER, **found}


def _random_scheme(scheme: Scheme) -> dict[str, Any]:
    """Return the modules of a scheme, `added`, `rotary` or `biases`, and its number of heads."""
    weights = torch.Generator().manual_seed(2)
    module: Any
    if scheme == "sinusoidal":
        return {"added": SinusoidalPositions(_CHANNELS)}
    if scheme == "rotary":
        return {"rotary": Rotary(_CHANNELS, RotarySpec())}
    if scheme == "alibi":
        # The first of eight heads has the steepest slope; that of one is flat.
        return {"biases": (Alibi(8),), "heads": 8}
    if scheme == "learned":
        module = LearnedPositions(_CHANNELS, LATER + _MOST_WORDS)
    elif scheme == "t5":
        spec = T5BiasSpec()
        module = T5Bias(1, spec.num_buckets, spec.max_distance, spec.bidirectional)
    else:
        module = RelativeKeys(_CHANNELS, _MOST_WORDS)
    with torch.no_grad():
        module.weight.copy_(torch.randn(module.weight.shape, generator=weights))
    module.requires_grad_(False)
    return {"added": module} if scheme == "learned" else {"biases": (module,)}


def _attended(vectors: Tensor, maps: Tensor, places: Tensor, modules: dict[str, Any]) -> Tensor:
    """Return the output of the first head of self-attention.

    Args:
        vectors: [L, D] words.
        maps: [3, D, D] of query, key and value.
        places: [L] positions of the words.
        modules: those of `_random_scheme`; empty without positions.
    """
    if "added" in modules:
        vectors = vectors + modules["added"](places[None])[0]
    query, key, value = ((vectors @ each)[None, None] for each in maps)
    if "rotary" in modules:
        query, key = (modules["rotary"](each, places[None]) for each in (query, key))
    # All heads read the same: they differ by their biases alone.
    query, key, value = (x.expand(-1, modules.get("heads", 1), -1, -1) for x in (query, key, value))
    positions = Positions(places[None], places[None])
    return attend(query, key, value, positions, biases=modules.get("biases", ()))[0, 0]


@call(BeyondRequest)
def beyond(request: BeyondRequest, workspace: Workspace) -> dict[str, Any]:
    """Return a scheme for texts longer than in training, and the values that training never shows.

    In training, a pair of channels that rotates by a fixed angle per position has seen the angles
    up to that of the last position, or all angles after a full turn.
    """
    if request.scheme in ("sinusoidal", "rotary"):
        return _angles(request)
    if request.scheme == "learned":
        return _rows(request, workspace)
    far = request.model_copy(update={"length": 2 * request.times * request.trained})
    found = _biases(far, workspace)
    back = slice(len(found["distances"]) // 2, None, -1)  # distances from the query backwards
    rows = found["buckets"] and found["buckets"][back]
    seen = None if rows is None else set(rows[: request.trained])
    return {
        "form": "biases",
        "trained": request.trained,
        "distances": list(range(request.times * request.trained + 1)),
        "added": found["added"] and [head[back] for head in found["added"]],
        "buckets": rows,
        "unseen": None if rows is None or seen is None else sum(row not in seen for row in rows),
    }


def _angles(request: BeyondRequest) -> dict[str, Any]:
    plain = frequencies(RotarySpec(), request.width)  # a sinusoid has the same angles
    used = plain
    if request.scheme == "rotary":
        used = frequencies(_rotary_spec(request), request.width)
    last = request.times * request.trained
    step = max(1, math.ceil(last / _COLUMNS))
    places = list(range(0, last + 1, step))
    reach = None
    # NTK's factor slows the slowest pair alone: no position is where all of it ends.
    if request.scheme == "rotary" and request.scaling not in ("none", "ntk"):
        reach = math.floor(request.factor * (request.trained - 1))
    full = 2 * math.pi
    # The largest angle in training; after a full turn all angles have been seen.
    shown = [f * (request.trained - 1) for f in plain]
    new = [
        [seen < full and place * f % full > seen + 1e-9 for place in places]
        for f, seen in zip(used, shown, strict=True)
    ]
    return {
        "form": "angles",
        "trained": request.trained,
        "reach": reach,
        "step": step,
        "places": places,
        "cosines": [[_mean_cosine(place, step, f) for place in places] for f in used],
        "new": new,
        "share": [sum(pair[i] for pair in new) / len(new) for i in range(len(places))],
        "wavelengths": [full / f for f in used],
    }


def _mean_cosine(place: int, step: int, frequency: float) -> float:
    """Return the mean cosine of the positions of a column: one of them would draw false waves."""
    angles = [(place + k) * frequency for k in range(step)]
    return round(sum(map(math.cos, angles)) / step, 4)


def _rows(request: BeyondRequest, workspace: Workspace) -> dict[str, Any]:
    trained = request.trained
    if request.model:
        trained = _table(request, workspace).max_length
    table = LearnedPositions(1, trained)
    said = ""
    try:
        table(torch.tensor([[trained]]))
    except ModelError as error:
        said = str(error)
    return {
        "form": "rows",
        "trained": trained,
        "last": request.times * trained,
        "said": said,
    }


def _tables(model: nn.Module) -> dict[str, tuple[Scheme, Any]]:
    """Return learned positions and T5 biases by module name, shared ones once."""
    schemes: dict[type[nn.Module], Scheme] = {LearnedPositions: "learned", T5Bias: "t5"}
    return {
        name: (schemes[type(module)], module)
        for name, module in model.named_modules()
        if type(module) in schemes
    }


def _table(request: ShowPositionsRequest, workspace: Workspace) -> Any:
    tables = _tables(workspace.place(request.model).load().model)
    scheme, module = tables.get(request.table, (None, None))
    if scheme != request.scheme:
        raise ModelError(
            f"The model has no table of positions called {request.table!r}",
            where=request.model,
            remedy=suggest(request.table, tables) or "Its positions are not learned",
        )
    return module
