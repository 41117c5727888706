"""The position-wise feed-forward network, plain (Vaswani 2017) or gated (Shazeer 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import Activation, PlainActivation
from heedful.nn.mixer import Context, spec_of
from heedful.nn.spec import FeedForwardSpec
from heedful.nn.work import Saved, Work, weight_work


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, as in GPT-2 (Hendrycks and Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """GELU in its sigmoid approximation, as in CLIP (Hendrycks and Gimpel 2016)."""
    return x * (1.702 * x).sigmoid()


PLAIN_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """`down(activation(up(x)))`, or `down(activation(gate(x)) * up(x))` for gated activations.

    Args:
        width: model width D.
        spec: inner width, activation, bias, dropout (after the activation); None with settings.
        inner: inner width, instead of a spec; 4 · D if unset.
        **settings: other fields of `FeedForwardSpec`, such as `activation`.
    """

    def __init__(
        self,
        width: int,
        spec: FeedForwardSpec | None = None,
        *,
        inner: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        inner = 4 * width if spec is None and inner is None else inner
        spec = spec_of(FeedForwardSpec, width, spec, {"width": inner, **settings})
        gated = spec.gate is not None
        # A gated form activates only its gate; `up` stays linear (Shazeer 2020).
        self.activation = PLAIN_ACTIVATIONS[spec.gate or cast("PlainActivation", spec.activation)]
        self.kind = None if gated else cast("PlainActivation", spec.activation)
        self.gate = linear(width, spec.width, spec.bias) if gated else None
        self.up = linear(width, spec.width, spec.bias)
        self.down = linear(spec.width, width, spec.bias)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Transform every token separately.

        Args:
            x: [..., D].
            context: context whose capture may ask for `{address}.inner`, the input of `down`.

        Returns:
            [..., D].
        """
        inner = self.activation(self.up(x) if self.gate is None else self.gate(x))
        if self.gate is not None:
            inner = inner * self.up(x)
        if context is not None:
            # Offered before dropout, so that a capture in training shows the activations
            # themselves.
            context.offer("inner", inner)
        down: Tensor = self.down(self.dropout(inner))
        return down

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens; see `Costed`."""
        return Work(weights=queries * weight_work(self))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of a token kept inside; see `Costed`."""
        # ReLU's derivative is read off its result; other activations need their input as well.
        from_result = self.activation is F.relu
        copies = (1 if from_result else 2) + (2 if self.gate is not None else 0)
        # The input of `down` is kept either way; only ReLU's result is then kept beside it.
        if self.dropout.p and from_result and self.gate is None:
            copies += 1
        width = self.up.out_features
        return Saved(copies * width, width if self.dropout.p else 0)

    @property
    def peak_numbers(self) -> int:
        """The largest number of elements of a token that are in memory at once."""
        # The input of the activation and its result; with a gate the output of `up`, too.
        return (2 if self.gate is None else 3) * self.up.out_features


def linear(in_width: int, out_width: int, bias: bool) -> nn.Linear:
    """Return a linear map with Xavier-uniform weights and a bias of zero (Glorot 2010)."""
    layer = nn.Linear(in_width, out_width, bias=bias)
    # PyTorch's default would leave a square map a third of this variance.
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
