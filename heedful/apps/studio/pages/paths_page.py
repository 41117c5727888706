"""Page "Paths": the path length between two tokens, and the influence of one on the other."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from heedful.apps.path_lengths import (
    DIRECTIONS,
    KINDS,
    LayerKind,
    Network,
    costs,
    model_reach,
    network,
    recurrent_reach,
    transformer_reach,
)
from heedful.apps.studio.page import NoSettings, StackRequest, TextRequest, call, read_text
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config, read_toml
from heedful.errors import DataError
from heedful.models.shape import TranslatorShape

LONGEST = 128
"""Maximum number of tokens and of channels, which limits the waiting time."""
LENGTHS = tuple(2**power for power in range(1, 11))
DRAWN = 12
"""Maximum number of tokens of a drawn network that takes several levels."""
MOST_SENTENCES = 8
BY_LENGTH_FILE = Path(__file__).parents[1] / "by_length.toml"
_HEADS = 4
# The memory of derivatives grows with directions × tokens, for new networks also × channels.
_OWN_TOKENS = 2048
_NEW_NUMBERS = 2**16
_FEWEST = 4

Length = Annotated[int, Field(ge=2, le=LONGEST)]
Width = Annotated[int, Field(ge=8, le=LONGEST, multiple_of=8)]
Layers = Annotated[int, Field(ge=1, le=4)]
Window = Annotated[int, Field(ge=2, le=LONGEST)]


class StepsRequest(Config):
    """Networks whose costs are compared by formulas."""

    length: Length = 64
    width: Width = 64
    num_layers: Layers = 2
    window: Window = 4
    kernel: Annotated[int, Field(ge=2, le=9)] = 3


NewNetwork = Literal["rnn", "lstm", "gru", "transformer", "window"]


class MeasureRequest(Config):
    """An untrained network and a seed; the page requests each combination separately."""

    network: NewNetwork = "transformer"
    length: Length = 64
    width: Width = 64
    num_layers: Layers = 2
    window: Window = 4
    keep_bias: Annotated[float, Field(ge=-4, le=10)] = 1.0
    norm_placement: Literal["post", "pre"] = "post"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1


class OwnRequest(StackRequest):
    """A model, and sentences to measure it on, one in each line."""


@call(StepsRequest)
def steps(request: StepsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return costs at many lengths and at the given one, and small networks to draw."""
    reads = {"window": request.window, "kernel": request.kernel}
    size = {"width": request.width, "num_layers": request.num_layers}
    lengths = sorted({*LENGTHS, request.length})
    return {
        "costs": [each.plain() for each in costs(lengths, **size, **reads)],
        "here": [each.plain() for each in costs([request.length], **size, **reads)],
        "networks": [asdict(_drawn(kind, request.length, reads)) for kind in KINDS],
    }


def _drawn(kind: LayerKind, length: int, reads: dict[str, int]) -> Network:
    """Return a network to draw: of attention the connections to the last token alone."""
    if kind == "attention":
        whole = network(kind, length)
        last = (1, length - 1)
        return replace(whole, links=tuple(link for link in whole.links if link[1] == last))
    return network(kind, length if kind == "recurrent" else min(length, DRAWN), **reads)


@call(MeasureRequest)
def measure(request: MeasureRequest, workspace: Workspace) -> dict[str, Any]:
    """Return gradients by distance of a network with random weights, on a fixed input."""
    few = _NEW_NUMBERS // (request.length * request.width)
    directions = max(_FEWEST, min(DIRECTIONS, few))
    if request.network in ("rnn", "lstm", "gru"):
        return recurrent_reach(
            request.network,
            request.length,
            width=request.width,
            num_layers=request.num_layers,
            keep_bias=request.keep_bias,
            seeds=[request.seed],
            directions=directions,
        ).plain()
    shape = TranslatorShape(
        width=request.width,
        num_heads=_HEADS,
        feedforward=4 * request.width,
        encoder_layers=request.num_layers,
        norm_placement=request.norm_placement,
        window=request.window if request.network == "window" else None,
    )
    return transformer_reach(
        request.length, shape, seeds=[request.seed], directions=directions
    ).plain()


@call(OwnRequest)
def own(request: OwnRequest, workspace: Workspace) -> dict[str, Any]:
    """Return gradients by distance of a trained model on some sentences."""
    lines = [line for line in request.text.splitlines() if line.strip()] or [""]
    if len(lines) > MOST_SENTENCES:
        raise DataError(
            f"There are {len(lines):,} sentences; here at most {MOST_SENTENCES} are measured",
            where="text",
            remedy="Leave some out",
        )
    plain = request.model_dump(exclude={"stack", "text"})
    inputs = [read_text(TextRequest(text=line, **plain), workspace) for line in lines]
    subject = inputs[0][0]
    readings = [reading for _, reading in inputs]
    longest = max(reading.length for reading in readings)
    reach = model_reach(
        subject,
        readings,
        request.stack or None,
        directions=max(_FEWEST, min(DIRECTIONS, _OWN_TOKENS // longest)),
    )
    return {"stack": reach.name, "reach": reach.plain(), "targets": [r.target for r in readings]}


@call()
def by_length(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return recorded BLEU by source length of translators with one vector and with attention."""
    return read_toml(BY_LENGTH_FILE)
