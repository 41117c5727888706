"""The weights of a model in training by name: taken, put back, exchanged for a while, averaged."""

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
    """True for a tensor of which each process has a part.

    What makes such tensors takes half a second to load; where it is not loaded there is none.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


class MovingAverage:
    """An exponential moving average of the weights, kept in float32.

    The decay grows to its full value as (1 + step) / (10 + step), so that the random weights of the
    start are soon forgotten.

    Args:
        weights: the weights to start from.
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
            weights: by name.
            step: number of the update, from 1.
            skipped: [] on the weights' device, 1 if the update was not made, 0 if it was; where it
                is known that it was made, None.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        new = [_here(weights[name].detach()) for name in self.tensors]
        averages = [_here(each) for each in self.tensors.values()]
        if skipped is None:
            torch._foreach_lerp_(averages, new, 1 - decay)
            return
        change = torch._foreach_sub(new, averages)
        torch._foreach_mul_(change, (1 - decay) * (1 - skipped))
        torch._foreach_add_(averages, change)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore a saved average."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


def _here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has; all of it, unless it lies in shards."""
    return tensor.to_local() if lies_in_parts(tensor) else tensor


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name; tied ones once."""
    # Not by the names in a state dict: making one puts tensors in shards together, all of them.
    buffers = {
        f"{address}.{name}" if address else name: buffer
        for address, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }
    return {name: tensor.detach() for name, tensor in model.named_parameters()} | buffers


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model; the names must match exactly."""
    own = weights_of(model)
    assert own.keys() == weights.keys(), own.keys() ^ weights.keys()
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


@contextmanager
def using(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """A context in which the model has other weights; leaving it restores its own exactly."""
    own = {name: tensor.clone() for name, tensor in weights_of(model).items()}
    load_weights(model, weights)
    try:
        yield
    finally:
        load_weights(model, own)
