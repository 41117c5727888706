"""The engine that computes a model's passes while it is trained.

Inference makes another object of a model (`heedful.engines.inference.prepare`). Training cannot: an
optimiser changes these very parameters, processes share them, checkpoints name them. So the model
stays, and for the time of an update an engine computes it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import nn

from heedful.engines.training.chunked_loss import ChunkedLosses
from heedful.engines.training.compiled import CompiledEngine
from heedful.engines.training.masked_loss import MaskedLosses
from heedful.engines.training.processor import ProcessorEngine

__all__ = [
    "ChunkedLosses",
    "CompiledEngine",
    "TrainingEngine",
    "prepare_training",
]


class TrainingEngine(Protocol):
    """One model's passes in training."""

    @property
    def losses(self) -> ChunkedLosses:
        """Cross-entropies as the engine computes them."""

    def active(self) -> AbstractContextManager[None]:
        """A context in which calls of the model, and their gradients, are the engine's."""

    def explain(self) -> str:
        """Return which part computes what, and why, for people."""


class DefinitionEngine:
    """The model as it is written, a kernel for each operation; see `TrainingEngine`.

    Args:
        reason: why no other engine computes it, a clause.
    """

    losses = MaskedLosses(compiled=False)

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def active(self) -> AbstractContextManager[None]:
        """See `TrainingEngine.active`."""
        return nullcontext()

    def explain(self) -> str:
        """See `TrainingEngine.explain`."""
        return f"the definition computes everything: {self._reason}"


def prepare_training(model: nn.Module, device: torch.device) -> TrainingEngine:
    """Make the engine that trains a model on a device, uncompiled.

    Args:
        model: to train; it stays as it is, but for the time in which its engine is active.
        device: that its parameters are on.
    """
    if device.type == "cpu":
        return ProcessorEngine(model)
    return DefinitionEngine(f"on {device.type} it is compiled, or computed as it is written")
