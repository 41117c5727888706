"""Page "Positions": how a model can tell where a token stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from heedful.config import Config
from heedful.errors import ModelError, suggest
from heedful.nn.spec import RotarySpec, T5BiasSpec
from heedful.studio.page import Call, Page

if TYPE_CHECKING:
    from torch import Tensor, nn

    from heedful.studio.workspace import Workspace

Scheme = Literal["sinusoidal", "learned", "rotary", "alibi", "t5"]
_TRAINED_LENGTH = 64
"""What rotary scalings take for the length a model was trained for."""


class ShowRequest(Config):
    """A scheme and its settings; those of other schemes are not looked at."""

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


class NoSettings(Config):
    """Nothing to ask for."""


def show(asked: ShowRequest, workspace: Workspace) -> dict[str, Any]:
    """A scheme as vectors (table, products by distance, projection) or as biases by distance."""
    if asked.scheme == "sinusoidal":
        return _vectors(_sinusoidal(asked), "The same waves at every position, by formula.")
    if asked.scheme == "rotary":
        return _rotary(asked)
    if asked.scheme == "learned":
        return _learned(asked, workspace)
    return _biases(asked, workspace)


def tables(asked: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """The learned tables of the models at hand."""
    found = []
    for place in workspace.places.values():
        if not place.has_model:
            continue
        for name, module in _tables(place.load().model).items():
            scheme = "t5" if type(module).__name__ == "T5Bias" else "learned"
            found.append({"model": place.name, "table": name, "scheme": scheme})
    return {"tables": found}


def _sinusoidal(asked: ShowRequest) -> Tensor:
    import torch

    from heedful.nn.positions import SinusoidalPositions

    waves: Tensor = SinusoidalPositions(asked.width)(torch.arange(asked.length)[None])[0]
    return waves


def _rotary(asked: ShowRequest) -> dict[str, Any]:
    import torch

    from heedful.nn.rotary import Rotary

    spec = RotarySpec(
        layout="pairs",
        scaling=asked.scaling,
        factor=asked.factor,
        original_length=_TRAINED_LENGTH,
        temperature=1.0,
    )
    # The same vector at every place: all that differs afterwards is how far it was turned.
    vector = torch.zeros((1, 1, asked.length, asked.width))
    vector[..., 0::2] = (2 / asked.width) ** 0.5
    turned = Rotary(asked.width, spec)(vector, torch.arange(asked.length)[None])[0, 0]
    return _vectors(
        turned,
        "One vector of length 1, turned by each position: the score of a query and a key that say "
        "the same depends on their distance alone.",
    )


def _learned(asked: ShowRequest, workspace: Workspace) -> dict[str, Any]:
    from heedful.nn.positions import LearnedPositions

    module = _table(asked, workspace, "LearnedPositions")
    assert isinstance(module, LearnedPositions)
    rows = module.weight.detach()[module.unused_rows :][: asked.length]
    return _vectors(rows, f"{asked.table} of {asked.model}, as training left it.")


def _vectors(table: Tensor, sentence: str) -> dict[str, Any]:
    """A table [L, D]: itself, mean cosine and product by distance, and its two main directions."""
    import torch

    from heedful.studio.numbers import plain

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
        "table": plain(table),
        "distances": list(distances),
        "product": [float(products.diagonal(k).mean()) for k in distances],
        "cosine": [float(cosines.diagonal(k).mean()) for k in distances],
        "projection": plain(centred @ directions[:2].T),
        "explained": plain(shares[:2]),
    }


def _biases(asked: ShowRequest, workspace: Workspace) -> dict[str, Any]:
    """What each head adds to a score, by distance from the query to the key."""
    import torch

    from heedful.nn.biases import Alibi, Bias, T5Bias
    from heedful.nn.positions import Positions
    from heedful.studio.numbers import plain

    half = asked.length // 2
    keys = torch.arange(2 * half + 1)
    positions = Positions(torch.tensor([[half]]), keys[None])
    bucket: list[int] | None = None
    bias: Bias
    if asked.scheme == "alibi":
        bias = Alibi(asked.heads)
        sentence = "A penalty for distance with a slope for each head, fixed before training."
    else:
        if asked.model:
            found = _table(asked, workspace, "T5Bias")
            assert isinstance(found, T5Bias)
            bias, sentence = found, f"{asked.table} of {asked.model}, as training left it."
        else:
            spec = T5BiasSpec(num_buckets=asked.buckets, max_distance=asked.max_distance)
            bias = T5Bias(1, spec.num_buckets, spec.max_distance, spec.bidirectional)
            sentence = (
                "Near distances have a bucket each, far ones share; training learns a number for "
                "each bucket and head. No model at hand has such a table, so buckets are shown."
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
        "added": None if asked.scheme == "t5" and not asked.model else plain(added),
        "buckets": bucket,
    }


def _tables(model: nn.Module) -> dict[str, nn.Module]:
    """Learned positions and T5 biases by the names of their modules; shared ones once."""
    from heedful.nn.biases import T5Bias
    from heedful.nn.positions import LearnedPositions

    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, LearnedPositions | T5Bias)
    }


def _table(asked: ShowRequest, workspace: Workspace, kind: str) -> nn.Module:
    found = _tables(workspace.place(asked.model).load().model)
    module = found.get(asked.table)
    if module is None or type(module).__name__ != kind:
        raise ModelError(
            f"The model has no table of positions called {asked.table!r}",
            where=asked.model,
            remedy=suggest(asked.table, found) or "Its positions are not learned",
        )
    return module


PAGE = Page(
    name="positions",
    title="Positions",
    summary="How a model can tell where a token stands.",
    about=(
        "Attention by itself sees a set of tokens, not a sequence. A position is told to it as a "
        "vector added to the token, as an angle by which queries and keys are turned, or as a "
        "number added to the score of a pair. What matters is how alike two positions are, by how "
        "far they are apart."
    ),
    calls={"show": Call(ShowRequest, show), "tables": Call(NoSettings, tables)},
)
