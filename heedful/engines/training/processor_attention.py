"""Attention of blocks while they are trained on a processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.engines.class_exchange import has_no_hooks
from heedful.engines.host_parts import PROCESSOR_KERNELS
from heedful.engines.training.fused_sublayer import (
    Heads,
    LearnedKeyValues,
    Parameters,
    ProjectedMemory,
    fused_sublayer,
)
from heedful.engines.training.products import is_plain, may_fuse_sublayer
from heedful.engines.unpadding import rows_in_use, rows_of
from heedful.nn.attention.cache import KeyValues
from heedful.nn.attention.multi_head import Attention, CrossAttention, SelfAttention

if TYPE_CHECKING:
    from heedful.engines.training.residual_norm import ResidualNorm
    from heedful.nn.attention.relative_positions import Bias
    from heedful.nn.mixer import Context, Memory


class _FusedAttention(Attention):
    """Attention whose whole sub-layer kernels in C may compute in one call."""

    kernels = PROCESSOR_KERNELS
    rows = "maps"

    def fusion_refusal(self, biases: Sequence[Bias]) -> str | None:
        """Return the reason why no call in C serves with these shared biases; None if one does."""
        if self.rotary is not None or self.query_norm is not None:
            return "it neither rotates nor norms queries and keys"
        if self.softcap is not None or self.relative_values is not None:
            return "it knows no soft cap and no relative values"
        if self.biases_with(biases):
            return "it adds no position biases"
        if self.regroup is not None:
            return "pruning left key heads that unequally many query heads share"
        if self.dropout:
            return "it drops no attention weights"
        # The call bypasses the modules of the maps, so hooks and parametrisations would not run.
        own = getattr(self.projection, "multiplies_by_kernels", False) and is_plain(self.output)
        if not own or not has_no_hooks(self, self.projection):
            return "a map is divided among processes, parametrised or watched"
        return None

    def fuse(
        self, x: Tensor, y: Tensor, after: ResidualNorm, context: Context, state: Any
    ) -> tuple[Tensor, Tensor] | None:
        """Compute the whole sub-layer in one call; see `fused_sublayer`."""
        positions, memory = context.positions, None
        if state is not None:
            # Keys and values that were split already, as while decoding, have no `memory`.
            memory = getattr(state, "memory", None)
            if memory is None or context.memory_positions is None:
                return None
            # In cross-attention these positions are those of queries and of keys.
            positions = context.memory_positions
        heads = Heads(
            self.heads_left,
            self.key_heads_left,
            self.scale,
            positions,
            positions.within_segments(self.mask),
            rows_of(context),
            memory,
        )
        first = Parameters(self.projection.weight, self.projection.bias)
        second = Parameters(self.output.weight, self.output.bias)
        return fused_sublayer(x, y, first, heads, second, after)


class ProcessorSelfAttention(_FusedAttention, SelfAttention):
    """Self-attention on a processor."""


class ProcessorCrossAttention(_FusedAttention, CrossAttention):
    """Attention over a memory; keys and values stay in one tensor until a kernel splits them."""

    reads_rows = True

    def read(self, memory: Memory) -> Any:
        projection, rows = self.memory_projection, getattr(memory, "rows", None)
        fuses = self.training and torch.is_grad_enabled() and may_fuse_sublayer(memory.states)
        # FSDP gathers the projection's shards in its hooks, which a call of `product` bypasses.
        if fuses and has_no_hooks(projection):
            projected = ProjectedMemory(projection.product(memory.states), rows)
            return LearnedKeyValues(projected, self._split)
        # The projection of the definition unpacks its output by this variable.
        token = rows_in_use.set(rows)
        try:
            return super().read(memory)
        finally:
            rows_in_use.reset(token)

    def _split(self, memory: ProjectedMemory) -> KeyValues:
        fused = memory.projected
        if memory.rows is not None:
            fused = memory.rows.unpack(fused)
        key, value = self.memory_projection.split(fused)
        return KeyValues(self.keys_of(key).contiguous(), self.values_of(value).contiguous())
