"""Tensors of a forward pass by their addresses, and the shapes of all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.inspect.subject import inference
from heedful.nn.capture import Capture


def capture(
    model: nn.Module, inputs: Sequence[Tensor], addresses: Iterable[str]
) -> dict[str, np.ndarray]:
    """Run a pass and return its tensors at addresses such as `decoder.3.cross.weights`.

    Nothing is left in the model, and the pass computes what it would without a capture. All
    addresses are in the design page on inspection; `shapes` lists those of a model.

    Args:
        model: of any kind.
        inputs: the arguments of its `forward`, in that order; `tensors` makes them from readings.
        addresses: in which `*` stands for one part and `**` for any number of parts.

    Returns:
        The array of each address, in the order of the pass.

    Raises:
        ModelError: when the model has no such address, naming near ones.
    """
    kept = Capture(addresses)
    run(model, inputs, kept)
    return {address: array(value) for address, value in kept.found.items()}


def run(model: nn.Module, inputs: Sequence[Tensor], capture: Capture) -> Tensor:
    """Run a pass with a capture and return the output of `forward`.

    Raises:
        ModelError: when the capture wants an address that the model does not have.
    """
    with inference(model):
        states: Tensor = model(*inputs, capture=capture)
    unmet = capture.unmet()
    if unmet:
        near = difflib.get_close_matches(unmet[0], capture.offered, n=4, cutoff=0.5)
        remedy = f"Near ones: {', '.join(near)}" if near else "`shapes` lists all that there are"
        raise ModelError(f"The model has nothing at the address {unmet[0]!r}", remedy=remedy)
    return states


def shapes(model: nn.Module, inputs: Sequence[Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of the tensor at every address of a model, in the order of the pass.

    Args:
        model: of any kind.
        inputs: the arguments of its `forward`.
    """
    capture = _Shapes()
    run(model, inputs, capture)
    return capture.shapes


def array(value: Tensor) -> np.ndarray:
    """A tensor as an array; floats narrower than float32 become float32."""
    value = value.detach().cpu()
    return (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy()


class _Shapes(Capture):
    """Wants every tensor and keeps only its shape."""

    def __init__(self) -> None:
        super().__init__(["**"])
        self.shapes: dict[str, tuple[int, ...]] = {}

    def keep(self, address: str, value: Tensor) -> None:
        self.shapes[address] = tuple(value.shape)
