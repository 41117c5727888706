"""The kernels of `kernels.c`, if they were compiled when Heedful was installed.

`HEEDFUL_NATIVE` chooses the set of instructions: `off`, `avx2`, `avx512`, or the best by default.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
from ctypes import (
    POINTER,
    Structure,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint32,
    c_void_p,
    sizeof,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.nn.kinds import PlainActivation

if TYPE_CHECKING:
    from torch import Tensor

ACTIVATIONS: tuple[PlainActivation, ...] = ("relu", "silu", "gelu", "gelu_tanh")
"""In the order of kernels.c, which has none of them at the end."""

_LEVELS = {"off": 0, "avx2": 1, "avx512": 2}
_BEST = 3


class Linear(Structure):
    """`Linear` of kernels.c."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("scale", c_void_p),
        ("correction", c_void_p),
        ("in_width", c_int64),
        ("out_width", c_int64),
    )


class Norm(Structure):
    """`Norm` of kernels.c."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float))


class AttentionLayer(Structure):
    """`AttentionLayer` of kernels.c."""

    _fields_ = (
        ("projection", Linear),
        ("output", Linear),
        ("norm", Norm),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("head_width", c_int64),
        ("scale", c_float),
    )


class Layer(Structure):
    """`Layer` of kernels.c."""

    _fields_ = (
        ("self", AttentionLayer),
        ("cross", AttentionLayer),
        ("up", Linear),
        ("gate", Linear),
        ("down", Linear),
        ("norm", Norm),
        ("width", c_int64),
        ("norm_first", c_int32),
        ("has_cross", c_int32),
        ("gated", c_int32),
        ("activation", c_int32),
    )


class Seen(Structure):
    """`Seen` of kernels.c."""

    _fields_ = (
        ("queries", c_void_p),
        ("query_batch", c_int64),
        ("query_row", c_int64),
        ("keys", c_void_p),
        ("key_batch", c_int64),
        ("key_head", c_int64),
        ("key_slot", c_int64),
        ("values", c_void_p),
        ("value_batch", c_int64),
        ("value_head", c_int64),
        ("value_slot", c_int64),
        ("visible", c_void_p),
        ("visible_batch", c_int64),
        ("visible_query", c_int64),
        ("bias", c_void_p),
        ("bias_batch", c_int64),
        ("bias_head", c_int64),
        ("bias_query", c_int64),
        ("weights", c_void_p),
        ("batch", c_int64),
        ("num_queries", c_int64),
        ("num_keys", c_int64),
        ("query_rows", c_void_p),
        ("key_rows", c_void_p),
        ("weights_suffice", c_int64),
    )


class Rows(Structure):
    """`Rows` of kernels.c, with its `Numbers`."""

    _fields_ = (
        ("at", c_void_p),
        ("is_half", c_int64),
        ("batch", c_int64),
        ("head", c_int64),
        ("row", c_int64),
    )


class Attended(Structure):
    """`Attended` of kernels.c."""

    _fields_ = (
        ("q", Rows),
        ("k", Rows),
        ("v", Rows),
        ("out", Rows),
        ("for_q", Rows),
        ("for_k", Rows),
        ("for_v", Rows),
        ("visible", c_void_p),
        ("visible_batch", c_int64),
        ("visible_head", c_int64),
        ("visible_query", c_int64),
        ("query_starts", c_void_p),
        ("key_starts", c_void_p),
        ("statistics", c_void_p),
        ("room", c_void_p),
        ("batch", c_int64),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("num_queries", c_int64),
        ("num_keys", c_int64),
        ("width", c_int64),
        ("scale", c_float),
    )


class Numbers(Structure):
    """`Numbers` of kernels.c."""

    _fields_ = (("at", c_void_p), ("is_half", c_int64))


class LearnedMap(Structure):
    """`LearnedMap` of sublayer.h."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("for_weight", c_void_p),
        ("for_bias", c_void_p),
        ("in_width", c_int64),
        ("out_width", c_int64),
    )


class Sublayer(Structure):
    """`Sublayer` of sublayer.h."""

    _fields_ = (
        ("first", LearnedMap),
        ("second", LearnedMap),
        ("x", Numbers),
        ("read", c_void_p),
        ("sum", Numbers),
        ("y", Numbers),
        ("norm_weight", c_void_p),
        ("norm_bias", c_void_p),
        ("kept", c_void_p),
        ("room", c_void_p),
        ("for_sum", Numbers),
        ("for_y", Numbers),
        ("for_x", Numbers),
        ("for_read", Numbers),
        ("for_norm_weight", c_void_p),
        ("for_norm_bias", c_void_p),
        ("memory", c_void_p),
        ("for_memory", c_void_p),
        ("visible", c_void_p),
        ("visible_batch", c_int64),
        ("visible_head", c_int64),
        ("visible_query", c_int64),
        ("query_starts", c_void_p),
        ("key_starts", c_void_p),
        ("rows", c_int64),
        ("memory_rows", c_int64),
        ("batch", c_int64),
        ("num_queries", c_int64),
        ("num_keys", c_int64),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("seed", c_int64),
        ("least", c_uint32),
        ("kept_scale", c_float),
        ("epsilon", c_float),
        ("score_scale", c_float),
        ("halves", c_int32),
        ("activation", c_int32),
    )


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
    "heedful_project": (None, [POINTER(Layer), c_void_p, c_int64, c_void_p, c_void_p]),
    "heedful_layer": (
        None,
        [POINTER(Layer), c_void_p, c_int64, POINTER(Seen), POINTER(Seen), c_void_p, c_void_p],
    ),
    "heedful_totals": (None, [c_void_p, c_int64, c_int64, c_void_p]),
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
    "heedful_best": (None, [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p]),
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
            sizes = sizeof(Seen) + sizeof(Attended) + sizeof(Sublayer)
            if library.heedful_layout() != 1000 * sizeof(Layer) + sizes:
                continue
            if library.heedful_begin(wanted) > 0:
                return library
    return None


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
    return library is not None and library.heedful_lanes() == 16


def narrowest(kind: str) -> int:
    """Width of a weight, either way, from which on kernels multiply it faster than PyTorch does.

    Args:
        kind: `float32` or `bfloat16`.
    """
    if kind == "float32":
        return 256
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
    if library is None or library.heedful_lanes() < 16 or kind not in ("float32", "bfloat16"):
        return False
    if width < (_NARROWEST_IN_ONE if in_one else narrowest(kind)):
        return False
    return kind == "float32" or bool(library.heedful_multiplies_halves())
