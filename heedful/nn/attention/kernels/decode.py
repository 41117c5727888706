"""A few queries against a cache, as in generation: only the slots in use are read.

A static cache is mostly empty at first, and a window sees little of a long one. The slots from the
first to the last that some query sees are a slice, which copies nothing; where a pattern with gaps
sees few of them, they are gathered.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from heedful.nn.attention.kernels.matmul import Matmul
from heedful.nn.attention.kernels.request import MAX_DECODED, AttentionRequest
from heedful.nn.attention.masks import Mask
from heedful.nn.positions import Positions

_GATHERED = 0.25
"""Largest share of slots in use for which a copy of them is worth its time."""


class Decode:
    """Attention that reads only the cache slots in use.

    Args:
        matmul: kernel that attends to these slots.
    """

    name = "decode"

    def __init__(self, matmul: Matmul) -> None:
        self._matmul = matmul

    def unsupported(self, request: AttentionRequest) -> str | None:
        """Refuse requests of many queries."""
        queries = request.q.shape[2]
        if queries > MAX_DECODED:
            return f"it is made for at most {MAX_DECODED} queries, not {queries}"
        return None

    def run(self, request: AttentionRequest) -> Tensor:
        """Compute attention over the keys that some query sees."""
        if not request.readable:  # the slots in use are found by reading the positions
            return self._matmul.run(request)
        positions, mask = request.positions, request.mask
        slots, cut = positions.derive(("in use", mask), lambda: _cut(positions, mask))
        # A loop over key heads, which avoids one copy, was slower than this batched matmul at
        # nearly all sizes timed (docs/design/log.md).
        if cut.key.shape[1] == request.k.shape[2]:
            return self._matmul.run(request)
        k, v = request.k[:, :, slots], request.v[:, :, slots]
        return self._matmul.run(replace(request, k=k, v=v, positions=cut))


def _cut(positions: Positions, mask: Mask) -> tuple[slice | Tensor, Positions]:
    """Return the slots to read, as a range or as an index of few, and their positions."""
    # One range for all rows and heads together, so that a single slice serves the whole batch.
    used = positions.visible(mask).flatten(0, 2).any(0).nonzero()[:, 0]
    start, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    few = len(used) <= _GATHERED * (stop - start)
    slots: slice | Tensor = used if few else slice(start, stop)
    return slots, positions.at_keys(slots)
