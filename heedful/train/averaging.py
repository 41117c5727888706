"""Averages of weights: over the last or best checkpoints (Vaswani 2017), or moving (EMA)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from heedful.train.checkpoints import Checkpoint


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

    def update(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Take in the weights after a step (from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        new = [weights[name].detach() for name in self.tensors]
        torch._foreach_lerp_(list(self.tensors.values()), new, 1 - decay)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back an average that was saved."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name; tied ones once."""
    kept = set(model.state_dict().keys())
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
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


def average_checkpoints(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in float64.

    Tensors that are not floating point come from the last one.
    """
    assert checkpoints
    total: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        last = checkpoint.model()
        for name, tensor in last.items():
            if tensor.is_floating_point():
                wide = tensor.double()
                total[name] = total[name] + wide if name in total else wide
    return {
        name: (total[name] / len(checkpoints)).to(tensor.dtype) if name in total else tensor
        for name, tensor in last.items()
    }
