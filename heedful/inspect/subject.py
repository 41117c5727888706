"""A model under inspection: its tokenizers, its sub-layers, tensors of a pass, results as JSON."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from heedful.device import Precision, resolve_device, resolve_precision
from heedful.errors import ModelError
from heedful.interop.model_loading import load_any
from heedful.models.checkpoint import ReadModel
from heedful.models.stack import Stack
from heedful.nn.attention.masks import Everything, Mask
from heedful.nn.capture import Capture
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from heedful.models.build import AnyModel


T = TypeVar("T")


class Result:
    """Base class of the dataclasses that analyses return.

    Attributes:
        left_out: names of fields that are too large for JSON.
    """

    left_out: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON data: arrays and tuples as lists, results as objects."""
        fields = vars(self).items()
        return {name: as_json(value) for name, value in fields if name not in self.left_out}


def as_json(value: Any) -> Any:
    """Convert arrays, collections and results, nested to any depth, to JSON data."""
    if hasattr(value, "plain"):
        return value.plain()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    # Sets have no order of their own, and the JSON of equal results must be equal.
    if isinstance(value, frozenset):
        return as_json(sorted(value))
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return value


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and its tokenizers.

    Args:
        model: a model of any kind.
        tokenizers: tokenizers of source and target; None for a model of images.
        precision: precision of searches for the model's own output, as in the commands that
            generate. Everything else is computed in the dtype of the weights.

    Raises:
        ModelError: when the model is no stack of blocks.
    """

    model: AnyModel
    tokenizers: TokenizerPair | None = None
    precision: Precision | None = None

    def __post_init__(self) -> None:
        if not self.model.stacks():
            raise ModelError(
                f"This model has no attention and no blocks; its kind is {self.model.spec.kind!r}",
                remedy="Look into a Transformer, such as a model of images with the network vit",
            )

    @property
    def source(self) -> TextTokenizer:
        """The tokenizer of the encoder's text, or of the text of a model with one stack.

        Raises:
            ModelError: when the model takes no text, or reads its tokens in rows.
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
        embedding = getattr(self.model.spec, "embedding", None)
        if embedding is not None and embedding.row_size:
            raise ModelError(
                "The encoder reads rows of tokens, and inspection shows single ones",
                remedy="Train without --tokens.rows to look inside",
            )
        return self.tokenizers


def load(
    path: str | Path,
    *,
    device: str = "auto",
    tower: Literal["images", "texts"] | None = None,
    read: ReadModel = load_any,
) -> Subject:
    """Load a model of any kind for inspection.

    Args:
        path: model directory, run directory (its best model is loaded) or Hugging Face directory.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        tower: encoder of a model of images and texts; other models have none to choose from.
        read: function that reads a directory.

    Raises:
        ModelError: when the directory holds no model, a model of a newer schema, or one of images
            and texts, of which no tower is chosen.
        ConfigError: when there is no such device.
    """
    chosen = resolve_device(device)
    # Loaded without `prepare`: the inference engine packs weights, and a packed projection can
    # neither be split by head nor ablated.
    model, tokenizers = read(Path(path))
    if model.spec.reads == "images_and_texts":
        if tower is None:
            raise ModelError(
                "This model has two encoders, of images and of texts, and this looks at one",
                where=str(path),
                remedy="Choose one in Python: heedful.inspect.load(…, tower='images')",
            )
        # Each is a whole model of its kind.
        model, tokenizers = getattr(model, tower), tokenizers if tower == "texts" else None
    precision = resolve_precision("auto", chosen, width=model.spec.width, exact=True)
    return Subject(model.to(chosen).eval(), tokenizers, precision)


def stack_of(model: AnyModel, name: str) -> Stack:
    """Return the encoder or decoder of a model; raise a `ModelError` if it has none."""
    stacks = model.stacks()
    if name not in stacks:
        raise ModelError(f"The model has no {name}", remedy=f"Look at its {next(iter(stacks))}")
    return stacks[name]


class InspectedSubLayer(NamedTuple):
    """A sub-layer of a block.

    Args:
        name: attribute of the block that holds the module; `<name>_norm` holds its norm.
        module: attention, another mixer or a feed-forward network.
        norm: norm of the input (pre-norm) or of the residual sum (post-norm); None without.
        output_norm: norm of the output before the residual sum; None without.
        norms_sum: flag of post-norm.
        residual: flag of a residual connection; without it, the output replaces the stream.
        is_cross: flag of a mixer that attends to an encoder's output.
        residual_scale: factor on the residual sum.
    """

    name: str
    module: Any
    norm: nn.Module | None
    output_norm: nn.Module | None
    norms_sum: bool
    residual: bool
    is_cross: bool
    residual_scale: float

    @property
    def label(self) -> str:
        """Name of the sub-layer in a sentence."""
        name = self.name.replace("_", "-")
        return "the feed-forward network" if name == "feedforward" else name

    @property
    def has_heads(self) -> bool:
        """True for mixers with heads, whose attention weights can be shown."""
        # Sub-layers are asked for what they have, not for their class, so that new mixers work
        # here.
        return hasattr(self.module, "num_heads")

    @property
    def has_output_map(self) -> bool:
        """True for mixers with an output projection, in which single heads can be ablated."""
        return self.has_heads and hasattr(self.module, "output")

    @property
    def mask(self) -> Mask:
        """The mask of a mixer with heads; the full mask for mixers without one."""
        mask: Mask | None = getattr(self.module, "mask", None)
        return mask or Everything()

    @property
    def has_softmax(self) -> bool:
        """True for attention with scores and a softmax, whose heads can be cut out."""
        # `kept` lists the heads left by pruning; only softmax attention can be pruned.
        return hasattr(self.module, "kept")

    @property
    def heads(self) -> tuple[int, ...]:
        """Indices of the heads that were not pruned."""
        return heads_of(self.module)


def heads_of(mixer: Any) -> tuple[int, ...]:
    """Return the indices of a mixer's heads that were not pruned."""
    kept = getattr(mixer, "kept", None)
    # Heads keep their index when others are pruned, since ALiBi's slopes and T5's biases depend on
    # it.
    return tuple(range(mixer.num_heads) if kept is None else kept.heads)


def sublayers(block: Any) -> dict[str, InspectedSubLayer]:
    """Return the sub-layers of a block by their name in addresses, in the order of a pass."""
    return {
        each.address: InspectedSubLayer(
            each.name,
            getattr(block, each.name),
            getattr(block, f"{each.name}_norm", None),
            getattr(block, f"{each.name}_output_norm", None),
            each.placement == "after",
            # `cut` is set by an ablation of the residual connection.
            each.address not in block.cut,
            each.reads_memory,
            each.residual_scale,
        )
        for each in block.sublayers
    }


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within a context, and restore its mode afterwards."""
    if not any(module.training for module in model.modules()):
        # Switching the mode of every module takes longer than a pass of a small model.
        yield
        return
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode and record no gradients within a context."""
    with evaluating(model), torch.inference_mode():
        yield


def capture(
    model: nn.Module, inputs: Sequence[Tensor], addresses: Iterable[str]
) -> dict[str, np.ndarray]:
    """Run a pass and return its tensors at addresses such as `decoder.3.cross.weights`.

    Nothing is left in the model, and its output is bit for bit that of a pass without a capture.
    The design page on inspection explains the addresses; `shapes` lists the addresses of a model.

    Args:
        model: a model of any kind.
        inputs: positional arguments of `forward`, as `tensors` makes them from readings.
        addresses: addresses or patterns; `*` matches one component, `**` any number.

    Returns:
        The array of each address, in the order of the pass.

    Raises:
        ModelError: when the model has no such address; near ones are named.
    """
    wanted = Capture(addresses)
    run(model, inputs, wanted)
    return {address: array(value) for address, value in wanted.found.items()}


def run(model: nn.Module, inputs: Sequence[Tensor], capture: Capture) -> Tensor:
    """Run a pass with a capture; raise a `ModelError` for an address that the model lacks."""
    with inference(model):
        states: Tensor = model(*inputs, capture=capture)
    # The addresses of a model are only known from a pass, so an unknown one is noticed after it.
    unmet = capture.unmet()
    if unmet:
        near = difflib.get_close_matches(unmet[0], capture.offered, n=4, cutoff=0.5)
        remedy = f"Near ones: {', '.join(near)}" if near else "`shapes` lists all that there are"
        raise ModelError(f"The model has nothing at the address {unmet[0]!r}", remedy=remedy)
    return states


def shapes(model: nn.Module, inputs: Sequence[Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of the tensor at every address of a model, in the order of the pass.

    Args:
        model: a model of any kind.
        inputs: positional arguments of `forward`.
    """
    capture = Reduced(["**"], lambda _, value: tuple(value.shape))
    run(model, inputs, capture)
    return capture.results


def array(value: Tensor) -> np.ndarray:
    """Return a tensor as an array; floats narrower than float32 become float32."""
    value = value.detach().cpu()
    # NumPy has no bfloat16.
    return (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy()


class Reduced(Capture, Generic[T]):
    """A capture that keeps a function of each tensor instead of the tensor, which is freed.

    Args:
        wanted: addresses or patterns.
        reduce: function of the address and the tensor.

    Attributes:
        results: results by address.
    """

    def __init__(self, wanted: Iterable[str], reduce: Callable[[str, Tensor], T]) -> None:
        super().__init__(wanted)
        self._reduce = reduce
        self.results: dict[str, T] = {}

    def keep(self, address: str, value: Tensor) -> None:
        self.results[address] = self._reduce(address, value)
