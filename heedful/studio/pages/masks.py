"""Page "Masks and biases": who may see whom, and what distance adds to a score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.nn.spec import AlibiSpec, BiasSpec, RelativeKeysSpec, T5BiasSpec
from heedful.studio.mask_expression import LONGEST, mask_kinds, parse_mask
from heedful.studio.page import Call, Page

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.nn.biases import Bias
    from heedful.nn.positions import Positions
    from heedful.studio.workspace import Workspace

HEAD_WIDTH = 16
_SEED = 1


class DrawRequest(Config):
    """A mask, a bias, and the tokens they are drawn for."""

    mask: Annotated[str, Field(max_length=4 * LONGEST)] = "causal"
    length: Annotated[int, Field(ge=2, le=64)] = 16
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


class NoSettings(Config):
    """Nothing to ask for."""


def draw(asked: DrawRequest, workspace: Workspace) -> dict[str, Any]:
    """Who sees whom, what is added, and which weights remain when queries and keys say nothing."""
    import torch

    from heedful.nn.attend import attention_weights, make_request
    from heedful.nn.masks import build_mask
    from heedful.studio.numbers import plain

    mask = build_mask(parse_mask(asked.mask))
    positions = _positions(asked)
    bias = _bias(asked)
    source = torch.Generator().manual_seed(_SEED)
    query = torch.randn((1, asked.heads, asked.length, HEAD_WIDTH), generator=source)
    silent = torch.zeros_like(query)  # keys of zeros: every raw score is 0
    visible = positions.visible(mask)[0, 0]
    with torch.inference_mode():
        request = make_request(query, silent, silent, positions, mask, [bias] if bias else [])
        weights = attention_weights(request, heads=[asked.head - 1])[0, 0]
        added = None if bias is None else bias(query * request.scale, positions)[0, asked.head - 1]
    real = asked.length - asked.padding
    last = real - 1 if asked.segments == 1 else int(positions.query[0, real - 1])
    return {
        "visible": visible.int().tolist(),
        "seen": int(visible.sum()),
        "pairs": asked.length**2,
        "sentence": f"A query sees {mask.describe()}.",
        "bounds": list(_bounds(mask.bounds(last, last), asked.length)),
        "weights": plain(weights),
        "added": None if added is None else plain(_shown(added, visible)),
        "positions": positions.query[0].tolist(),
        "segments": None
        if positions.query_segment is None
        else positions.query_segment[0].tolist(),
    }


def words(asked: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """The masks there are, with the settings each needs and what it does."""
    return {
        "words": [
            {
                "name": name,
                "settings": [field for field in kind.model_fields if field != "kind"],
                "about": (kind.__doc__ or "").splitlines()[0],
            }
            for name, kind in mask_kinds().items()
        ]
    }


def _positions(asked: DrawRequest) -> Positions:
    """Texts packed one after the other, each counted from 0, and padding at the end."""
    import torch

    from heedful.nn.positions import NOTHING_HERE, Positions

    real = asked.length - asked.padding
    at = torch.full((1, asked.length), NOTHING_HERE)
    if asked.segments == 1:
        at[0, :real] = torch.arange(real)
        return Positions.of_self(at)
    segment = torch.full((1, asked.length), NOTHING_HERE)
    for number, places in enumerate(torch.arange(real).tensor_split(asked.segments)):
        at[0, places] = torch.arange(len(places))
        segment[0, places] = number
    return Positions.of_self(at, segment)


def _bias(asked: DrawRequest) -> Bias | None:
    import torch

    from heedful.nn.biases import build_bias

    specs: dict[str, BiasSpec] = {
        "alibi": AlibiSpec(),
        "t5": T5BiasSpec(max_distance=max(asked.max_distance, 9)),
        "relative_keys": RelativeKeysSpec(max_distance=asked.max_distance),
    }
    if asked.bias == "none":
        return None
    bias = build_bias(specs[asked.bias], asked.heads, HEAD_WIDTH)
    with torch.no_grad():  # untrained tables hold zeros, or nothing to be seen
        for parameter in bias.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(_SEED))
    return bias.eval()


def _shown(added: Tensor, visible: Tensor) -> Tensor:
    return added.masked_fill(~visible, 0.0)


def _bounds(found: tuple[int, int], length: int) -> tuple[int, int]:
    """First and last key position, within what is drawn."""
    first, last = found
    return first, min(last, length - 1)


PAGE = Page(
    name="masks",
    title="Masks and biases",
    summary="Who may see whom, and what distance adds to a score.",
    about=(
        "Each row is a query, each column a key; a filled cell is a pair that may meet. Masks "
        "combine: & keeps what both allow, | what either does. A bias does not hide but favours: "
        "the last picture shows the weights that remain when queries and keys have nothing to say "
        "and only mask and bias decide."
    ),
    calls={"draw": Call(DrawRequest, draw), "words": Call(NoSettings, words)},
)
