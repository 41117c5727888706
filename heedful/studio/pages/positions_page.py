"""Page "Positions": the ways to give a model the positions of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from heedful.config import Config
from heedful.errors import ModelError, suggest
from heedful.nn.spec import RotarySpec, T5BiasSpec
from heedful.studio.page import Call, NoSettings, Page, round_digits

if TYPE_CHECKING:
    from torch import Tensor, nn

    from heedful.studio.workspace import Workspace

Scheme = Literal["sinusoidal", "learned", "rotary", "alibi", "t5"]
_TRAINED_LENGTH = 64
"""The length of training that rotary scalings assume."""


class ShowRequest(Config):
    """A scheme and its settings; those of other schemes are not used."""

    scheme: Scheme = "sinusoidal"
    width: Annotated[int, Field(ge=2, le=512, multiple_of=2)] = 64
    length: Annotated[int, Field(ge=4, le=256)] = 64
    scaling: Literal["none", "linear", "ntk", "yarn"] = "none"
    factor: Annotated[float, Field(ge=1, le=16)] = 4.0
    heads: Annotated[int, Field(ge=1, le=16)] = 8
    buckets: Annotated[int, Field(ge=4, le=64, multiple_of=2)] = 32
    max_distance: Annotated[int, Field(ge=8, le=256)] = 128
    model: str = ""
    table: str = ""


def show(request: ShowRequest, workspace: Workspace) -> dict[str, Any]:
    """Return a scheme as vectors (table, products by distance, projection) or as biases."""
    if request.scheme == "sinusoidal":
        return _vectors(_sinusoidal(request), "Sines and cosines of the position, by formula.")
    if request.scheme == "rotary":
        return _rotary(request)
    if request.scheme == "learned":
        return _learned(request, workspace)
    return _biases(request, workspace)


def tables(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return the learned tables of the models at hand."""
    return {
        "tables": [
            {"model": place.name, "table": name, "scheme": scheme}
            for place in workspace.places.values()
            if place.has_model
            for name, (scheme, _) in _tables(place.load().model).items()
        ]
    }


def _sinusoidal(request: ShowRequest) -> Tensor:
    import torch

    from heedful.nn.positions import SinusoidalPositions

    table: Tensor = SinusoidalPositions(request.width)(torch.arange(request.length)[None])[0]
    return table


def _rotary(request: ShowRequest) -> dict[str, Any]:
    import torch

    from heedful.nn.attention.relative_positions import Rotary

    spec = RotarySpec(
        layout="pairs",
        scaling=request.scaling,
        factor=request.factor,
        original_length=_TRAINED_LENGTH,
        temperature=1.0,
    )
    # The same vector at every position, so that only the rotation differs.
    vector = torch.zeros((1, 1, request.length, request.width))
    vector[..., 0::2] = (2 / request.width) ** 0.5
    rotated = Rotary(request.width, spec)(vector, torch.arange(request.length)[None])[0, 0]
    return _vectors(
        rotated,
        "One vector of length 1, rotated by each position: the score of a query and a key that "
        "are the same vector depends on their distance alone.",
    )


def _learned(request: ShowRequest, workspace: Workspace) -> dict[str, Any]:
    module = _table(request, workspace)
    rows = module.weight.detach()[module.unused_rows :][: request.length]
    return _vectors(rows, f"{request.table} of {request.model}, as trained.")


def _vectors(table: Tensor, sentence: str) -> dict[str, Any]:
    """Return a table [L, D], mean cosine and product by distance, and its two main directions."""
    import torch

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
        "sentence": sentence,
        "table": round_digits(table),
        "distances": list(distances),
        "product": [float(products.diagonal(k).mean()) for k in distances],
        "cosine": [float(cosines.diagonal(k).mean()) for k in distances],
        "projection": round_digits(centred @ directions[:2].T),
        "explained": round_digits(shares[:2]),
    }


def _biases(request: ShowRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the number that each head adds to a score, by distance from query to key."""
    import torch

    from heedful.nn.attention.relative_positions import Alibi, T5Bias
    from heedful.nn.positions import Positions

    half = request.length // 2
    keys = torch.arange(2 * half + 1)
    positions = Positions(torch.tensor([[half]]), keys[None])
    bucket: list[int] | None = None
    bias: Any
    if request.scheme == "alibi":
        bias = Alibi(request.heads)
        sentence = "A penalty for distance with a slope for each head, fixed before training."
    else:
        if request.model:
            bias = _table(request, workspace)
            sentence = f"{request.table} of {request.model}, as trained."
        else:
            spec = T5BiasSpec(num_buckets=request.buckets, max_distance=request.max_distance)
            bias = T5Bias(1, spec.num_buckets, spec.max_distance, spec.bidirectional)
            sentence = (
                "Short distances have a bucket each, long ones share; training learns a number for "
                "each bucket and head. No model is chosen, so the picture shows the buckets."
            )
        numbering = T5Bias(1, bias.num_buckets, bias.max_distance, bias.bidirectional)
        with torch.no_grad():
            numbering.weight.copy_(torch.arange(bias.num_buckets, dtype=torch.float32)[:, None])
            bucket = numbering(torch.zeros(1), positions)[0, 0, 0].int().tolist()
    with torch.inference_mode():
        added = bias(torch.zeros((1, 1, 1, 1)), positions)[0, :, 0]
    return {
        "form": "biases",
        "sentence": sentence,
        "distances": (keys - half).tolist(),
        "added": None if request.scheme == "t5" and not request.model else round_digits(added),
        "buckets": bucket,
    }


def _tables(model: nn.Module) -> dict[str, tuple[Scheme, Any]]:
    """Return learned positions and T5 biases by the names of their modules; shared ones once."""
    from heedful.nn.attention.relative_positions import T5Bias
    from heedful.nn.positions import LearnedPositions

    schemes: dict[type[nn.Module], Scheme] = {LearnedPositions: "learned", T5Bias: "t5"}
    return {
        name: (schemes[type(module)], module)
        for name, module in model.named_modules()
        if type(module) in schemes
    }


def _table(request: ShowRequest, workspace: Workspace) -> Any:
    tables = _tables(workspace.place(request.model).load().model)
    scheme, module = tables.get(request.table, (None, None))
    if scheme != request.scheme:
        raise ModelError(
            f"The model has no table of positions called {request.table!r}",
            where=request.model,
            remedy=suggest(request.table, tables) or "Its positions are not learned",
        )
    return module


PAGE = Page(
    name="positions",
    title="Positions",
    summary="The ways to give a model the positions of tokens.",
    about=(
        "Attention by itself sees a set of tokens, not a sequence. It gets positions as a vector "
        "added to each token, as a rotation of queries and keys, or as a number added to the "
        "score of a pair. The curves show how similar two positions are, by their distance."
    ),
    calls={"show": Call(ShowRequest, show), "tables": Call(NoSettings, tables)},
)
