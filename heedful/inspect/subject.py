"""A model to look into, with the tokenizers that turn text into its ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from heedful.device import Precision, resolve_device, resolve_precision
from heedful.errors import ModelError
from heedful.interop.model_loading import load_any
from heedful.models.checkpoint import ReadModel
from heedful.models.stack import Stack
from heedful.text.text_tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from heedful.models.build import AnyModel


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and its tokenizers.

    Args:
        model: of any kind.
        tokenizers: None for a model of images.
        precision: of searches for the model's own output, as in the commands that generate.
            Everything else is computed in the type of the weights.
    """

    model: AnyModel
    tokenizers: TokenizerPair | None = None
    precision: Precision | None = None

    @property
    def source(self) -> TextTokenizer:
        """The tokenizer of the encoder's text, or of the only text.

        Raises:
            ModelError: when the model takes no text.
        """
        return self._pair.source

    @property
    def target(self) -> TextTokenizer:
        """The tokenizer of the decoder's text."""
        return self._pair.target

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
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
        read: the function that reads a directory.

    Raises:
        ModelError: when the directory holds no model, or one of a newer schema.
        ConfigError: when there is no such device.
    """
    chosen = resolve_device(device)
    model, tokenizers = read(Path(path))
    precision = resolve_precision("auto", chosen, width=model.spec.width, exact=True)
    return Subject(model.to(chosen).eval(), tokenizers, precision)


def stack_of(model: AnyModel, name: str) -> Stack:
    """Return the encoder or decoder of a model.

    Raises:
        ModelError: when the model has none.
    """
    stacks = model.stacks()
    if name not in stacks:
        raise ModelError(f"The model has no {name}", remedy=f"Look at its {next(iter(stacks))}")
    return stacks[name]


class SubLayer(NamedTuple):
    """A sub-layer of a block.

    Args:
        name: of the block's attribute that holds the module; with `_norm` of its norm.
        module: attention, another mixer or a feed-forward network.
        norm: of its input, or of the residual sum; None without.
        norms_sum: whether that norm is of the residual sum, and not of the input.
        residual: whether the output is added to the stream, and does not replace it.
    """

    name: str
    module: Any
    norm: nn.Module | None
    norms_sum: bool
    residual: bool

    @property
    def is_attention(self) -> bool:
        """True for attention with heads and weights."""
        return hasattr(self.module, "kept")


def sublayers(block: Any) -> dict[str, SubLayer]:
    """Return the sub-layers of a block by their name in addresses, in the order of a pass."""
    return {
        each.address: SubLayer(
            each.name,
            getattr(block, each.name),
            getattr(block, f"{each.name}_norm", None),
            each.placement == "after",
            each.address not in block.cut,
        )
        for each in block.sublayers
    }


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and back into its mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode and record no gradients meanwhile."""
    with evaluating(model), torch.inference_mode():
        yield
