"""Activation checkpointing: a block's tensors are forgotten, and made again for its gradients.

Only what goes into a block is kept (Chen 2016); its pass is computed a second time when its
gradients are, with the same random numbers, so that losses and gradients are the same bit for bit.
The model's definition knows nothing of it, and its parameters keep their names.

Selectively (Korthikanti 2022), the products of matrices with weights are kept besides, and only
what is cheap for its size is made again: norms, attention between projections, activations,
dropout. Kernels in C that do a whole sub-layer are left as they are, since they make attention
weights and dropout again in any case; and so are compiled blocks, whose compiler chooses likewise.
Of recurrent layers nothing is kept.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
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
"""Operations whose results are kept. Products of scores and values have another name, `bmm`."""


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model's stacks, in the order of a pass.

    Args:
        model: any; without stacks it has none.
    """
    stacks: Mapping[str, Any] = getattr(model, "stacks", dict)()
    return [block for stack in stacks.values() for block in stack.blocks]


def apply_checkpointing(model: nn.Module, mode: Checkpointing) -> None:
    """Have every block forget what it computed in training, and compute it again for gradients.

    Before the model is sharded or compiled; its parameters and their names stay as they are.

    Args:
        model: to train.
        mode: `full` keeps the input of each block, `selective` the products of matrices besides;
            `none` changes nothing.

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
        # PyTorch computes recurrent layers on top of their products, in place: none could be kept.
        recurrent = any(isinstance(each, nn.RNNBase) for each in block.modules())
        selective = mode == "selective" and not recurrent
        vars(block)["forward"] = CheckpointedForward(block, selective)


@dataclass(frozen=True)
class CheckpointedForward:
    """The forward pass of a block, which takes the place of its own.

    Args:
        block: whose mode counts: outside training nothing is forgotten.
        selective: whether products of matrices are kept.
        compiled: the block's pass as a graph; None for that of its class, an engine's in training.
    """

    block: nn.Module
    selective: bool
    compiled: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        """As the block's own pass."""
        if not self.block.training or not torch.is_grad_enabled():
            return self._forward(*inputs)
        contexts = _selective_contexts if self.selective else _no_contexts
        run = _Repeatable(self._forward, KeptProducts() if self.selective else None)
        return checkpoint(run, *inputs, use_reentrant=False, context_fn=contexts)

    def of_compiled(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return what takes the place of a compiled pass of this block.

        Args:
            forward: the compiled pass, which keeps products and computes again what is cheap.
        """
        return forward if self.selective else replace(self, compiled=forward)

    def _forward(self, *inputs: Any) -> Any:
        if self.compiled is not None:
            return self.compiled(*inputs)
        return type(self.block).forward(self.block, *inputs)


class _Repeatable:
    """A pass over a block that is computed twice.

    The second time, which may be in another thread, it finds the settings of the first: whose
    kernels multiply, whether padding stays. Nothing it makes is left in values that passes share:
    keys and values of a memory, split in a block, would be there already the second time, and a
    capture would hold on to the block's tensors.
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
        keeping = nullcontext() if self._kept is None else self._kept.used(again=again)
        with keeping:
            return self._forward(*inputs)


def _fresh(value: Any, again: bool) -> Any:
    """Return an input of a block as a pass over it may change it."""
    if isinstance(value, Context) and value.capture is not None and again:
        return replace(value, capture=Capture(value.capture.wanted))
    if isinstance(value, LearnedKeyValues):
        return replace(value)  # not split yet
    if isinstance(value, tuple | list):
        return tuple(_fresh(each, again) for each in value)
    return value


Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""Of the first pass and of the second."""


def _no_contexts() -> Contexts:
    return nullcontext(), nullcontext()


def _selective_contexts() -> Contexts:
    contexts: Contexts = create_selective_checkpoint_contexts(_PRODUCTS)
    return contexts
