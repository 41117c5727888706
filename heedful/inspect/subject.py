"""A model to look into, with what turns text into its ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from heedful.device import Precision, resolve_device, resolve_precision
from heedful.errors import ModelError
from heedful.interop.loading import load_any
from heedful.models.checkpoint import ReadModel
from heedful.models.stack import Stack
from heedful.text.pair import TokenizerPair
from heedful.text.protocol import TextTokenizer

if TYPE_CHECKING:
    from heedful.models.build import AnyModel


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and its tokenizers.

    Args:
        model: of any class.
        tokenizers: None for a model of images.
        precision: in which the model's own output is searched for, as the commands that generate
            do. Everything that is looked at is computed in the type of the weights.
    """

    model: AnyModel
    tokenizers: TokenizerPair | None = None
    precision: Precision | None = None

    @property
    def source(self) -> TextTokenizer:
        """The tokenizer of what an encoder reads, or of the only text.

        Raises:
            ModelError: when the model takes no text.
        """
        return self._pair.source

    @property
    def target(self) -> TextTokenizer:
        """The tokenizer of what a decoder writes."""
        return self._pair.target

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def _pair(self) -> TokenizerPair:
        if self.tokenizers is None:
            raise ModelError(
                f"This model takes no text; its kind is {self.model.spec.kind!r}",
                remedy="Give it images, by `see`",
            )
        return self.tokenizers


def load(path: str | Path, *, device: str = "auto", read: ReadModel = load_any) -> Subject:
    """Load any model to look into.

    Args:
        path: a model directory, a run directory (its best model) or a Hugging Face directory.
        device: auto, cpu, cuda, cuda:1 or mps.
        read: what reads a directory.

    Raises:
        ModelError: when the directory holds no model, or one of a newer schema.
        ConfigError: when the device is not to be had.
    """
    where = resolve_device(device)
    model, tokenizers = read(Path(path))
    precision = resolve_precision("auto", where, width=model.spec.width, exact=True)
    return Subject(model.to(where).eval(), tokenizers, precision)


def stack_of(model: nn.Module, name: str) -> Stack:
    """The encoder or decoder of a model.

    Args:
        model: of any class.
        name: `encoder` or `decoder`.

    Raises:
        ModelError: when the model has none.
    """
    stack = getattr(model, name, None)
    if not isinstance(stack, Stack):
        other = next(n for n in ("encoder", "decoder") if isinstance(getattr(model, n, 0), Stack))
        raise ModelError(f"The model has no {name}", remedy=f"Look at its {other}")
    return stack


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; as before afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def looking(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients; as before afterwards."""
    with evaluating(model), torch.inference_mode():
        yield
