"""The minimal gated unit of Feng 2024 as a mixer, and exact matches as a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.evaluate.registered_metric import RegisteredMetric
from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import CommonPartSpec
from heedful.nn.mixers.linear_scan import LinearRecurrence
from heedful.nn.work import Saved, Work, weight_work


class MinGRUSpec(CommonPartSpec):
    """A running average of tokens, each of which decides how much of the past it keeps."""

    module = "min_gru_parts:MinGRU"
    label = "Minimal gated unit"
    is_one_way = True
    kind: Literal["min_gru"] = "min_gru"
    bias: bool = True

    @classmethod
    def of_shape(cls, shape, causal):
        return cls(bias=shape.bias)


class MinGRU(LinearRecurrence):
    """h_t = (1 − z_t) h_{t−1} + z_t v_t, with z_t = σ(W x_t) and v_t = V x_t (Feng 2024, eq. 5)."""

    def __init__(self, width: int, spec: MinGRUSpec) -> None:
        super().__init__()
        self.state_width = width
        self.gate = nn.Linear(width, width, bias=spec.bias)
        self.value = nn.Linear(width, width, bias=spec.bias)

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = torch.sigmoid(self.gate(x).float())
        return 1 - gate, gate * self.value(x).float()

    def result(self, x: Tensor, state: Tensor, context: Context) -> Tensor:
        return state.to(x.dtype)

    def work(self, queries: int, keys: int) -> Work:
        return Work(weights=queries * (weight_work(self.gate) + weight_work(self.value)))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        return Saved(wide=5 * self.state_width)


class Exact(RegisteredMetric):
    """The share of translations that are a reference, in percent."""

    name = "exact"

    def statistics(self, output: str, references: Sequence[str]) -> tuple[int, int]:
        return int(output in references), 1

    def score(self, sums: Sequence[float]) -> float:
        return 100 * sums[0] / sums[1]
