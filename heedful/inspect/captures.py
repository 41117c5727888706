"""Tensors of a forward pass by their addresses, and the shapes of everything on the way."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.inspect.subject import looking
from heedful.nn.capture import Capture


def capture(
    model: nn.Module, inputs: Sequence[Tensor], addresses: Iterable[str]
) -> dict[str, np.ndarray]:
    """What a pass computes at addresses, such as `decoder.3.cross.weights`.

    Nothing is left in the model, and the pass computes what it would without. All addresses are in
    the design page on inspection; `shapes` lists a model's.

    Args:
        model: of any class.
        inputs: what its `forward` takes, in that order; `tensors` makes them from readings.
        addresses: in which `*` stands for one part and `**` for any number of parts.

    Returns:
        For each address met, in the order of the pass, its array.

    Raises:
        ModelError: when the model has no such address, naming near ones.
    """
    wanted = Capture(addresses)
    run(model, inputs, wanted)
    return {address: array(value) for address, value in wanted.found.items()}


def run(model: nn.Module, inputs: Sequence[Tensor], wanted: Capture) -> Tensor:
    """A pass with a capture; returns what `forward` does.

    Raises:
        ModelError: when the capture wants an address that the model does not have.
    """
    with looking(model):
        states: Tensor = model(*inputs, capture=wanted)
    _refuse_unmet(wanted)
    return states


def shapes(model: nn.Module, inputs: Sequence[Tensor]) -> dict[str, tuple[int, ...]]:
    """All addresses of a model and the shapes of their tensors for an input.

    Args:
        model: of any class.
        inputs: what its `forward` takes.

    Returns:
        In the order of the pass.
    """
    wanted = _Shapes()
    run(model, inputs, wanted)
    return wanted.shapes


def array(value: Tensor) -> np.ndarray:
    """A tensor as an array; of floats narrower than float32, as float32."""
    value = value.detach().cpu()
    return (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy()


class _Shapes(Capture):
    """Wants everything and keeps nothing but its shape."""

    def __init__(self) -> None:
        super().__init__(["**"])
        self.shapes: dict[str, tuple[int, ...]] = {}

    def keep(self, address: str, value: Tensor) -> None:
        self.shapes[address] = tuple(value.shape)


def _refuse_unmet(wanted: Capture) -> None:
    unmet = wanted.unmet()
    if not unmet:
        return
    near = difflib.get_close_matches(unmet[0], wanted.offered, n=4, cutoff=0.5)
    remedy = f"Near ones: {', '.join(near)}" if near else "`shapes` lists all that there are"
    raise ModelError(f"The model has nothing at the address {unmet[0]!r}", remedy=remedy)
