"""Activation checkpointing: a block's activations are dropped and recomputed for its gradients.

Only the input of a block is kept (Chen 2016). The backward pass computes the block a second time
with the same random numbers, so losses and gradients are equal bit for bit. The model's definition
knows nothing of it, and its parameters keep their names.

Selective checkpointing (Korthikanti 2022) also keeps the results of matmuls with weights, and
recomputes only operations that are cheap for the size of their results: norms, attention between
projections, activations, dropout. Sub-layers that kernels in C compute as a whole are kept, since
these kernels recompute attention weights and dropout anyway. In compiled blocks the compiler makes
the same choice. Recurrent layers keep nothing.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from heedful.engines.training.fused_sublayer import LearnedKeyValues
from heedful.engines.training.products import KeptProducts
from heedful.errors import ConfigError
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context
from heedful.nn.work import Checkpointing

_aten = torch.ops.aten
_PRODUCTS = [_aten.mm.default, _aten.addmm.default, _aten.convolution.default]
"""Operations whose results are kept. Matmuls of attention (`bmm`) are not among them."""


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model's stacks, in the order of a pass; none without stacks."""
    stacks: Mapping[str, Any] = getattr(model, "stacks", dict)()
    return [block for stack in stacks.values() for block in stack.blocks]


def apply_checkpointing(model: nn.Module, mode: Checkpointing) -> None:
    """Let every block drop its activations in training, and recompute them for gradients.

    It must be called before the model is sharded or compiled. Parameters and their names stay.

    Args:
        model: model to train.
        mode: `full` keeps the input of each block, `selective` also the results of matmuls with
            weights; `none` changes nothing.

    Raises:
        ConfigError: when the model has no blocks.
    """
    if mode == "none":
        return
    blocks = blocks_of(model)
    if not blocks:
        raise ConfigError(
            "This model has no blocks whose tensors could be computed again",
            where=f"checkpointing = {mode}",
            remedy="Use checkpointing = none",
        )
    for block in blocks:
        # PyTorch's recurrent layers overwrite the results of their matmuls: none could be kept.
        recurrent = any(isinstance(each, nn.RNNBase) for each in block.modules())
        selective = mode == "selective" and not recurrent
        # Set in the instance, where it hides the class's method: engines exchange the class.
        vars(block)["forward"] = CheckpointedForward(block, selective)


@dataclass(frozen=True)
class CheckpointedForward:
    """A checkpointed forward pass, which replaces that of a block.

    Args:
        block: the block, whose activations are kept outside of training mode.
        selective: flag that results of matmuls with weights are kept.
        compiled: compiled pass of the block; None for the `forward` of its class.
    """

    block: nn.Module
    selective: bool
    compiled: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        """See the block's own `forward`."""
        if not self.block.training or not torch.is_grad_enabled():
            return self._forward(*inputs)
        if not self.selective:
            return checkpoint(_Repeatable(self._forward, None), *inputs, use_reentrant=False)
        contexts = functools.partial(create_selective_checkpoint_contexts, _PRODUCTS)
        run = _Repeatable(self._forward, KeptProducts())
        return checkpoint(run, *inputs, use_reentrant=False, context_fn=contexts)

    def of_compiled(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the checkpointed form of a compiled pass, which may recompute cheap operations."""
        return forward if self.selective else replace(self, compiled=forward)

    def _forward(self, *inputs: Any) -> Any:
        if self.compiled is not None:
            return self.compiled(*inputs)
        # Looked up at each call: during an update the class is the engine's.
        return type(self.block).forward(self.block, *inputs)


class _Repeatable:
    """A pass over a block that is computed twice.

    Autograd may recompute it in another thread, so the second pass runs in the context variables of
    the first: they decide which kernels multiply and whether padding is left out. Values that the
    passes share get nothing from the block: keys and values of a memory, split inside of it, would
    exist already in the second pass, and a capture would keep the block's tensors alive.
    """

    def __init__(self, forward: Callable[..., Any], kept: KeptProducts | None) -> None:
        self._forward = forward
        self._kept = kept
        self._settings = contextvars.copy_context()
        self._again = False

    def __call__(self, *inputs: Any) -> Any:
        fresh = [_fresh(each, self._again) for each in inputs]
        again, self._again = self._again, True
        return self._settings.run(self._run, again, fresh)

    def _run(self, again: bool, inputs: list[Any]) -> Any:
        with nullcontext() if self._kept is None else self._kept.used(again=again):
            return self._forward(*inputs)


def _fresh(value: Any, again: bool) -> Any:
    """Return an input of a block with copies of the values that a pass changes."""
    # The first pass fills the caller's capture; the second one fills a copy that is thrown away.
    if isinstance(value, Context) and value.capture is not None and again:
        return replace(value, capture=Capture(value.capture.wanted))
    if isinstance(value, LearnedKeyValues):
        return replace(value)  # a new object without the cached split
    if isinstance(value, tuple | list):
        return tuple(_fresh(each, again) for each in value)
    return value
