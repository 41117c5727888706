"""The weights of a model directory as NumPy arrays, packed for kernels in C."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from heedful.engines.packed_weight import Floats, PackedWeight, aligned
from heedful.kernels.structs import Linear


class Unsupported(Exception):
    """The NumPy runtime cannot run a model; PyTorch can, or says what is wrong."""


class FileWeights:
    """A context that reads the weights of a file one by one; see `WeightSource`.

    Args:
        file: in safetensors format.
        int8: whether linear layers are packed in 8 bits.
    """

    def __init__(self, file: Path, *, int8: bool) -> None:
        self._path = file
        self._int8 = int8
        self._read: set[str] = set()
        self._arrays: dict[str, Floats] = {}
        self._packed: list[PackedWeight] = []

    def __enter__(self) -> Self:
        try:
            self._file = cast("Any", safe_open(str(self._path), framework="np"))
        except (OSError, SafetensorError) as error:
            raise Unsupported from error
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

    def address(self, name: str, *shape: int) -> int:
        """See `WeightSource.address`.

        Raises:
            Unsupported: when there is no float32 tensor of this name and shape.
        """
        return self._array(name, *shape).ctypes.data

    def packed(self, maps: Mapping[str, int], in_width: int, *, has_bias: bool) -> Linear:
        """See `WeightSource.packed`."""
        weight = aligned(self._joined(maps, ".weight", in_width))
        bias = aligned(self._joined(maps, ".bias")) if has_bias else None
        return self._pack(weight, bias)

    def projection(self, table: str, bias: str | None, rows: int, width: int) -> Linear:
        """See `WeightSource.projection`."""
        weight = self._arrays.get(table)
        if weight is None:  # a table that nothing else reads
            weight = aligned(self._tensor(table, (rows, width)))
        return self._pack(weight, None if bias is None else aligned(self._tensor(bias, (rows,))))

    def finish(self) -> None:
        """Check that every tensor of the file was read.

        Raises:
            Unsupported: when the model of the file has other parts too.
        """
        if self._read != self._names:
            raise Unsupported

    def _array(self, name: str, *shape: int) -> Floats:
        if name not in self._arrays:
            self._arrays[name] = aligned(self._tensor(name, shape))
        assert self._arrays[name].shape == shape
        return self._arrays[name]

    def _tensor(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        if name not in self._names:
            raise Unsupported
        header = self._file.get_slice(name)
        if header.get_dtype() != "F32" or tuple(header.get_shape()) != shape:
            raise Unsupported
        self._read.add(name)
        return cast("npt.NDArray[np.float32]", self._file.get_tensor(name))

    def _joined(self, maps: Mapping[str, int], kind: str, *width: int) -> Floats:
        """Tensors of these names and heights below each other."""
        return np.concatenate(
            [self._tensor(name + kind, (height, *width)) for name, height in maps.items()]
        )

    def _pack(self, weight: Floats, bias: Floats | None) -> Linear:
        self._packed.append(PackedWeight(weight, bias, int8=self._int8))
        return self._packed[-1].struct
