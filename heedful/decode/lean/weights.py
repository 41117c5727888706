"""The weights of a model directory as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from heedful.decode.lean.arrays import Floats, aligned
from heedful.decode.lean.linear import LinearMap


class Unserved(Exception):
    """Whoever wants this is to use PyTorch, which can do it or says what is wrong."""


class AnyWeights(Protocol):
    """Weights of a model by their names."""

    def take(self, name: str, *shape: int) -> Floats:
        """The weight of this name and shape."""

    def linear(
        self, heights: Mapping[str, int], in_width: int, *, has_bias: bool, int8: bool
    ) -> LinearMap:
        """The linear maps of these names and output widths, as one."""

    def output(self, table: Floats, bias: Floats | None, *, int8: bool) -> LinearMap:
        """The map that scores every token, by its row of a table [V, D] and bias [V]."""


class Weights:
    """A context that hands out the weights of a file, each as what it is asked to be.

    Args:
        file: in safetensors format.
    """

    def __init__(self, file: Path) -> None:
        self._path = file
        self._taken: set[str] = set()

    def __enter__(self) -> Self:
        try:
            self._file = cast("Any", safe_open(str(self._path), framework="np"))
        except (OSError, SafetensorError) as error:
            raise Unserved from error
        self._file.__enter__()
        self._names = set(self._file.keys())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, traceback)

    def take(self, name: str, *shape: int) -> Floats:
        """The weight of this name.

        Raises:
            Unserved: when there is none of this shape in float32.
        """
        if name not in self._names:
            raise Unserved
        described = self._file.get_slice(name)
        if described.get_dtype() != "F32" or tuple(described.get_shape()) != shape:
            raise Unserved
        self._taken.add(name)
        return aligned(self._file.get_tensor(name))

    def linear(
        self, heights: Mapping[str, int], in_width: int, *, has_bias: bool, int8: bool
    ) -> LinearMap:
        """The linear maps of these names and output widths, as one."""
        weight, bias = self._joined(heights, ".weight", in_width), None
        if has_bias:
            bias = self._joined(heights, ".bias")
        return LinearMap(weight, bias, int8=int8)

    def output(self, table: Floats, bias: Floats | None, *, int8: bool) -> LinearMap:
        """The map that scores every token, by its row of a table [V, D] and bias [V]."""
        return LinearMap(table, bias, int8=int8)

    def _joined(self, heights: Mapping[str, int], kind: str, *width: int) -> Floats:
        """Weights of these names and heights, and of one width if any, one below the other."""
        found = [self.take(name + kind, height, *width) for name, height in heights.items()]
        return aligned(np.concatenate(found))

    def finish(self) -> None:
        """Check that all were taken.

        Raises:
            Unserved: when the model of the file has other parts too.
        """
        if self._taken != self._names:
            raise Unserved
