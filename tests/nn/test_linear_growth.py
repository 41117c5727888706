"""Mixers whose cost grows with the length: twice the text, about twice the numbers computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.models.mixers import mixer_spec
from heedful.models.shape import TranslatorShape
from heedful.nn.mixer import Context, build_part
from heedful.nn.positions import Positions

WIDTH = 8
LINEAR = [
    ("linear_attention", {}),
    ("linear_attention", {"features": "random"}),
    ("linear_attention", {"features": "cosine"}),
    ("linformer", {}),
    ("average_attention", {}),
    ("ssru", {}),
    ("s4d", {}),
    ("mamba", {}),
    ("rwkv", {}),
]


class Counter(TorchDispatchMode):
    """Counts the numbers that operations write, those of gradients too."""

    written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view:
            return result
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor):
                self.written += each.numel()
        return result


def numbers_written(mixer: str, options: dict[str, Any], length: int) -> int:
    shape = TranslatorShape.parse(
        {"positions": "none", "width": WIDTH, "num_heads": 2, "mixer": mixer, "max_length": length}
        | options
    )
    module = build_part(WIDTH, mixer_spec(shape, mixer, mixer != "linformer")).train()
    x = torch.randn(1, length, WIDTH, requires_grad=True)
    context = Context(Positions.of_self(torch.arange(length)[None]))
    with Counter() as counter:
        torch.autograd.grad(module(x, context).sum(), [x, *module.parameters()], allow_unused=True)
    return counter.written


@pytest.mark.parametrize(("mixer", "options"), LINEAR)
def test_gradients_grow_with_the_length(mixer: str, options: dict[str, Any]) -> None:
    long = numbers_written(mixer, options, 16_384) / numbers_written(mixer, options, 4096)
    assert long < 4.8  # n log n: 4.7; what is quadratic only in part grows by more
