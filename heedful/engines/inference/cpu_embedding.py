"""Token embedding and norms of an engine: one pass over the rows for each, by kernels in C."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.engines.class_exchange import EnginePart
from heedful.engines.host_parts import encoding_table
from heedful.kernels.library import address, kernels
from heedful.kernels.structs import Norm
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.norms import is_rms, norm_parts


class CpuInputEmbedding(EnginePart, InputEmbedding):
    """Input embedding by kernels in C, or by the definition where positions have no table."""

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        table: TokenEmbedding,
        segments: Tensor | None = None,
    ) -> Tensor:
        """See `InputEmbedding.forward`."""
        if self.by_definition:
            return super().forward(ids, positions, table, segments)
        x = None
        if self.segments is None:  # the kernel adds one table of encodings, not two
            x = self._by_kernels(ids, positions, table)
        if x is None:
            x = self.embed(ids, positions, table, segments)
        return x if self.norm is None else norm_rows(x, self.norm)

    def _by_kernels(self, ids: Tensor, positions: Tensor, table: TokenEmbedding) -> Tensor | None:
        encodings = None
        if self.positions is not None:
            encodings = encoding_table(self.positions, positions)
            if encodings is None:
                return None
        return embed(ids, positions, table.weight, self.scale, encodings)


def embed(
    ids: Tensor,
    positions: Tensor,
    table: Tensor,
    scale: float,
    encodings: tuple[Tensor, int] | None,
) -> Tensor | None:
    """Compute `scale * table[ids]` plus the encodings of positions in one pass.

    Args:
        ids: token ids [B, L] int64.
        positions: positions [B, L] int64; a position of −1 adds no encoding.
        table: embedding vectors [V, D].
        scale: factor of the vectors.
        encodings: encodings [P, D] and their row of position 0; or None.

    Returns:
        [B, L, D] float32; None where an id or a position lies past its table, or there are no
        kernels for such tensors.
    """
    rows, first = (None, 0) if encodings is None else encodings
    # A bfloat16 model has bfloat16 tables, which only PyTorch looks up.
    for each in (table, rows):
        if each is not None and (each.dtype != torch.float32 or not each.is_contiguous()):
            return None
    if kernels() is None or table.device.type != "cpu":
        return None
    ids, positions = ids.contiguous(), positions.contiguous()
    x = torch.empty((*ids.shape, table.shape[1]))
    done = kernels().heedful_embed(
        *(ids.data_ptr(), positions.data_ptr(), ids.numel()),
        *(table.data_ptr(), len(table), scale),
        *(address(rows), 0 if rows is None else len(rows), first),
        *(table.shape[1], x.data_ptr()),
    )
    # The kernel checks ids and positions as it reads them, and the definition raises the error.
    return x if done else None


def norm_rows(x: Tensor, norm: nn.Module) -> Tensor:
    """Norm x [..., D] by a kernel, or by the module where kernels do not serve."""
    weight, bias, epsilon = norm_parts(norm)
    # The kernel knows an RMS norm by its missing bias, so a layer norm needs one.
    is_known = (bias is None) == is_rms(norm)
    if weight is None or not is_known or not _serves(x, weight):
        y: Tensor = norm(x)
        return y
    x = x.contiguous()
    y, width = torch.empty_like(x), x.shape[-1]
    struct = Norm(address(weight), address(bias), epsilon)
    kernels().heedful_norm(struct, x.data_ptr(), x.numel() // width, width, y.data_ptr())
    return y


def _serves(*tensors: Tensor) -> bool:
    if kernels() is None:
        return False
    return all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
