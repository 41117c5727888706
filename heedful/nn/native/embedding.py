"""What a model reads of ids, in one pass over its rows."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.nn.native.library import address, kernels


def embed(
    ids: Tensor, positions: Tensor, table: Tensor, scale: float, places: tuple[Tensor, int] | None
) -> Tensor | None:
    """`scale * table[ids]`, and the encodings of positions added.

    Args:
        ids: [B, L] int64.
        positions: [B, L] int64; nothing is added where they are −1.
        table: [V, D].
        scale: of its rows.
        places: [P, D] encodings, and the row of position 0; nothing is added if None.

    Returns:
        [B, L, D] float32; None where an id or a position lies past its table, or there are no
        kernels for such tensors.
    """
    encodings, first = (None, 0) if places is None else places
    for each in (table, encodings):
        if each is not None and (each.dtype != torch.float32 or not each.is_contiguous()):
            return None
    if kernels() is None or table.device.type != "cpu":
        return None
    ids, positions = ids.contiguous(), positions.contiguous()
    x = torch.empty((*ids.shape, table.shape[1]))
    done = kernels().heedful_embed(
        *(ids.data_ptr(), positions.data_ptr(), ids.numel()),
        *(table.data_ptr(), len(table), scale),
        *(address(encodings), 0 if encodings is None else len(encodings), first),
        *(table.shape[1], x.data_ptr()),
    )
    return x if done else None
