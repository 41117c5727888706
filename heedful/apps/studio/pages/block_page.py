"""Page "Block": the tensors of a sentence in a block of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.apps.studio.page import Call, Page, TextRequest, read_text, round_digits

if TYPE_CHECKING:
    from heedful.apps.studio.workspace import Workspace

StackName = Annotated[str, Field(max_length=20)]


class FlowRequest(TextRequest):
    """A text, and the block to follow it through."""

    stack: StackName = Field(
        "", description="encoder or decoder; if empty, the decoder if there is one"
    )
    layer: Annotated[int, Field(ge=-1, le=10_000)] = Field(
        -1, description="index of the layer, from 0; -1 is the last"
    )


class StreamRequest(TextRequest):
    """A text, and the stack whose residual stream to follow."""

    stack: StackName = ""


def flow(request: FlowRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the tensors of a block with their inputs, shapes and sizes."""
    from heedful.inspect.block_flow import block_flow

    subject, reading = read_text(request, workspace)
    result = block_flow(subject, reading, request.stack or None, request.layer)
    stacks = {name: len(stack.blocks) for name, stack in subject.model.stacks().items()}
    return {"stacks": stacks, "target": reading.target, **result.plain()}


def stream(request: StreamRequest, workspace: Workspace) -> dict[str, Any]:
    """Return each sub-layer's addition to the stream, and its share in the output."""
    import torch

    from heedful.inspect.residual_stream import contributions

    subject, reading = read_text(request, workspace)
    result = contributions(subject, reading, request.stack or None)
    numbers = {
        "added": result.sizes,
        "stream": result.stream_sizes,
        "cosine": result.cosines,
        "shares": result.shares,
    }
    return {
        "rows": result.rows,
        "sublayers": result.sublayers,
        "parts": result.parts,
        **{name: round_digits(torch.from_numpy(values)) for name, values in numbers.items()},
    }


PAGE = Page(
    name="block",
    title="Block",
    summary="A sentence through a block: shapes, sizes, and the residual stream beside it.",
    about=(
        "A stream of vectors, one for each token, runs through the model; every sub-layer reads it "
        "and adds its output to it. Click a box to see the shape of its tensor and what it is for."
    ),
    calls={"flow": Call(FlowRequest, flow), "stream": Call(StreamRequest, stream)},
)
