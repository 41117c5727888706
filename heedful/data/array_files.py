"""Arrays of .npy and .npz files, a record a row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.errors import DataError

VALUES = "values"
"""Name of the field of arrays and lists without a name."""


def load_arrays(path: Path, kinds: str, noun: str) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a file by their names.

    Args:
        path: file of an array (.npy), or of several by the names of fields (.npz).
        kinds: letters of NumPy's kinds of types that may stand in it.
        noun: noun for its values, for the error message.

    Raises:
        DataError: when the file cannot be read, or an array is of another type or has no axis.
    """
    try:
        with path.open("rb") as file:
            # Without pickles, which could run code of whoever made the file.
            content = np.load(file, allow_pickle=False)
            arrays = dict(content) if isinstance(content, Mapping) else {VALUES: content}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise DataError(
            f"Cannot be read as NumPy arrays: {error}",
            where=str(path),
            remedy=f"Save {noun}, a record a row, by numpy.save or numpy.savez",
        ) from None
    for name, array in arrays.items():
        if array.dtype.kind not in kinds or array.ndim < 1:
            raise DataError(
                f"The array {name!r} is of {array.dtype} with {array.ndim} axes",
                where=str(path),
                remedy=f"Give {noun}, a record a row",
            )
    return arrays
