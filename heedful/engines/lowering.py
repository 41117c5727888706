"""Lower a stack to the program of kernels in C, from its spec and its weights by name.

The kernels take addresses, so PyTorch's tensors and NumPy's arrays are lowered alike: a source of
weights says where each stands. Batches, the single sentence of a loaded model and the cold start
run programs made here. `heedful.engines.support` says which specs can be lowered.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from ctypes import addressof, c_float
from typing import Protocol

from heedful.kernels.library import ACTIVATIONS, kernels
from heedful.kernels.structs import AttentionLayer, Layer, Linear, Norm, RotaryTable, StackArgs
from heedful.models.stack_spec import BlockSpec
from heedful.nn.kinds import GATED
from heedful.nn.spec import AttentionSpec, FeedForwardSpec, NormSpec, RotarySpec


class WeightSource(Protocol):
    """Weights of a model by their names in its state dict; it keeps them alive."""

    def address(self, name: str, *shape: int) -> int:
        """The address of a float32 tensor of this shape."""

    def packed(self, maps: Mapping[str, int], in_width: int, *, has_bias: bool) -> Linear:
        """The linear maps of these names and output widths, packed as one layer."""

    def projection(self, table: str, bias: str | None, rows: int, width: int) -> Linear:
        """A table [rows, width] and a bias [rows] of these names, packed as a layer."""


class RotaryAngles:
    """Cosines and sines that rotate queries and keys, as `heedful.nn.rotary.Rotary` does.

    Args:
        head_width: E.
        spec: of the embedding.

    Raises:
        ConfigError: when the rotated width is odd or wider than a head.
    """

    def __init__(self, head_width: int, spec: RotarySpec) -> None:
        speeds = spec.frequencies(head_width)
        self._frequencies = (c_float * len(speeds))(*speeds)
        self._temperature = spec.attention_factor()
        self._interleaved = spec.layout == "pairs"

    def at(self, positions: int, rows: int) -> RotaryTable:
        """The angles of rows at their positions.

        Args:
            positions: address of the positions, int64 [rows].
            rows: how many.
        """
        pairs = len(self._frequencies)
        cosine, sine = ((c_float * (rows * pairs))() for _ in range(2))
        kernels().heedful_rotary_table(
            *(positions, rows, self._frequencies, pairs, self._temperature, cosine, sine)
        )
        table = _OwnTable(addressof(cosine), addressof(sine), pairs, self._interleaved)
        table.arrays = cosine, sine
        return table


class _OwnTable(RotaryTable):
    """A table with the arrays that it points to."""

    arrays: object


class StackProgram:
    """All blocks of a stack for one call of kernels in C.

    Args:
        layers: of `lower_block`.
        rotary: rotates queries and keys of every layer, if anything does.
        weights: the source that keeps the layers' weights alive.
    """

    def __init__(
        self, layers: Sequence[Layer], rotary: RotaryAngles | None, weights: WeightSource
    ) -> None:
        self.rotary = rotary
        self._layers = (ctypes.POINTER(Layer) * len(layers))(*map(ctypes.pointer, layers))
        self._weights = weights

    def __len__(self) -> int:
        return len(self._layers)

    def begin(self) -> StackArgs:
        """A pass over the layers, whose inputs are still to be set."""
        return StackArgs(self._layers, len(self._layers))


def lower_block(weights: WeightSource, name: str, spec: BlockSpec, width: int) -> Layer:
    """A block as a layer of the kernels.

    Args:
        weights: by name.
        name: of the block, such as `encoder.blocks.0`.
        spec: of the block, which `heedful.engines.support` does not refuse.
        width: D.
    """
    layer = Layer()
    for sublayer in spec.sublayers:
        place = f"{name}.{sublayer.name}"
        norm = lower_norm(weights, f"{place}_norm", sublayer.norm, width)
        part = sublayer.part
        if part.kind == "feedforward":
            _lower_feedforward(layer, weights, place, part, width)
            layer.norm = norm
        elif part.kind == "attention":
            attention = _attention(weights, place, part, norm, width)
            if part.over == "memory":
                layer.cross, layer.has_cross = attention, 1
            else:
                layer.self = attention
        layer.norm_first = sublayer.norm_placement == "before"
    layer.width = width
    return layer


def lower_memory(weights: WeightSource, name: str, spec: BlockSpec, width: int) -> Linear:
    """The layer that projects a memory to a block's keys and values, side by side."""
    cross = spec.cross_attention
    assert cross is not None
    out_width = head_counts(cross)[1] * head_width(cross, width)
    maps = {f"{name}.cross_attention.{part}": out_width for part in ("key", "value")}
    return weights.packed(maps, width, has_bias=cross.bias)


def lower_norm(weights: WeightSource, name: str, spec: NormSpec, width: int) -> Norm:
    """A norm of vectors [D]."""
    bias = weights.address(f"{name}.bias", width) if spec.kind == "layer" else None
    return Norm(weights.address(f"{name}.weight", width), bias, spec.epsilon)


def lower_rotary(spec: AttentionSpec, width: int) -> RotaryAngles | None:
    """The rotary embedding of an attention; None if it has none."""
    return None if spec.rotary is None else RotaryAngles(head_width(spec, width), spec.rotary)


def head_width(spec: AttentionSpec, width: int) -> int:
    """E of an attention in a model of width D."""
    return spec.head_width or width // spec.num_heads


def head_counts(spec: AttentionSpec) -> tuple[int, int]:
    """H and K of an attention, without pruned heads."""
    key_heads = spec.num_kv_heads or spec.num_heads
    if spec.kept_heads is None:
        return spec.num_heads, key_heads
    shared = spec.num_heads // key_heads
    return len(spec.kept_heads), len({head // shared for head in spec.kept_heads})


def _attention(
    weights: WeightSource, name: str, spec: AttentionSpec, norm: Norm, width: int
) -> AttentionLayer:
    each = head_width(spec, width)
    heads, key_heads = head_counts(spec)
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
        spec.scale or 1 / math.sqrt(each),
    )


def _lower_feedforward(
    layer: Layer, weights: WeightSource, name: str, spec: FeedForwardSpec, width: int
) -> None:
    gate = GATED.get(spec.activation)
    shapes = {"up": (spec.width, width), "down": (width, spec.width)}
    if gate is not None:
        shapes["gate"] = (spec.width, width)
        layer.gated = 1
    for part, (out_width, in_width) in shapes.items():
        maps = {f"{name}.{part}": out_width}
        setattr(layer, part, weights.packed(maps, in_width, has_bias=spec.bias))
    layer.activation = ACTIVATIONS.index(gate or spec.activation)
