"""A sub-layer: a part, dropout of its output, the residual sum, norms.

The definition runs them one by one. In training a processor spends as long going from kernel to
kernel as in them where matrices are small, so a fused kernel does all of it where one serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.nn.mixer import Context
from heedful.nn.residual import ResidualNorm, residual_norm
from heedful.nn.spec import NormPlacement


@dataclass(frozen=True)
class SubLayer:
    """The settings of one sub-layer; the block holds its part and norms under its name.

    Args:
        name: of the part (`self_attention`), and with `_norm` of its norm.
        placement: of the norm.
        dropout: probability of dropping an element of the part's output.
    """

    name: str
    placement: NormPlacement
    dropout: float

    @property
    def address(self) -> str:
        """The place of its captures within the block: `self`, `cross`, `feedforward`."""
        return self.name.removesuffix("_attention")

    @property
    def norms_input(self) -> bool:
        """True where the part reads a norm of the stream."""
        return self.placement in ("before", "both")


def run_sublayer(
    part: nn.Module,
    x: Tensor,
    y: Tensor,
    after: ResidualNorm,
    context: Context,
    state: Any = None,
    *,
    training: bool,
) -> tuple[Tensor, Tensor, Any]:
    """Run a part, and add its output to the stream.

    Args:
        part: of the block.
        x: [..., D], the residual stream.
        y: [..., D], the part's input: x, or its norm.
        after: dropout, sum and norms that follow.
        context: positions of x; its address is the part's.
        state: the part's; None where it has none, or a whole sequence is mixed.
        training: whether elements are dropped and gradients wanted.

    Returns:
        The stream, the input of the next part, and the part's state.
    """
    result = _fused(part, x, y, after, context, state) if training else None
    if result is not None:
        return *result, state
    context.offer("input", y)
    if state is None:
        output = part(y, context)
    else:
        output, state = part.step(y, state, context)  # type: ignore[operator]
    return *residual_norm(x, output, after, context, training=training), state


def _fused(
    part: Any, x: Tensor, y: Tensor, after: ResidualNorm, context: Context, state: Any
) -> tuple[Tensor, Tensor] | None:
    """Return the stream and the next input by one kernel; None where none serves."""
    if context.capture is not None or not after.is_fusable or torch.compiler.is_compiling():
        return None
    fuse = getattr(part, "fused", None)
    result: tuple[Tensor, Tensor] | None = fuse and fuse(x, y, after, context, state)
    return result
