"""Page "Block": the tensors of a sentence in a block of a model."""

from __future__ import annotations

from typing import Any

from heedful.apps.studio.page import LastLayer, StackRequest, call, read_text, round_digits
from heedful.apps.studio.workspace import Workspace
from heedful.inspect.block_flow import block_flow
from heedful.inspect.residual_stream import contributions


class FlowRequest(StackRequest):
    """A text, and the block to follow it through."""

    layer: LastLayer = -1


@call(FlowRequest)
def flow(request: FlowRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the tensors of a block with their inputs, shapes and sizes."""
    subject, reading = read_text(request, workspace)
    result = block_flow(subject, reading, request.stack or None, request.layer)
    stacks = {name: len(stack.blocks) for name, stack in subject.model.stacks().items()}
    return {"stacks": stacks, "target": reading.target, **result.plain()}


@call(StackRequest)
def stream(request: StackRequest, workspace: Workspace) -> dict[str, Any]:
    """Return each sub-layer's addition to the stream, and its share in the output."""
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
        **{name: round_digits(values) for name, values in numbers.items()},
    }
