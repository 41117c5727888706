"""The simpler simple recurrent unit (Kim 2019, "From Research to Production and Back").

A cell with one gate and no matmul with the state, so that the matmuls of a sequence are computed
at once: fₜ = σ(W_f xₜ + b), cₜ = fₜ · cₜ₋₁ + (1 − fₜ) · W xₜ, and the output is max(cₜ, 0).

Shapes: L length, D model width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import SSRUSpec
from heedful.nn.mixers.linear_scan import LinearRecurrence
from heedful.nn.work import Saved, Work, weight_work


class SSRU(LinearRecurrence):
    """A recurrent cell for decoders, in the place of self-attention.

    Args:
        width: model width D.
        spec: use of a bias in the forget gate.

    A capture may ask for `{address}.cell` [..., D], the states.
    """

    def __init__(self, width: int, spec: SSRUSpec) -> None:
        super().__init__()
        self.state_width = width
        # The reset gate of the SRU (Lei 2018) is left out, and ReLU replaces tanh.
        self.value = nn.Linear(width, width, bias=False)
        self.forget = nn.Linear(width, width, bias=spec.bias)
        for each in (self.value, self.forget):
            nn.init.xavier_uniform_(each.weight)
        if spec.bias:
            nn.init.zeros_(self.forget.bias)

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the forget gate as decay, and the gated value; see `LinearRecurrence`."""
        forget = torch.sigmoid(self.forget(x).float())
        # The recurrence runs in float32: a long product of gates near 1 would drift in bfloat16.
        return forget, (1 - forget) * self.value(x).float()

    def result(self, x: Tensor, state: Tensor, context: Context) -> Tensor:
        """Return the states after ReLU."""
        context.offer("cell", state)
        return F.relu(state).to(x.dtype)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens, independent of earlier tokens; see `Costed`."""
        return Work(weights=queries * weight_work(self.value, self.forget))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of gate, its complement, values, decays and states, as measured."""
        width = self.state_width
        return Saved(2 * width if mixed else 0, 0, 6 * width)
