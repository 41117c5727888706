"""The kernels of `csrc/`, if they were compiled when Heedful was installed.

`HEEDFUL_NATIVE` chooses the instruction set: `off`, `avx2`, `avx512`; by default the best.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
from ctypes import byref, c_int64, sizeof
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from heedful.kernels.structs import FUNCTIONS, STRUCTS

if TYPE_CHECKING:
    from torch import Tensor

KernelActivation = Literal["relu", "silu", "gelu", "gelu_tanh"]
"""An activation that the kernels have."""

ACTIVATIONS: tuple[KernelActivation, ...] = get_args(KernelActivation)
"""Activations in the order of the enumeration in C, whose last value is no activation."""

MIXERS = ("attention", "average_attention", "ssru")
"""Mixers of the tokens of a layer, in the order of the enumeration in C."""

# The numbers of `heedful_select` in C: the largest set that it may choose.
_SETS = {"off": 0, "avx2": 1, "avx512": 2}
# AVX-512 with AMX; `avx512` alone leaves AMX out.
_BEST = 3


# Loaded once: the choice of instructions holds for the process.
@functools.lru_cache(maxsize=1)
def kernels() -> Any:
    """Return the library with the functions of `heedful.h`; None if it is not built.

    Its functions release Python's global interpreter lock.
    """
    # An unknown value means the best set, as an unset variable does.
    allowed = _SETS.get(os.environ.get("HEEDFUL_NATIVE", ""), _BEST)
    # Built as an extension, but loaded by ctypes: it has no Python interface, so that its suffix
    # names no version. One that does, in a source tree, is older.
    for suffix in reversed(importlib.machinery.EXTENSION_SUFFIXES):
        file = Path(__file__).parent / f"_library{suffix}"
        if allowed and file.is_file():
            try:
                library = load(file)
            except (OSError, AttributeError):  # built for another system, or from older sources
                continue
            # The library picks the best set of the processor up to the allowed one; 0 is none.
            if library is not None and library.heedful_select(allowed) > 0:
                return library
    return None


def load(file: Path) -> Any:
    """Load a library and declare its functions; None if the layout of its structures differs."""
    library = ctypes.CDLL(str(file))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    # A library built from other sources would read fields at wrong offsets, without any error.
    count = c_int64()
    entries = library.heedful_layout(byref(count))[: count.value]
    theirs = {entry.name.decode(): entry.bytes for entry in entries}
    return library if theirs == layout() else None


def layout() -> dict[str, int]:
    """Return the size of each structure and the offset of each field, as C reports them."""
    entries = {}
    for struct in STRUCTS:
        entries[struct.__name__] = sizeof(struct)
        for name, *_ in struct._fields_:
            entries[f"{struct.__name__}.{name}"] = getattr(struct, name).offset
    return entries


class HeadAddresses(NamedTuple):
    """Addresses and strides of a layer's keys and values.

    Args:
        keys: address of the first element of the keys.
        values: address of the first element of the values.
        key_strides: strides of batch, head, slot and element, in elements.
        value_strides: strides of the values, in the same order.
    """

    keys: int
    values: int
    key_strides: tuple[int, ...]
    value_strides: tuple[int, ...]

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> HeadAddresses:
        """Describe tensors [B, K, S, E] and [B, K, S, Ev], which must outlive the kernel's call."""
        return cls(keys.data_ptr(), values.data_ptr(), keys.stride(), values.stride())


def address(tensor: Tensor | None) -> int | None:
    """Return the address of a tensor's first element; None for None."""
    return None if tensor is None else tensor.data_ptr()


def array_args(tensor: Tensor | None) -> tuple[int | None, bool]:
    """Return the fields of an `Array`: address, and whether elements are bfloat16."""
    # Kernels take only float32 and bfloat16, which differ in their size.
    return address(tensor), tensor is not None and tensor.itemsize == 2


def contiguous_vectors(tensor: Tensor) -> Tensor:
    """Return the tensor with a contiguous last dimension, as kernels read it."""
    # Kernels take the other strides as arguments.
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def instructions() -> str | None:
    """Return the name of the kernels' instruction set; None where there are no kernels."""
    library = kernels()
    return None if library is None else library.heedful_instructions().decode()


def build() -> str | None:
    """Return the compiler of the kernels, and the instruction sets that were left out."""
    library = kernels()
    return None if library is None else library.heedful_build().decode()


def has_row_kernels(width: int) -> bool:
    """Return whether kernels serve attention, norms and residual sums of vectors of a width."""
    library = kernels()
    # These kernels have no remainder loops: a row is a whole number of registers.
    return library is not None and width % library.heedful_lanes() == 0


def has_int8_kernels() -> bool:
    """Return whether kernels multiply 8-bit integers."""
    library = kernels()
    # 8 lanes are AVX2, 16 AVX-512. NEON has 4, and no kernels of 8-bit integers.
    return library is not None and library.heedful_lanes() >= 8


def emulates_bf16() -> bool:
    """Return whether kernels multiply bfloat16 without instructions for it.

    PyTorch then takes ten times as long as for float32, kernels 1.0 to 1.4 times as long.
    """
    library = kernels()
    return library is not None and library.heedful_lanes() == 8


def min_gemm_width(kind: str) -> int:
    """Return the smaller side of a weight of a dtype from which on kernels beat PyTorch."""
    # Measured where the kernels were made (docs/design/decisions.md); below, PyTorch multiplies.
    if kind == "float32":
        return 256
    # Without bfloat16 instructions PyTorch is so slow that nearly any width gains.
    if emulates_bf16():
        return 16
    library = kernels()
    return 128 if library is not None and library.heedful_has_amx() else 512


_MIN_FUSED_WIDTH = 64
"""The smallest width for a call that computes a whole sub-layer, where PyTorch needs a dozen calls:
a panel's width. At width 128 an update in float32 is 1.1 times as fast as PyTorch's."""


def has_gemm(kind: str, width: int, *, fused: bool = False) -> bool:
    """Return whether kernels multiply this dtype in training, faster than PyTorch.

    Args:
        kind: name of the dtype; kernels exist for `float32` and `bfloat16`.
        width: smaller side of a weight.
        fused: flag of a call that computes a whole sub-layer.
    """
    library = kernels()
    if library is None or library.heedful_lanes() < 8 or kind not in ("float32", "bfloat16"):
        return False
    if width < (_MIN_FUSED_WIDTH if fused else min_gemm_width(kind)):
        return False
    return kind == "float32" or bool(library.heedful_has_fast_bf16())
