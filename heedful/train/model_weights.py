"""The weights of a model in training by name: read, loaded, swapped for a while, averaged."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def lies_in_parts(tensor: Tensor | None) -> TypeGuard[DTensor]:
    """Return True for a DTensor, of which each process holds a part."""
    # Loading DTensor takes half a second; where the module is not loaded, no such tensor exists.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


class MovingAverage:
    """An exponential moving average of the weights, kept in float32.

    The decay is min(decay, (1 + step) / (10 + step)), as in TensorFlow's moving average, so that
    the random initial weights are soon forgotten.

    Args:
        weights: initial weights by parameter name.
        decay: share of the old average kept at each step.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def update(
        self, weights: Mapping[str, Tensor], step: int, skipped: Tensor | None = None
    ) -> None:
        """Add the weights after a step to the average.

        Args:
            weights: weights by parameter name.
            step: number of the update, from 1.
            skipped: [] on the weights' device, 1 if the update was skipped, 0 if it was made; None
                where it certainly was made.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        new = [_local(weights[name].detach()) for name in self.tensors]
        averages = [_local(each) for each in self.tensors.values()]
        if skipped is None:
            torch._foreach_lerp_(averages, new, 1 - decay)
            return
        # A factor of 0 leaves the average unchanged without asking the device whether the step was
        # made.
        change = torch._foreach_sub(new, averages)
        torch._foreach_mul_(change, (1 - decay) * (1 - skipped))
        torch._foreach_add_(averages, change)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore a saved average."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


def _local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds; the whole tensor without shards."""
    return tensor.to_local() if lies_in_parts(tensor) else tensor


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers by name; tied parameters appear once."""
    # `state_dict` is not used, as with shards it gathers every tensor in one piece.
    buffers = {
        f"{address}.{name}" if address else name: buffer
        for address, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }
    return {name: tensor.detach() for name, tensor in model.named_parameters()} | buffers


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model in place; the names must match exactly."""
    own = weights_of(model)
    assert own.keys() == weights.keys(), own.keys() ^ weights.keys()
    with torch.no_grad():
        for name, tensor in own.items():
            # Copied, not assigned: optimisers, shards and recorded graphs hold these very tensors.
            tensor.copy_(weights[name])


@contextmanager
def using(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """A context in which the model has other weights; its own are restored at the end."""
    own = {name: tensor.clone() for name, tensor in weights_of(model).items()}
    load_weights(model, weights)
    try:
        yield
    finally:
        load_weights(model, own)
