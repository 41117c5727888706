"""Page "Block": the way of a sentence through a block of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.studio.page import Call, Page
from heedful.studio.readings import TextRequest, read_text

if TYPE_CHECKING:
    from heedful.studio.workspace import Workspace

StackName = Annotated[str, Field(max_length=20)]


class FlowRequest(TextRequest):
    """A text, and the block to follow it through."""

    stack: StackName = Field(
        "", description="encoder or decoder; empty: the decoder where there is one"
    )
    layer: Annotated[int, Field(ge=-1, le=10_000)] = Field(-1, description="from 0; -1: the last")


class StreamRequest(TextRequest):
    """A text, and the stack whose stream to follow."""

    stack: StackName = ""


def flow(asked: FlowRequest, workspace: Workspace) -> dict[str, Any]:
    """The parts of a block with what they read, their shapes and sizes."""
    from heedful.inspect.block_flow import block_flow
    from heedful.models.stack import Stack

    subject, reading = read_text(asked, workspace)
    found = block_flow(subject, reading, asked.stack or None, asked.layer)
    stacks = {
        name: len(stack.blocks)
        for name in ("encoder", "decoder")
        if isinstance(stack := getattr(subject.model, name, None), Stack)
    }
    return {"stacks": stacks, "target": reading.target, **found.plain()}


def stream(asked: StreamRequest, workspace: Workspace) -> dict[str, Any]:
    """What each sub-layer of a stack adds to the stream, and what of the output is whose."""
    import torch

    from heedful.inspect.residual import contributions
    from heedful.studio.numbers import plain

    subject, reading = read_text(asked, workspace)
    found = contributions(subject, reading, asked.stack or None)
    numbers = {
        "added": found.sizes,
        "stream": found.stream_sizes,
        "cosine": found.cosines,
        "shares": found.shares,
    }
    return {
        "rows": found.rows,
        "sublayers": found.sublayers,
        "parts": found.parts,
        **{name: plain(torch.from_numpy(values)) for name, values in numbers.items()},
    }


PAGE = Page(
    name="block",
    title="Block",
    summary="The way of a sentence through a block: shapes, sizes, and the stream beside it.",
    about=(
        "A stream of vectors, one for each token, runs through the model; every sub-layer reads "
        "it and adds something to it. The diagram is made from the modules of your model, with "
        "the tensors of this very pass. Choose a part to see its shape, how long its vectors are, "
        "the address under which `heedful.inspect` gives it, and what it does."
    ),
    calls={"flow": Call(FlowRequest, flow), "stream": Call(StreamRequest, stream)},
)
