"""The position-wise feed-forward network, plain (Vaswani 2017) or gated (Shazeer 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.dropout import Dropout
from heedful.nn.fused_sublayer import Parameters, fused_sublayer
from heedful.nn.linear_layers import (
    Linear,
    activated_pair,
    has_no_hooks,
    is_plain,
    keeps_products,
)
from heedful.nn.mixer import Context
from heedful.nn.spec import GATED, Activation, FeedForwardSpec, PlainActivation
from heedful.nn.sublayer import ResidualNorm
from heedful.nn.work import Saved, Work, weight_work


def relu(x: Tensor) -> Tensor:
    """The rectifier, in place where nothing else reads what the layer before it gives."""
    return F.relu(x) if keeps_products() else F.relu_(x)


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

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Transform every token by itself.

        Args:
            x: [..., D].
            context: its capture may ask for `{address}.inner`, the input of `down`.

        Returns:
            [..., D].
        """
        drops = self.training and self.dropout.probability > 0.0
        captures = context is not None and context.capture is not None
        if not captures and self.kind is not None and not drops:
            whole = activated_pair(x, self.up, self.kind, self.down)
            if whole is not None:
                return whole
        if self.gate is None:
            inner = self.activation(self.up(x))
        else:
            inner = self.activation(self.gate(x)) * self.up(x)
        if context is not None:
            context.offer("inner", inner)
        down: Tensor = self.down(self.dropout(inner))
        return down

    def fused(
        self, x: Tensor, y: Tensor, after: ResidualNorm, context: Context, state: None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Transform every token and do all that follows up to the next sub-layer in one call.

        Args:
            x: [..., D], the residual stream.
            y: [..., D], the input of this module.
            after: dropout, sum and norm that follow.
            context: not needed.
            state: none.

        Returns:
            The stream, and the input of the next sub-layer; None where no kernel serves.
        """
        if self.kind is None or (self.training and self.dropout.probability > 0.0):
            return None
        if not is_plain(self.up, self.down) or not has_no_hooks(self):
            return None
        up = Parameters(self.up.weight, self.up.bias)
        down = Parameters(self.down.weight, self.down.bias)
        return fused_sublayer(x, y, up, self.kind, down, after)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens; see `Costed`."""
        return Work(weights=queries * weight_work(self))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the numbers of a token kept inside; see `Costed`."""
        # ReLU's derivative is read off its result; other activations need their input as well.
        from_result = self.activation is relu
        copies = (1 if from_result else 2) + (2 if self.gate is not None else 0)
        # The input of `down` is kept either way; only ReLU's result is then kept beside it.
        if self.dropout.probability and from_result and self.gate is None:
            copies += 1
        width = self.up.out_features
        return Saved(copies * width, width if self.dropout.probability else 0)

    @property
    def peak_numbers(self) -> int:
        """The numbers of a token that stand side by side while it passes, at most."""
        return (2 if self.gate is None else 3) * self.up.out_features


def linear(in_width: int, out_width: int, bias: bool) -> Linear:
    """A linear map, Xavier-uniform at first, its bias zero (Glorot 2010)."""
    layer = Linear(in_width, out_width, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
