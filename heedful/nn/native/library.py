"""The kernels of `kernels.c`, if they were compiled when Heedful was installed.

`HEEDFUL_NATIVE` chooses the set of instructions: `off`, `avx2`, `avx512`, or the best by default.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
from ctypes import POINTER, c_float, c_int, c_int64, c_uint32, c_void_p, sizeof
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heedful.nn.kinds import PlainActivation
from heedful.nn.native.structures import (
    Attended,
    Layer,
    Linear,
    Norm,
    Pass,
    Seen,
    Sublayer,
    Turns,
)

if TYPE_CHECKING:
    from torch import Tensor

ACTIVATIONS: tuple[PlainActivation, ...] = ("relu", "silu", "gelu", "gelu_tanh")
"""In the order of kernels.c, which has none of them at the end."""

_LEVELS = {"off": 0, "avx2": 1, "avx512": 2}
_BEST = 3


_NUMBERS = (c_void_p, c_int)  # and whether they are bfloat16
_SHAPE, _NORM = (c_int64, c_int64), (c_void_p, c_void_p)
_DROP = (c_int64, c_uint32, c_float)
_PRODUCT = (c_int64, c_int64, c_int64, c_int)  # M, K, N, and whether bfloat16 is multiplied

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "heedful_begin": (c_int, [c_int]),
    "heedful_lanes": (c_int, []),
    "heedful_layout": (c_int, []),
    "heedful_packed": (c_int64, [c_int64, c_int64, c_int]),
    "heedful_pack_float": (None, [c_void_p, c_int64, c_int64, c_void_p]),
    "heedful_pack_int8": (None, [c_void_p, c_int64, c_int64, c_void_p]),
    "heedful_linear_room": (c_int64, [POINTER(Linear), c_int64]),
    "heedful_layer_room": (c_int64, [POINTER(Layer), c_int64, c_int64]),
    "heedful_linear": (None, [POINTER(Linear), c_void_p, c_int64, c_void_p, c_int, c_void_p]),
    "heedful_normalise": (None, [POINTER(Norm), c_void_p, *_SHAPE, c_void_p]),
    "heedful_project": (None, [POINTER(Layer), c_void_p, c_int64, c_void_p, c_void_p]),
    "heedful_layer": (
        None,
        [POINTER(Layer), c_void_p, c_int64, POINTER(Seen), POINTER(Seen), c_void_p, c_void_p],
    ),
    "heedful_waves": (
        None,
        [c_void_p, c_int64, c_void_p, c_int64, c_float, c_void_p, c_void_p],
    ),
    "heedful_turn": (None, [POINTER(Turns), c_void_p, *[c_int64] * 4]),
    "heedful_pass_room": (c_int64, [POINTER(Pass), c_int64]),
    "heedful_pass": (None, [POINTER(Pass), c_void_p, c_int64, c_void_p, c_void_p]),
    "heedful_totals": (c_int, [c_void_p, c_int64, c_int64, c_void_p]),
    "heedful_candidates": (None, [*[c_void_p] * 3, *[c_int64] * 4, *[c_void_p] * 5]),
    "heedful_visible": (c_int, [*[c_void_p] * 3, *[c_int64] * 3, c_int, c_void_p]),
    "heedful_embed": (
        c_int,
        [
            *(c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_float),
            *(c_void_p, c_int64, c_int64, c_int64, c_void_p),
        ],
    ),
    "heedful_residual": (
        None,
        [*_SHAPE, *_NUMBERS, *_NUMBERS, c_void_p, *_NUMBERS, *_NORM, c_float, c_void_p, *_DROP],
    ),
    "heedful_residual_back": (
        None,
        [
            *(*_SHAPE, *_NUMBERS, *_NUMBERS, *_NUMBERS, *_NORM, c_void_p, *_DROP),
            *(*_NUMBERS, *_NUMBERS, *_NORM, c_void_p),
        ],
    ),
    "heedful_attended_room": (c_int64, [POINTER(Attended)]),
    "heedful_attended": (None, [POINTER(Attended), c_int]),
    "heedful_multiplies_halves": (c_int, []),
    "heedful_has_tiles": (c_int, []),
    "heedful_right_units": (c_int64, [*_SHAPE, c_int]),
    "heedful_lay_right": (None, [*_NUMBERS, *_SHAPE, *_SHAPE, c_int, c_void_p]),
    "heedful_product_room": (c_int64, [*_PRODUCT, c_int, c_int]),
    "heedful_product": (
        None,
        [
            *(*_NUMBERS, c_void_p, c_void_p, *_PRODUCT),
            *(c_void_p, c_int, *_NUMBERS, *_NUMBERS, c_void_p),
        ],
    ),
    "heedful_turned_product": (
        None,
        [c_void_p, c_void_p, c_void_p, *_PRODUCT, c_int, c_void_p, c_void_p],
    ),
    "heedful_sublayer_kept": (c_int64, [POINTER(Sublayer)]),
    "heedful_sublayer_room": (c_int64, [POINTER(Sublayer), c_int]),
    "heedful_sublayer": (None, [POINTER(Sublayer)]),
    "heedful_sublayer_back": (None, [POINTER(Sublayer)]),
}


@functools.lru_cache(maxsize=1)
def kernels() -> Any:
    """The library, whose functions begin with `heedful_`; None where there is none.

    Calling one lets other Python threads run meanwhile.
    """
    wanted = _LEVELS.get(os.environ.get("HEEDFUL_NATIVE", ""), _BEST)
    folder = Path(__file__).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        file = folder / f"_kernels{suffix}"
        if wanted and file.is_file():
            try:
                library = ctypes.CDLL(str(file))
                for name, (result, arguments) in _FUNCTIONS.items():
                    function = getattr(library, name)
                    function.restype, function.argtypes = result, arguments
            except (OSError, AttributeError):  # compiled for another system, or from older files
                continue
            sizes = sizeof(Seen) + sizeof(Pass) + sizeof(Attended) + sizeof(Sublayer)
            if library.heedful_layout() != 1000 * sizeof(Layer) + sizes:
                continue
            if library.heedful_begin(wanted) > 0:
                return library
    return None


class Places(NamedTuple):
    """Where the keys and values of heads stand.

    Args:
        keys: where the first begins.
        values: the same.
        key_strides: of batch, head, slot and number.
        value_strides: the same.
    """

    keys: int
    values: int
    key_strides: tuple[int, ...]
    value_strides: tuple[int, ...]

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> Places:
        """Of tensors [B, K, S, E] and [B, K, S, Ev], which must outlive what is done there."""
        return cls(keys.data_ptr(), values.data_ptr(), keys.stride(), values.stride())


def address(tensor: Tensor | None) -> int | None:
    """Where its numbers begin; None for none."""
    return None if tensor is None else tensor.data_ptr()


def numbers(tensor: Tensor | None) -> tuple[int | None, bool]:
    """Where its numbers begin, and whether they are bfloat16 and not float32."""
    return address(tensor), tensor is not None and tensor.itemsize == 2


def lying(tensor: Tensor) -> Tensor:
    """With the numbers of each vector side by side, as kernels read them."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def instructions() -> str | None:
    """Which set of instructions the kernels use; None where there are none."""
    library = kernels()
    if library is None:
        return None
    if library.heedful_has_tiles():
        return "AVX-512 VNNI, AMX"
    return {4: "NEON", 8: "AVX2", 16: "AVX-512 VNNI"}[library.heedful_lanes()]


def passes_rows(width: int) -> bool:
    """Whether there are kernels for what stands between products of vectors of this width."""
    library = kernels()
    return library is not None and width % library.heedful_lanes() == 0


def multiplies_int8() -> bool:
    """Whether there are kernels for products of 8-bit integers."""
    library = kernels()
    return library is not None and library.heedful_lanes() >= 8


def emulates_halves() -> bool:
    """Whether PyTorch multiplies bfloat16 numbers without instructions for it, where kernels help.

    PyTorch takes ten times as long as for float32 then, kernels 1.0 to 1.4 times as long.
    """
    library = kernels()
    return library is not None and library.heedful_lanes() == 8


def narrowest(kind: str) -> int:
    """Width of a weight, either way, from which on kernels multiply it faster than PyTorch does.

    Args:
        kind: `float32` or `bfloat16`.
    """
    if kind == "float32":
        return 256
    if emulates_halves():
        return 16
    library = kernels()
    return 128 if library is not None and library.heedful_has_tiles() else 512


_NARROWEST_IN_ONE = 64
"""The same where a kernel's call does all of a sub-layer: PyTorch's way costs a dozen calls then. A
panel's width; with 128 an update in float32 is 1.1 times as fast as by PyTorch."""


def multiplies(kind: str, width: int, *, in_one: bool = False) -> bool:
    """Whether there are kernels for training's products of such numbers, and known to be fast.

    Args:
        kind: `float32`, `bfloat16` or another, for which there are none.
        width: the smaller side of a weight.
        in_one: whether the call does all of a sub-layer.
    """
    library = kernels()
    if library is None or library.heedful_lanes() < 8 or kind not in ("float32", "bfloat16"):
        return False
    if width < (_NARROWEST_IN_ONE if in_one else narrowest(kind)):
        return False
    return kind == "float32" or bool(library.heedful_multiplies_halves())
