"""Page "Paths": how far apart two tokens are, and how much one still feels of the other."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from heedful.config import Config
from heedful.errors import DataError
from heedful.studio.page import Call, Page
from heedful.studio.readings import TextRequest, read_text

if TYPE_CHECKING:
    from heedful.studio.workspace import Workspace

LONGEST = 128
"""Tokens, and channels, that are measured while somebody waits."""
LENGTHS = tuple(2**power for power in range(1, 11))
DRAWN = 12
"""Tokens of the networks that are drawn."""
MOST_SENTENCES = 8
_HEADS = 4
# What is differentiated at once grows with directions × tokens, and for new networks × channels.
_OWN_TOKENS = 2048
_NEW_NUMBERS = 2**16
_FEWEST = 4

Length = Annotated[int, Field(ge=2, le=LONGEST)]
Width = Annotated[int, Field(ge=8, le=LONGEST, multiple_of=8)]
Layers = Annotated[int, Field(ge=1, le=4)]
Window = Annotated[int, Field(ge=2, le=LONGEST)]


class StepsRequest(Config):
    """What networks to compare by their formulas."""

    length: Length = 64
    width: Width = 64
    num_layers: Layers = 2
    window: Window = 4
    kernel: Annotated[int, Field(ge=2, le=9)] = 3


class MeasureRequest(Config):
    """What new networks to measure."""

    length: Length = 64
    width: Width = 64
    num_layers: Layers = 2
    window: Window = 4
    cells: Annotated[tuple[Literal["rnn", "lstm", "gru"], ...], Field(max_length=3)] = (
        "rnn",
        "lstm",
        "gru",
    )
    keep_bias: Annotated[float, Field(ge=-4, le=10)] = 1.0
    norm_placement: Literal["post", "pre"] = "post"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1


class OwnRequest(TextRequest):
    """A model of one's own, and sentences to measure it on, a line each."""

    stack: Annotated[str, Field(max_length=20)] = Field(
        "", description="encoder or decoder; empty: the decoder where there is one"
    )


def steps(asked: StepsRequest, workspace: Workspace) -> dict[str, Any]:
    """Costs at many lengths and at this one, and small networks to draw."""
    from heedful.inspect.paths import KINDS, costs, network

    reads = {"window": asked.window, "kernel": asked.kernel}
    size = {"width": asked.width, "num_layers": asked.num_layers}
    lengths = sorted({*LENGTHS, asked.length})
    drawn = min(asked.length, DRAWN)
    return {
        "costs": [each.plain() for each in costs(lengths, **size, **reads)],
        "here": [each.plain() for each in costs([asked.length], **size, **reads)],
        "networks": [asdict(network(kind, drawn, **reads)) for kind in KINDS],
    }


def measure(asked: MeasureRequest, workspace: Workspace) -> dict[str, Any]:
    """Gradients by distance: of recurrent networks, and of Transformers that read the same."""
    from heedful.inspect.reach import DIRECTIONS, recurrent_reach, transformer_reach
    from heedful.models.shape import TranslatorShape

    seeds = range(asked.seed, asked.seed + 3)
    few = _NEW_NUMBERS // (asked.length * asked.width)
    directions = max(_FEWEST, min(DIRECTIONS, few))
    found = [
        recurrent_reach(
            cell,
            asked.length,
            width=asked.width,
            num_layers=asked.num_layers,
            keep_bias=asked.keep_bias,
            seeds=seeds,
            directions=directions,
        )
        for cell in dict.fromkeys(asked.cells)
    ]
    shape = TranslatorShape(
        width=asked.width,
        num_heads=_HEADS,
        feedforward=4 * asked.width,
        encoder_layers=asked.num_layers,
        norm_placement=asked.norm_placement,
    )
    near = shape.model_copy(update={"window": asked.window})
    full, windowed = (
        transformer_reach(asked.length, each, seeds=seeds, directions=directions)
        for each in (shape, near)
    )
    return {
        "recurrent": [each.plain() for each in found],
        "transformer": full.plain(),
        "window": windowed.plain(),
    }


def own(asked: OwnRequest, workspace: Workspace) -> dict[str, Any]:
    """Gradients by distance of a trained model, on sentences of one's own."""
    from heedful.inspect.reach import DIRECTIONS, model_reach

    lines = [line for line in asked.text.splitlines() if line.strip()] or [""]
    if len(lines) > MOST_SENTENCES:
        raise DataError(
            f"These are {len(lines):,} sentences; here at most {MOST_SENTENCES} are measured",
            where="text",
            remedy="Leave some out",
        )
    plain = asked.model_dump(exclude={"stack", "text"})
    read = [read_text(TextRequest(text=line, **plain), workspace) for line in lines]
    subject = read[0][0]
    readings = [reading for _, reading in read]
    longest = max(reading.length for reading in readings)
    found = model_reach(
        subject,
        readings,
        asked.stack or None,
        directions=max(_FEWEST, min(DIRECTIONS, _OWN_TOKENS // longest)),
    )
    return {"stack": found.name, "reach": found.plain(), "targets": [r.target for r in readings]}


PAGE = Page(
    name="paths",
    title="Paths",
    summary="How a signal gets from one token to another, and how much of it arrives.",
    about=(
        "A recurrent network passes a signal on from token to token; attention lets any two meet "
        "in one step. The first part counts those steps. The second measures what they mean: the "
        "gradient of the last token's output by each earlier token's embedding, in networks that "
        "are built and differentiated when you ask, and in your own trained model."
    ),
    calls={
        "steps": Call(StepsRequest, steps),
        "measure": Call(MeasureRequest, measure),
        "own": Call(OwnRequest, own),
    },
)
