"""The kernels of compiled blocks on a GPU, asked on a processor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heedful.engines.training.traced_parts import compiled_kinds
from heedful.nn.attention.attend import explain, make_request, plan
from heedful.nn.attention.masks import Causal, Everything, Mask, SameSegment, Window
from heedful.nn.attention.multi_head import SelfAttention
from heedful.nn.attention.relative_positions import Alibi
from heedful.nn.positions import Positions

_KIND: Any = compiled_kinds("cuda")[SelfAttention]
KERNELS = _KIND.kernels
LANGUAGE_MODEL = Causal() & SameSegment()


def positions(length: int, how: str) -> Positions:
    rows = torch.arange(length).expand(2, -1)
    if how == "windows":
        return Positions.counting(2, length, rows.device)
    return Positions.of_self(rows, rows // 5 if how == "packed" else None)


@pytest.mark.parametrize(
    ("length", "how", "mask", "biased", "kernel"),
    [
        (1024, "windows", Causal(), False, "sdpa"),
        (1024, "windows", LANGUAGE_MODEL, False, "sdpa"),
        (64, "windows", LANGUAGE_MODEL, False, "sdpa"),
        (1024, "windows", Everything(), False, "sdpa"),
        (1024, "windows", LANGUAGE_MODEL, True, "flex"),
        (1024, "windows", Window(64), False, "flex"),
        (1024, "packed", LANGUAGE_MODEL, False, "flex"),
        (129, "padded", Everything(), False, "flex"),
        (128, "padded", Everything(), False, "matmul"),
        (30, "padded", Causal(), True, "matmul"),
    ],
)
def test_plan(length: int, how: str, mask: Mask, biased: bool, kernel: str) -> None:
    q, k, v = (torch.zeros(2, 4, length, 64, requires_grad=True) for _ in range(3))
    biases = (Alibi(4),) if biased else ()
    request = make_request(q, k, v, positions(length, how), mask, biases, kernels=KERNELS)
    assert plan(request, KERNELS).kernel == kernel, explain(request, KERNELS)
