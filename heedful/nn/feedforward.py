"""The position-wise feed-forward network, plain (Vaswani 2017) or gated (Shazeer 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.capture import Capture, offer
from heedful.nn.dropout import Dropout
from heedful.nn.kinds import GATED, Activation, PlainActivation
from heedful.nn.product import Linear, fed, is_plain, unwatched
from heedful.nn.spec import FeedForwardSpec
from heedful.nn.sublayer import Ending, Parameters, joined


def relu(x: Tensor) -> Tensor:
    """The rectifier, in place: nothing else reads what the layer before it gives."""
    return F.relu_(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """The approximation by tanh that GPT-2 has (Hendrycks and Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


PLAIN_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """`down(activation(up(x)))`, or `down(activation(gate(x)) * up(x))` for gated activations.

    Args:
        width: model width D.
        spec: inner width, activation, bias, dropout (after the activation).
    """

    def __init__(self, width: int, spec: FeedForwardSpec) -> None:
        super().__init__()
        gated = spec.activation in GATED
        self.activation = PLAIN_ACTIVATIONS[GATED.get(spec.activation, spec.activation)]
        self.kind = None if gated else cast("PlainActivation", spec.activation)
        self.gate = linear(width, spec.width, spec.bias) if gated else None
        self.up = linear(width, spec.width, spec.bias)
        self.down = linear(spec.width, width, spec.bias)
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor, capture: Capture | None = None, address: str = "") -> Tensor:
        """[..., D] to [..., D].

        Args:
            x: [..., D].
            capture: may ask for `{address}.inner`, what `down` takes.
            address: this module's place in the model.
        """
        drops = self.training and self.dropout.probability > 0.0
        if capture is None and self.kind is not None and not drops:
            whole = fed(x, self.up, self.kind, self.down)
            if whole is not None:
                return whole
        if self.gate is None:
            inner = self.activation(self.up(x))
        else:
            inner = self.activation(self.gate(x)) * self.up(x)
        offer(capture, f"{address}.inner", inner)
        down: Tensor = self.down(self.dropout(inner))
        return down

    def joined(self, x: Tensor, read: Tensor, ending: Ending) -> tuple[Tensor, Tensor] | None:
        """This network and all that follows it up to the next sub-layer, in one call.

        Args:
            x: [..., D], the stream.
            read: [..., D], what this module reads of it.
            ending: what becomes of the result.

        Returns:
            As `heedful.nn.sublayer.joined`; None where that is not to be had.
        """
        if self.kind is None or (self.training and self.dropout.probability > 0.0):
            return None
        if not is_plain(self.up, self.down) or not unwatched(self):
            return None
        up = Parameters(self.up.weight, self.up.bias)
        return joined(x, read, up, self.kind, Parameters(self.down.weight, self.down.bias), ending)


def linear(in_width: int, out_width: int, bias: bool) -> Linear:
    """A linear map, Xavier-uniform at first, its bias zero (Glorot 2010)."""
    layer = Linear(in_width, out_width, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
