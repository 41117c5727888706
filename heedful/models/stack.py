"""Blocks on top of each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from heedful.models.block import SHOWN_RUNNING, Block, Sight
from heedful.models.spec import StackSpec
from heedful.nn.attention import KeyValues
from heedful.nn.biases import build_bias
from heedful.nn.cache import Cache, GrowingCache, KeyValueCache
from heedful.nn.capture import offer
from heedful.nn.dropout import Dropout
from heedful.nn.native.norm import norm_rows
from heedful.nn.norms import build_norm
from heedful.nn.product import multiplied_in_one
from heedful.nn.unpadding import RealRows, real_rows, rows_in_front

AnyCache = TypeVar("AnyCache", bound=KeyValueCache)

RunningStack = Callable[
    [Tensor, Sight, Sequence[KeyValues], Sequence[AnyCache]],
    tuple[Tensor, tuple[AnyCache, ...]] | None,
]
"""Another way to compute all blocks, where nobody looks into them: of input, sight, memory and
caches; None where it cannot."""

MakeCache = Callable[[Tensor, Tensor], Cache]
"""Makes an empty cache for keys and values [B, K, 0, E] like those given."""


class Stack(nn.Module):
    """An encoder, or a decoder when its blocks attend over a memory.

    Args:
        width: model width D.
        spec: how many blocks of which kind, the final norm and dropout, a shared position bias.
        name: where captures of this stack are addressed, `encoder` or `decoder`.

    Attributes:
        running: computes all blocks faster, once the model is not trained any more.
        runs_natively: whether kernels in C may norm what the last block gives, then.
    """

    def __init__(self, width: int, spec: StackSpec, name: str) -> None:
        super().__init__()
        self.name = name
        self.running: RunningStack[Any] | None = None
        self.runs_natively = False
        self.blocks = nn.ModuleList(
            Block(width, spec.block, spec.kept(layer)) for layer in range(spec.num_layers)
        )
        self.final_norm = build_norm(spec.final_norm, width) if spec.final_norm else None
        self.final_dropout = Dropout(spec.final_dropout)
        attention = spec.block.self_attention
        self.position_bias = (
            build_bias(
                spec.shared_position_bias,
                attention.num_heads,
                attention.head_width or width // attention.num_heads,
            )
            if spec.shared_position_bias
            else None
        )

    def forward(
        self,
        x: Tensor,
        sight: Sight,
        *,
        memory: Sequence[KeyValues] = (),
        caches: Sequence[AnyCache] = (),
    ) -> tuple[Tensor, tuple[AnyCache, ...]]:
        """[B, L, D] through every block.

        Args:
            x: embedded input.
            sight: positions and captures of this pass; a capture may ask for x itself,
                [B, L, D], as `{name}.embedding`, for what block N gives as `{name}.N.output`, and
                for what is returned as `{name}.output`.
            memory: one projected memory per block, from `project_memory`.
            caches: one per block, or none.

        Returns:
            [B, L, D], and the caches with x's tokens appended.
        """
        if self.position_bias is not None:
            sight = dataclasses.replace(sight, biases=(*sight.biases, self.position_bias))
        rows = None if caches else self._rows(x, sight)
        if rows is not None:
            x, sight = rows.pack(x), dataclasses.replace(sight, rows=rows)
        offer(sight.capture, f"{self.name}.embedding", x)
        x, caches = self._through(x, sight, memory, caches)
        if self.final_norm is not None:
            x = norm_rows(x, self.final_norm) if self.runs_natively else self.final_norm(x)
        x = self.final_dropout(x)
        if rows is not None:
            x = rows.unpack(x)
        offer(sight.capture, f"{self.name}.output", x)
        return x, caches

    def _through(
        self,
        x: Tensor,
        sight: Sight,
        memory: Sequence[KeyValues],
        caches: Sequence[AnyCache],
    ) -> tuple[Tensor, tuple[AnyCache, ...]]:
        """What all blocks make of x, and the caches with x's tokens appended."""
        if sight.capture is None and self.runs_in_one:
            assert self.running is not None
            found = self.running(x, sight, memory, caches)
            if found is not None:
                return found
        grown: list[AnyCache] = []
        for index, block in enumerate(self.blocks):
            address = f"{self.name}.{index}"
            x, cache = block(
                x,
                sight,
                memory=memory[index] if memory else None,
                cache=caches[index] if caches else None,
                address=address,
            )
            offer(sight.capture, f"{address}.output", x)
            if cache is not None:
                grown.append(cache)
        return x, tuple(grown)

    @property
    def runs_in_one(self) -> bool:
        """Whether all blocks are run at once, and nothing of them was taken away."""
        if self.running is None:
            return False
        blocks = cast("Iterable[Block]", self.blocks)
        taken = any(block.running is None for block in blocks) if self.runs_natively else False
        return not taken and not any(block.cut for block in blocks)

    def _rows(self, x: Tensor, sight: Sight) -> RealRows | None:
        """Where the rows of a pass over x [B, L, D] stand, if it goes without its padding."""
        positions = sight.self_positions.query
        if self.training:
            if sight.capture is not None:
                return None
            return _learned_rows(x, positions)
        if sight.biases or not all(block.runs_unpadded for block in self.blocks):
            return None
        if sight.capture is not None:
            shown = [f"{i}.{each}" for i in range(len(self.blocks)) for each in SHOWN_RUNNING]
            if sight.capture.concerns(self.name, besides=shown):
                return None
        return rows_in_front(positions)

    def empty_caches(self, rows: int, make: MakeCache = GrowingCache.empty) -> tuple[Cache, ...]:
        """A cache of no tokens for every block.

        Args:
            rows: B.
            make: which kind of cache; called once per block.
        """
        caches: list[Cache] = []
        for block in self.blocks:
            assert isinstance(block, Block)
            attention = block.self_attention
            weight = block.self_attention_norm.weight  # linear layers may have become others
            assert isinstance(weight, Tensor)
            device = weight.device.type
            casts = torch.is_autocast_enabled(device)  # then keys come in its type
            empty = torch.empty(
                (rows, attention.key_heads_left, 0, attention.head_width),
                dtype=torch.get_autocast_dtype(device) if casts else weight.dtype,
                device=weight.device,
            )
            caches.append(make(empty, empty))
        return tuple(caches)

    def project_memory(self, memory: Tensor, positions: Tensor) -> tuple[KeyValues, ...]:
        """Every block's keys and values.

        Args:
            memory: [B, Lk, D].
            positions: [B, Lk] int64; −1 is padding.
        """
        projected: list[KeyValues] = []
        rows = _learned_rows(memory, positions) if self.training else None
        if rows is not None:
            memory = rows.pack(memory)
        for block in self.blocks:
            assert isinstance(block, Block) and block.cross_attention is not None
            projected.append(block.cross_attention.project_memory(memory, rows))
        return tuple(projected)


def _learned_rows(x: Tensor, positions: Tensor) -> RealRows | None:
    """Where the rows of x [B, L, D] stand in training, if it goes without its padding."""
    return real_rows(positions, as_they_stand=multiplied_in_one(x))
