"""Weights stored in 8 or 16 bits, and read back as float32.

In 8 bits each row of a matrix is stored as integers from -127 to 127, in `NAME`, and a float32
factor, in `NAME.scale`. An element is off by at most half of its row's factor. Vectors such as
biases and norms, a thousandth of a model, are stored as float16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from heedful.errors import ModelError

Storage = Literal["float32", "float16", "int8"]

SCALE = ".scale"
"""Suffix of the factors' name, after the name of their matrix."""

_LARGEST = 127  # not −128: the range holds −x for every x
_LARGEST_HALF = 65504.0  # the largest finite float16

Array = npt.NDArray[Any]


def compact(weights: Mapping[str, Array], storage: Storage) -> dict[str, Array]:
    """Return the tensors as they are stored.

    Args:
        weights: float32 tensors by canonical name.
        storage: stored type of matrices.

    Raises:
        ModelError: when an element is larger than float16 holds.
    """
    stored: dict[str, Array] = {}
    for name, array in weights.items():
        if storage == "float32":
            stored[name] = array
        elif storage == "int8" and array.ndim == 2:
            # Each row has its own factor: the quantisation error of one output must not depend on
            # another.
            scale = np.abs(array).max(1) / _LARGEST
            # A row of zeros has a factor of 0, and would divide 0 by 0.
            steps = array / np.where(scale == 0, 1, scale)[:, None]
            stored[name] = np.rint(steps).astype(np.int8)
            stored[name + SCALE] = scale.astype(np.float32)
        else:
            # Otherwise the conversion would silently give infinities; `initial`
            # serves empty tensors.
            if np.abs(array).max(initial=0) > _LARGEST_HALF:
                raise ModelError(
                    "A weight is larger than float16 holds",
                    where=name,
                    remedy="Store the model in float32",
                )
            stored[name] = array.astype(np.float16)
    return stored


def restored(array: Array, scale: Array | None, *, where: str) -> npt.NDArray[np.float32]:
    """Return a tensor as float32.

    Args:
        array: stored tensor, float32, float16, or int8 [rows, columns].
        scale: factors of an int8 matrix, [rows] float32.
        where: name of the tensor, for the error message.

    Raises:
        ModelError: when an int8 matrix has no factors, or not one for each row.
    """
    if array.dtype != np.int8:
        return array.astype(np.float32, copy=False)
    if scale is None or scale.shape != array.shape[:1] or array.ndim != 2:
        raise ModelError(
            "A matrix of 8 bits lacks the factors of its rows, or has other rows than they",
            where=f"{where}{SCALE}",
            remedy="The file is damaged; copy the model again",
        )
    return array.astype(np.float32) * scale.astype(np.float32)[:, None]


def restore(stored: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the weights of a file as float32; see `restored`.

    Raises:
        ModelError: naming a matrix of 8 bits without its factors.
    """
    # Factors are recognised by their type, not by the suffix: a weight may be called `scale`
    # itself.
    scales = {name + SCALE for name, array in stored.items() if array.dtype == np.int8}
    return {
        name: restored(array, stored.get(name + SCALE), where=name)
        for name, array in stored.items()
        if name not in scales
    }


def stored_parameters(directory: Path) -> dict[str, int]:
    """Return what `heedful.models.cost.parameters_by_module` does, from the file, without PyTorch.

    Args:
        directory: model directory.
    """
    from heedful.models.cost import module_of
    from heedful.models.model_directory import WEIGHTS_FILE, stored_sizes

    sizes = stored_sizes(directory / WEIGHTS_FILE) or {}
    counts: dict[str, int] = {}
    for name, shape in sizes.items():
        # The factors of 8-bit rows are no parameters.
        if not (name.endswith(SCALE) and name.removesuffix(SCALE) in sizes):
            module = module_of(name)
            counts[module] = counts.get(module, 0) + math.prod(shape)
    return dict(sorted(counts.items()))
