"""One attention over one long text, forward or backward too: its seconds and its peak memory."""

from __future__ import annotations

import time
from typing import Any

import serve
import torch

from heedful.engines.host_parts import PROCESSOR_KERNELS
from heedful.nn.attention.attend import attend
from heedful.nn.attention.masks import Causal, Everything, Mask, Window
from heedful.nn.mask_text import parse_mask
from heedful.nn.positions import Positions


def case(
    length: int,
    window: int,
    kernel: str,
    repeats: int,
    *,
    heads: int = 2,
    width: int = 64,
    backward: bool = False,
    pattern: str = "",
) -> dict[str, Any]:
    """Run it some times.

    Args:
        length: tokens, L.
        window: keys that a query sees, itself and those before it; 0 for all keys.
        kernel: of Heedful.
        repeats: how often, after once to warm up.
        heads: H.
        width: E, of a head.
        backward: whether gradients are computed too.
        pattern: a mask as the studio's page of masks reads it, in the place of the window.
    """
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, heads, length, width, requires_grad=backward) for _ in range(3))
    mask: Mask = Causal() & Window(window) if window else Everything()
    if pattern:
        mask = parse_mask(pattern)
    seconds = []
    before = serve.reset_peak()
    for _ in range(repeats + 1):
        positions = Positions.of_self(torch.arange(length)[None])
        began = time.perf_counter()
        with torch.set_grad_enabled(backward):
            output = attend(q, k, v, positions, mask, kernel=kernel, kernels=PROCESSOR_KERNELS)
            if backward:
                torch.autograd.grad(output.sum(), (q, k, v))
        seconds.append(time.perf_counter() - began)
        del output
    return {"seconds": seconds[1:], "memory_mb": round(serve.peak_mb() - before, 2)}


if __name__ == "__main__":
    serve.serve({"case": case})
