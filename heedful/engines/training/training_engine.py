"""The engine that computes a model's passes in training.

For inference an engine is a copy of the model (`heedful.engines.inference.prepare`). Training
cannot use a copy: the optimiser changes the model's own parameters, processes share them, and
checkpoints name them. So the model stays, and an engine computes it for the time of an update.
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
        """A context in which the engine computes calls of the model and their gradients."""

    def explain(self) -> str:
        """Return a text for people: the kernel of each sub-layer, and the reason for it."""


class DefinitionEngine:
    """Training by the definition, one PyTorch kernel per operation; see `TrainingEngine`.

    Args:
        reason: clause that says why no other engine computes the model.
    """

    # A GPU would make the host wait for the number of real positions.
    losses = MaskedLosses(compiled=False)

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def active(self) -> AbstractContextManager[None]:
        return nullcontext()

    def explain(self) -> str:
        return f"the definition computes everything: {self._reason}"


def prepare_training(model: nn.Module, device: torch.device) -> TrainingEngine:
    """Make the engine that trains a model on the device of its parameters, uncompiled."""
    # Compiled engines are made where compiling was chosen (`heedful.train.update`).
    if device.type == "cpu":
        return ProcessorEngine(model)
    return DefinitionEngine(f"on {device.type} it is compiled, or computed as it is written")
