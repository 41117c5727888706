"""The kernels of `csrc/`, if they were compiled when Heedful was installed.

`HEEDFUL_NATIVE` chooses the set of instructions: `off`, `avx2`, `avx512`, or the best by default.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
from ctypes import byref, c_int64, sizeof
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from heedful.kernels.structs import FUNCTIONS, STRUCTS

if TYPE_CHECKING:
    from torch import Tensor

ACTIVATIONS: tuple[Literal["relu", "silu", "gelu", "gelu_tanh"], ...] = (
    "relu",
    "silu",
    "gelu",
    "gelu_tanh",
)
"""In the order of `enum activation` in C, where no activation comes last."""

MIXERS = ("attention", "average_attention", "ssru")
"""The same of what mixes the tokens of a layer."""

_SETS = {"off": 0, "avx2": 1, "avx512": 2}
_BEST = 3


@functools.lru_cache(maxsize=1)
def kernels() -> Any:
    """The library, whose functions are those of `heedful.h`; None where there is none.

    Calling one lets other Python threads run meanwhile.
    """
    allowed = _SETS.get(os.environ.get("HEEDFUL_NATIVE", ""), _BEST)
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        file = Path(__file__).parent / f"_library{suffix}"
        if allowed and file.is_file():
            try:
                library = load(file)
            except (OSError, AttributeError):  # compiled for another system, or from older files
                continue
            if library is not None and library.heedful_select(allowed) > 0:
                return library
    return None


def load(file: Path) -> Any:
    """Load a library and declare its functions; None if its structures are not ours."""
    library = ctypes.CDLL(str(file))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    count = c_int64()
    entries = library.heedful_layout(byref(count))[: count.value]
    theirs = {entry.name.decode(): entry.bytes for entry in entries}
    return library if theirs == layout() else None


def layout() -> dict[str, int]:
    """The size of each structure and the offset of each field, as C reports its own."""
    entries = {}
    for struct in STRUCTS:
        entries[struct.__name__] = sizeof(struct)
        for name, *_ in struct._fields_:
            entries[f"{struct.__name__}.{name}"] = getattr(struct, name).offset
    return entries


class HeadAddresses(NamedTuple):
    """Memory of a layer's keys and values.

    Args:
        keys: address of the first number.
        values: the same.
        key_strides: of batch, head, slot and number.
        value_strides: the same.
    """

    keys: int
    values: int
    key_strides: tuple[int, ...]
    value_strides: tuple[int, ...]

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> HeadAddresses:
        """Of tensors [B, K, S, E] and [B, K, S, Ev], which must outlive the kernel's call."""
        return cls(keys.data_ptr(), values.data_ptr(), keys.stride(), values.stride())


def address(tensor: Tensor | None) -> int | None:
    """Address of a tensor's first number; None for None."""
    return None if tensor is None else tensor.data_ptr()


def array_args(tensor: Tensor | None) -> tuple[int | None, bool]:
    """The fields of an `Array`: address, and whether the numbers are bfloat16."""
    return address(tensor), tensor is not None and tensor.itemsize == 2


def contiguous_vectors(tensor: Tensor) -> Tensor:
    """The tensor with its last dimension contiguous, as kernels read it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def instructions() -> str | None:
    """Name the instruction set the kernels use; None where there are no kernels."""
    library = kernels()
    return None if library is None else library.heedful_instructions().decode()


def build() -> str | None:
    """Say what compiled the kernels, and which instruction sets were left out."""
    library = kernels()
    return None if library is None else library.heedful_build().decode()


def has_row_kernels(width: int) -> bool:
    """Return whether kernels serve attention, norms and residual sums of vectors this wide."""
    library = kernels()
    return library is not None and width % library.heedful_lanes() == 0


def has_int8_kernels() -> bool:
    """Return whether kernels multiply 8-bit integers."""
    library = kernels()
    return library is not None and library.heedful_lanes() >= 8


def emulates_bf16() -> bool:
    """Return whether kernels multiply bfloat16 without instructions for it.

    PyTorch takes ten times as long as for float32 then, kernels 1.0 to 1.4 times as long.
    """
    library = kernels()
    return library is not None and library.heedful_lanes() == 8


def min_gemm_width(kind: str) -> int:
    """Width of a weight, either way, from which on kernels multiply faster than PyTorch.

    Args:
        kind: `float32` or `bfloat16`.
    """
    if kind == "float32":
        return 256
    if emulates_bf16():
        return 16
    library = kernels()
    return 128 if library is not None and library.heedful_has_amx() else 512


_MIN_FUSED_WIDTH = 64
"""The same for a call that does a whole sub-layer, where PyTorch needs a dozen calls: a panel's
width. With 128 an update in float32 is 1.1 times as fast as by PyTorch."""


def has_gemm(kind: str, width: int, *, fused: bool = False) -> bool:
    """Return whether kernels multiply this type in training, and fast.

    Args:
        kind: `float32`, `bfloat16` or another, for which there are none.
        width: the smaller side of a weight.
        fused: whether one call does a whole sub-layer.
    """
    library = kernels()
    if library is None or library.heedful_lanes() < 8 or kind not in ("float32", "bfloat16"):
        return False
    if width < (_MIN_FUSED_WIDTH if fused else min_gemm_width(kind)):
        return False
    return kind == "float32" or bool(library.heedful_has_fast_bf16())
