"""A model as it is trained on a processor, and beside it by the definition."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn

from heedful.engines.training.training_engine import prepare_training


def on_processor(*models: nn.Module) -> AbstractContextManager[None]:
    """A context in which the engine for processors computes models; outside the definition does."""
    return prepare_training(nn.ModuleList(models), torch.device("cpu")).active()


def _by_definition(*models: nn.Module) -> AbstractContextManager[None]:
    return nullcontext()


either_way = pytest.mark.parametrize(
    "trained", [_by_definition, on_processor], ids=["by the definition", "on a processor"]
)
"""Gives a test the context to train models in, twice."""
