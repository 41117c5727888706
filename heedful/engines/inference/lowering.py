"""Lower a stack to the program of kernels in C, from its spec and its weights by name.

The kernels take addresses, so PyTorch's tensors and NumPy's arrays are lowered alike: a source of
weights returns the address of each; `FileWeights` is the source without PyTorch. Batches, the
single sentence of a loaded model and a cold start all run programs made here. The module `support`
tells which specs can be lowered.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_float
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from heedful.kernels.library import ACTIVATIONS, MIXERS, kernels
from heedful.kernels.structs import (
    AttentionLayer,
    Layer,
    Linear,
    Norm,
    RecurrentLayer,
    RotaryTable,
    StackArgs,
)
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.mixer_spec import AverageAttentionSpec, SSRUSpec
from heedful.nn.spec import AttentionSpec, FeedForwardSpec, NormSpec, RotarySpec


class WeightSource(Protocol):
    """The weights of a model by name in its state dict, which the source keeps alive."""

    def address(self, name: str, *shape: int) -> int:
        """Return the address of a float32 tensor of this shape."""

    def packed(self, maps: Mapping[str, int], in_width: int, *, has_bias: bool) -> Linear:
        """Return the linear maps of these names and output widths, packed as one layer."""

    def projection(self, table: str, bias: str | None, rows: int, width: int) -> Linear:
        """Return a table [rows, width] and a bias [rows] of these names, packed as a layer."""


class RotaryAngles:
    """Cosines and sines that rotate queries and keys, as in `Rotary`.

    Args:
        head_width: width of a head, E.
        spec: spec of the rotary embedding.

    Raises:
        ConfigError: when the rotated width is odd or wider than a head.
    """

    def __init__(self, head_width: int, spec: RotarySpec) -> None:
        from heedful.nn.rotary_frequencies import frequencies  # few translators rotate

        speeds = frequencies(spec, head_width)
        self._frequencies = (c_float * len(speeds))(*speeds)
        self._temperature = spec.attention_factor()
        self._interleaved = spec.layout == "pairs"

    def at(self, positions: int, rows: int) -> RotaryTable:
        """Return the angles of rows, whose positions [rows] int64 are at the given address."""
        pairs = len(self._frequencies)
        cosine, sine = ((c_float * (rows * pairs))() for _ in range(2))
        kernels().heedful_rotary_table(
            *(positions, rows, self._frequencies, pairs, self._temperature, cosine, sine)
        )
        table = _OwnTable(addressof(cosine), addressof(sine), pairs, self._interleaved)
        # Instances of a subclass of a struct have a dictionary, which keeps the arrays alive.
        table.arrays = cosine, sine
        return table


class _OwnTable(RotaryTable):
    """A rotary table that owns the arrays it points to."""

    arrays: object


class StackProgram:
    """All blocks of a stack for one call of kernels in C.

    Args:
        layers: structs from `lower_block`.
        rotary: rotary embedding of queries and keys in every layer, or None.
        weights: source that keeps the layers' weights alive.
    """

    def __init__(
        self, layers: Sequence[Layer], rotary: RotaryAngles | None, weights: WeightSource
    ) -> None:
        self.rotary = rotary
        # An array of pointers, so a program of one block can share the struct of the whole stack.
        self._layers = (ctypes.POINTER(Layer) * len(layers))(*map(ctypes.pointer, layers))
        self._weights = weights

    def __len__(self) -> int:
        return len(self._layers)

    def begin(self) -> StackArgs:
        """Return the arguments of a pass over the layers, whose inputs are still to be set."""
        return StackArgs(self._layers, len(self._layers))


def lower_block(weights: WeightSource, name: str, spec: BlockSpec, width: int) -> Layer:
    """Lower a block to a layer of the kernels.

    Args:
        weights: source of the weights.
        name: name of the block, such as `encoder.blocks.0`.
        spec: spec of the block, which `heedful.engines.inference.support` does not refuse.
        width: width of the model, D.
    """
    layer = Layer()
    for sublayer in spec.sublayers:
        place = f"{name}.{sublayer.name}"
        norm = lower_norm(weights, f"{place}_norm", sublayer.norm, width)
        part = sublayer.part
        if part.kind == "feedforward":
            _lower_feedforward(layer, weights, place, part, width)
            layer.norm = norm  # the other norms belong to their attention or recurrence
        elif part.kind == "attention":
            attention = _attention(weights, place, part, norm, width)
            if part.over == "memory":
                layer.cross, layer.has_cross = attention, 1
            else:
                layer.self = attention
        elif part.kind in _RECURRENCES:
            layer.recurrent = _RECURRENCES[part.kind](weights, place, part, norm, width)
            layer.mixer = MIXERS.index(part.kind)
        # `block_refusals` made sure that all sub-layers agree in this.
        layer.norm_first = sublayer.norm_placement == "before"
    layer.width = width
    return layer


def lower_memory(weights: WeightSource, name: str, spec: BlockSpec, width: int) -> Linear:
    """Return the layer that projects a memory to a block's keys and values, in one output."""
    cross = spec.cross_attention
    assert cross is not None
    out_width = head_counts(cross)[1] * cross.width_of_heads(width)
    maps = {f"{name}.cross_attention.{part}": out_width for part in ("key", "value")}
    return weights.packed(maps, width, has_bias=cross.bias)


def lower_norm(weights: WeightSource, name: str, spec: NormSpec, width: int) -> Norm:
    """Lower a norm of vectors [D]; a missing bias makes it an RMS norm."""
    bias = weights.address(f"{name}.bias", width) if spec.kind == "layer" else None
    return Norm(weights.address(f"{name}.weight", width), bias, spec.epsilon)


def lower_rotary(spec: AttentionSpec, width: int) -> RotaryAngles | None:
    """Return the rotary embedding of an attention; None if it has none."""
    return None if spec.rotary is None else RotaryAngles(spec.width_of_heads(width), spec.rotary)


def stack_rotary(spec: StackSpec, width: int) -> RotaryAngles | None:
    """Return the rotary embedding that all self-attentions share; None if they have none."""
    parts = (each.attentions().get("self_attention") for each in spec.pattern)
    attention = next((each for each in parts if each is not None), None)
    return None if attention is None else lower_rotary(attention, width)


def recurrent_width(spec: BlockSpec, width: int) -> int | None:
    """Return the state size of a block's recurrence per sequence; None for attention."""
    # Average attention keeps a sum [D] and the number of its terms.
    own = {"average_attention": width + 1, "ssru": width}
    return next((own[part.kind] for part in spec.mixers() if part.kind in own), None)


def head_counts(spec: AttentionSpec) -> tuple[int, int]:
    """Return the numbers of query and key heads, H and K, without pruned heads."""
    return len(spec.heads_of_keys), len(set(spec.heads_of_keys))


def _attention(
    weights: WeightSource, name: str, spec: AttentionSpec, norm: Norm, width: int
) -> AttentionLayer:
    each = spec.width_of_heads(width)
    heads, key_heads = head_counts(spec)
    # Keys and values of a memory are projected once a sentence, by `lower_memory`.
    maps = {f"{name}.query": heads * each}
    if spec.over == "input":
        maps |= {f"{name}.{part}": key_heads * each for part in ("key", "value")}
    has_bias = spec.bias if spec.output_bias is None else spec.output_bias
    return AttentionLayer(
        weights.packed(maps, width, has_bias=spec.bias),
        weights.packed({f"{name}.output": width}, heads * each, has_bias=has_bias),
        norm,
        heads,
        key_heads,
        each,
        spec.scale_of_scores(width),
    )


def _average_attention(
    weights: WeightSource, name: str, spec: AverageAttentionSpec, norm: Norm, width: int
) -> RecurrentLayer:
    layer, inner = RecurrentLayer(norm=norm), spec.inner_width(width)
    if inner:
        layer.up = weights.packed({f"{name}.network.up": inner}, width, has_bias=True)
        layer.down = weights.packed({f"{name}.network.down": width}, inner, has_bias=True)
    if spec.gate:
        # Input and forget gate (Zhang 2018), both from input and average, concatenated.
        layer.gate = weights.packed({f"{name}.gate": 2 * width}, 2 * width, has_bias=True)
    return layer


def _ssru(
    weights: WeightSource, name: str, spec: SSRUSpec, norm: Norm, width: int
) -> RecurrentLayer:
    return RecurrentLayer(
        value=weights.packed({f"{name}.value": width}, width, has_bias=False),
        gate=weights.packed({f"{name}.forget": width}, width, has_bias=spec.bias),
        norm=norm,
    )


_RECURRENCES: Mapping[str, Callable[..., RecurrentLayer]] = {
    "average_attention": _average_attention,
    "ssru": _ssru,
}
"""The function that lowers each recurrent mixer of the kernels, by kind."""


def _lower_feedforward(
    layer: Layer, weights: WeightSource, name: str, spec: FeedForwardSpec, width: int
) -> None:
    gate = spec.gate
    shapes = {"up": (spec.width, width), "down": (width, spec.width)}
    if gate is not None:
        shapes["gate"] = (spec.width, width)
        layer.gated = 1
    for part, (out_width, in_width) in shapes.items():
        maps = {f"{name}.{part}": out_width}
        setattr(layer, part, weights.packed(maps, in_width, has_bias=spec.bias))
    # A gated network (GLU, Shazeer 2020) multiplies `up` by the activation of `gate`.
    layer.activation = ACTIVATIONS.index(gate or spec.activation)


Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_CACHE_LINE = 64  # bytes; this is also the width of an AVX-512 register, so no load crosses a line
_LARGEST = np.float32(127)
_SMALLEST = np.float32(1e-30)
"""Smallest divisor, for rows of zeros."""


class PackedWeight:
    """The weight and bias of `x @ weight.T + bias`, packed for kernels in C.

    Args:
        weight: weight [N, K].
        bias: bias [N] or None.
        int8: flag of rounding the weight and each input row to 8 bits, symmetrically.
        quantize: function that rounds a weight; PyTorch's uses all cores and gives the same bits.

    Attributes:
        struct: struct for the kernels, with the addresses of the arrays here.
    """

    def __init__(
        self,
        weight: Floats,
        bias: Floats | None,
        *,
        int8: bool = False,
        quantize: Callable[[Floats], tuple[npt.NDArray[np.int8], Floats]] | None = None,
    ) -> None:
        library = kernels()
        out_width, in_width = weight.shape
        size = library.heedful_packed_size(in_width, out_width, int8)
        self.bias = bias
        self.scale: Floats | None = None
        self.correction: npt.NDArray[np.int32] | None = None
        if int8:
            rounded, self.scale = (quantize or quantize_rows)(weight)
            # VNNI multiplies unsigned by signed bytes: inputs are shifted by 128, and what this
            # adds to the sum is subtracted again.
            self.correction = rounded.sum(1, dtype=np.int32) * np.int32(128)
            self.packed = empty((size,), np.int8)
            library.heedful_pack_int8(address(rounded), in_width, out_width, address(self.packed))
        else:
            self.packed = empty((size,))
            library.heedful_pack_f32(address(weight), in_width, out_width, address(self.packed))
        parts = self.packed, bias, self.scale, self.correction
        self.struct = Linear(*map(address, parts), in_width, out_width)

    def move(self, place: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
        """Move the packed weight, before a program takes its address.

        Args:
            place: function that returns an array of equal content at a cache line.
        """
        self.packed = place(self.packed)
        self.struct.packed_weight = address(self.packed)


def quantize_rows(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Round a weight [N, K] to 8 bits, each row by its largest magnitude.

    Returns:
        Rounded weight [N, K]; scale of each output [N], to be multiplied by the largest magnitude
        of the input row.
    """
    largest = np.maximum(np.abs(weight).max(1, keepdims=True), _SMALLEST)
    # PyTorch computes scalar / tensor in this order; in another, ties would round differently.
    rounded = np.rint(weight * (np.float32(1) / largest * _LARGEST)).astype(np.int8)
    return rounded, largest[:, 0] / np.float32(127**2)


def multiply(layer: Linear, x: Floats) -> Floats:
    """Map x [R, K] through a packed layer to [R, N]."""
    library, rows = kernels(), len(x)
    y = empty((rows, layer.out_width))
    space = workspace(library.heedful_linear_workspace(layer, rows))
    library.heedful_linear(layer, address(x), rows, address(y), False, address(space))
    return y


def empty(shape: tuple[int, ...], kind: Any = np.float32) -> npt.NDArray[Any]:
    """Return an uninitialized array that begins at a cache line."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    # NumPy aligns to 16 bytes; the view below keeps the longer array alive.
    memory = np.empty(size + _CACHE_LINE - 1, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    array: npt.NDArray[Any] = memory[start : start + size].view(kind).reshape(shape)
    return array


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a contiguous copy that begins at a cache line."""
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def address(array: npt.NDArray[Any] | None) -> int | None:
    """Return the address of an array's first element; None for no array."""
    return None if array is None else array.ctypes.data


def workspace(size: int) -> npt.NDArray[Any]:
    """Return uninitialized memory of `size` bytes for a kernel's intermediate results."""
    return empty((size,), np.uint8)


class Unsupported(Exception):
    """The NumPy runtime cannot run a model; PyTorch can, or reports the reason."""


_STORED = ("F32", "F16", "I8")
"""Types of stored weights, by their names in safetensors headers."""


class FileWeights:
    """A context that reads the weights of a file one by one; see `WeightSource`.

    Args:
        file: file in safetensors format.
        int8: flag of packing linear layers in 8 bits.
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
        """See `WeightSource.address`; raise `Unsupported` if the file has no such tensor."""
        return self._array(name, *shape).ctypes.data

    def packed(self, maps: Mapping[str, int], in_width: int, *, has_bias: bool) -> Linear:
        weight = aligned(self._joined(maps, ".weight", in_width))
        bias = aligned(self._joined(maps, ".bias")) if has_bias else None
        return self._pack(weight, bias)

    def projection(self, table: str, bias: str | None, rows: int, width: int) -> Linear:
        # A table that serves as embedding too is in memory already.
        weight = self._arrays.get(table)
        if weight is None:  # a table that is not tied to an embedding
            weight = aligned(self._tensor(table, (rows, width)))
        return self._pack(weight, None if bias is None else aligned(self._tensor(bias, (rows,))))

    def finish(self) -> None:
        """Raise `Unsupported` if a tensor was not read: it may belong to an unknown part."""
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
        if header.get_dtype() not in _STORED or tuple(header.get_shape()) != shape:
            raise Unsupported
        self._read.add(name)
        array = self._file.get_tensor(name)
        if header.get_dtype() == "F32":
            return cast("npt.NDArray[np.float32]", array)
        from heedful.models.compact_weights import SCALE, restored  # most files are in float32

        scale = None
        if name + SCALE in self._names and header.get_dtype() == "I8":
            self._read.add(name + SCALE)
            scale = self._file.get_tensor(name + SCALE)
        return restored(array, scale, where=name)

    def _joined(self, maps: Mapping[str, int], kind: str, *width: int) -> Floats:
        """Concatenate the tensors of these names and numbers of rows."""
        return np.concatenate(
            [self._tensor(name + kind, (height, *width)) for name, height in maps.items()]
        )

    def _pack(self, weight: Floats, bias: Floats | None) -> Linear:
        self._packed.append(PackedWeight(weight, bias, int8=self._int8))
        return self._packed[-1].struct
