"""Classes of a compiled model: attention planned for a type of device, block masks made ahead.

The type of device is a value, so the plan for CUDA can be queried and traced on a processor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, replace
from typing import Any

from torch import Tensor, nn

from heedful.engines.class_exchange import Kinds
from heedful.models.stack import Stack
from heedful.nn.attention.attend import KernelSet
from heedful.nn.attention.kernels.flex import Flex, block_mask
from heedful.nn.attention.kernels.matmul import Matmul
from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    Kernel,
    is_causal,
    of_one_text,
    shows_all,
)
from heedful.nn.attention.kernels.table import KERNELS
from heedful.nn.attention.masks import Causal, Everything, Mask
from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
from heedful.nn.mixer import Context
from heedful.nn.positions import Positions


def obstacle_in(model: nn.Module) -> str | None:
    """Return a clause that says why a model cannot be compiled; None if it can."""
    for module in model.modules():
        # Sizes that depend on values break a graph, and a block has to be a single graph.
        if hasattr(module, "experts"):
            return "which expert works on a token no graph can tell beforehand"
        if isinstance(module, nn.RNNBase):
            return "PyTorch's recurrent layers read texts of lengths that no graph can tell"
    return None


def _is_plain(positions: Positions, mask: Mask) -> bool:
    """Return whether rows are whole sequences and FlashAttention's causal flag can be the mask."""
    return positions.counted and of_one_text(positions, mask) in (Causal(), Everything())


# The blocks of `flex_attention` are 128 × 128 pairs however few tokens a row has. For sentences of
# about 30 tokens they took 90 of the 157 ms of an update (`transformer-big`, 25,000 positions,
# H100).
_BLOCK = 128


def _fills_block(num_queries: int, num_keys: int) -> bool:
    """Return whether queries or keys are more than a block of `flex_attention` holds."""
    return max(num_queries, num_keys) > _BLOCK


def _is_free(request: AttentionRequest) -> bool:
    """Return whether FlashAttention, the fastest kernel, can serve: no biases, cap or mask."""
    positions, mask = request.positions, request.mask
    plain = shows_all(positions, mask, request.readable) or is_causal(request)
    return plain and len(request.biases) == 0 and request.softcap is None


class InlineMatmul(Matmul):
    """Two products of matrices in a larger graph, between which mask, biases and softmax fuse."""

    def advantage(self, request: AttentionRequest) -> str | None:
        """Return a reason for short rows, whose scores are few."""
        if _is_free(request) or _fills_block(request.q.shape[2], request.k.shape[2]):
            return None
        return f"short: at most {_BLOCK} tokens, and mask and softmax are one kernel"


class InlineFlex(Flex):
    """`flex_attention` inside of a larger graph, whose compiler makes the kernel."""

    def advantage(self, request: AttentionRequest) -> str | None:
        """Return a reason where other kernels would make a mask or a bias in memory."""
        # In a compiled block masks and biases become code of the kernel, and are never in memory.
        if _is_free(request) or not _fills_block(request.q.shape[2], request.k.shape[2]):
            return None
        return "mask, biases and cap are made in the kernel, and hidden blocks are skipped"

    def attention(self) -> Callable[..., Any]:
        """See `Flex.attention`."""
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention


@functools.cache
def compiled_kinds(device: str) -> Kinds:
    """Return the engine's classes for a type of device, whose attention follows its plan."""
    by_name: dict[str, Kernel] = {**KERNELS}
    if device == "cuda":
        for kernel in (InlineMatmul(), InlineFlex()):
            by_name[kernel.name] = kernel

    def table() -> dict[str, Kernel]:
        return by_name

    kernels = KernelSet(table, device)
    kinds: dict[type[nn.Module] | str, type[nn.Module] | str] = {
        kind: type(f"Compiled{kind.__name__}", (kind,), {"kernels": kernels})
        for kind in (SelfAttention, CrossAttention)
    }
    return {**kinds, Stack: PlannedStack}


class TracedPositions(Positions):
    """Positions that keep nothing derived from them.

    A tensor that the first block kept would be another input of the second block, which would then
    need a graph of its own.
    """

    @classmethod
    def of(cls, positions: Positions, masks: Iterable[Mask]) -> TracedPositions:
        """Return positions with the block masks of layers that run `flex_attention`."""
        values = {each.name: getattr(positions, each.name) for each in fields(positions)}
        derived = {("flex", mask): block_mask(positions, mask) for mask in masks}
        result = cls(**{name: values[name] for name in _INIT_FIELDS})
        # Set in spite of the frozen dataclass: the group and derived values are no arguments of
        # `Positions`.
        vars(result).update(group=positions.group, _derived=derived)
        return result

    def keep(self, name: Hashable, value: Any) -> Any:
        return value


_INIT_FIELDS = tuple(each.name for each in fields(Positions) if each.init)


class PlannedStack(Stack):
    """A stack that makes the block masks of its layers before the first of them runs."""

    def _enter(self, x: Tensor, context: Context) -> Context:
        if context.capture is None:
            own, memory = self._traced(context.positions, False), context.memory_positions
            if memory is not None:
                memory = self._traced(memory, True)
            context = replace(context, positions=own, memory_positions=memory)
        return super()._enter(x, context)

    def _traced(self, positions: Positions, over_memory: bool) -> TracedPositions:
        attentions = [
            part
            for block in self._blocks
            for part in block.parts()
            if getattr(part, "over_memory", None) is over_memory
        ]
        # A set: layers with equal masks share one block mask, made once a batch.
        masks = {positions.within_segments(each.mask) for each in attentions}
        planned = any(each.kernels.device == "cuda" for each in attentions)
        planned = planned and _fills_block(positions.query.shape[1], positions.key.shape[1])
        return TracedPositions.of(
            positions, [m for m in masks if planned and not _is_plain(positions, m)]
        )
