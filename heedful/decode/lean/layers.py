"""Blocks of a stack as kernels in C know them, built from weights by their canonical names."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence

from heedful.decode.lean.arrays import Floats, Integers, address, empty, workspace
from heedful.decode.lean.linear import LinearMap
from heedful.decode.lean.weights import AnyWeights, Unserved
from heedful.models.spec import StackSpec
from heedful.nn.kinds import GATED
from heedful.nn.native.library import ACTIVATIONS, kernels
from heedful.nn.native.structures import AttentionLayer, Layer, Pass, Seen
from heedful.nn.native.structures import Norm as DescribedNorm
from heedful.nn.native.turning import Turning
from heedful.nn.spec import AttentionSpec, NormSpec


class Norm:
    """A norm of vectors.

    Args:
        weights: where its own are.
        name: theirs.
        spec: of what kind.
        width: of a vector.
    """

    def __init__(self, weights: AnyWeights, name: str, spec: NormSpec, width: int) -> None:
        weight = weights.take(f"{name}.weight", width)
        bias = weights.take(f"{name}.bias", width) if spec.kind == "layer" else None
        self.held = weight, bias
        self.described = DescribedNorm(address(weight), address(bias), spec.epsilon)

    def __call__(self, x: Floats) -> Floats:
        """[R, D] to the same."""
        y = empty(x.shape)
        kernels().heedful_normalise(self.described, address(x), *x.shape, address(y))
        return y


class Layers:
    """An encoder, or a decoder.

    Args:
        weights: where its own are.
        name: `encoder` or `decoder`.
        spec: what it is made of.
        width: D.
        int8: whether products are of 8-bit integers.
    """

    def __init__(
        self, weights: AnyWeights, name: str, spec: StackSpec, width: int, *, int8: bool
    ) -> None:
        self.spec = spec.block
        self.int8 = int8
        self._weights = weights
        self._held: list[object] = []
        self.memory_maps: list[LinearMap] = []
        own = spec.block.self_attention
        self.key_heads = own.num_kv_heads or own.num_heads
        self.head_width = _head_width(own, width)
        over = spec.block.cross_attention or own
        self.memory_head_width = _head_width(over, width)
        self.count = spec.num_layers
        layers = [self._layer(f"{name}.blocks.{i}", width) for i in range(self.count)]
        self._layers = (ctypes.POINTER(Layer) * self.count)(*map(ctypes.pointer, layers))
        self._held += layers
        self._turning = Turning(self.head_width, own.rotary) if own.rotary else None
        self._final_norm = None
        if spec.final_norm is not None:
            self._final_norm = Norm(weights, f"{name}.final_norm", spec.final_norm, width)
        del self._weights

    def __call__(
        self,
        x: Floats,
        positions: Integers,
        own: Seen,
        places: tuple[Sequence[int], Sequence[int]] | None = None,
        taken: int = 0,
        cross: Seen | None = None,
        memory: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> Floats:
        """[R, D] through every layer.

        Args:
            x: of one sentence.
            positions: [R], of each.
            own: what self-attention sees.
            places: where each layer's keys and values are put, and stand; if they are kept.
            taken: slots that hold earlier ones.
            cross: what attention over the source sees.
            memory: where each layer's keys and values of it stand.
        """
        described = Pass(self._layers, self.count, own, cross or Seen(), taken=taken)
        table = ctypes.c_void_p * self.count
        if places is not None:
            described.keys, described.values = (table(*each) for each in places)
        if memory is not None:
            described.memory_keys, described.memory_values = (table(*each) for each in memory)
        library, rows, y = kernels(), len(x), empty(x.shape)
        if self._turning is not None:
            turns = self._turning.at(positions.ctypes.data, rows)
            described.turns = turns
        space = workspace(library.heedful_pass_room(described, rows))
        library.heedful_pass(described, address(x), rows, address(y), address(space))
        return y if self._final_norm is None else self._final_norm(y)

    def _layer(self, name: str, width: int) -> Layer:
        spec, layer = self.spec, Layer()
        layer.self = self._attention(f"{name}.self_attention", spec.self_attention, width)
        if spec.cross_attention is not None:
            layer.cross = self._attention(
                f"{name}.cross_attention", spec.cross_attention, width, over_memory=True
            )
            layer.has_cross = 1
        inner, network = spec.feedforward.width, f"{name}.feedforward"
        activation = spec.feedforward.activation
        maps = {"up": (inner, width), "down": (width, inner)}
        if activation in GATED:
            maps["gate"] = (inner, width)
            layer.gated = 1
        for part, shape in maps.items():
            has_bias = spec.feedforward.bias
            made = self._linear({f"{network}.{part}": shape[0]}, shape[1], has_bias=has_bias)
            setattr(layer, part, made.described)
        layer.activation = ACTIVATIONS.index(GATED.get(activation, activation))
        layer.norm = self._norm(f"{name}.feedforward_norm", width)
        layer.norm_first = spec.norm_placement == "pre"
        layer.width = width
        return layer

    def _attention(
        self, name: str, spec: AttentionSpec, width: int, *, over_memory: bool = False
    ) -> AttentionLayer:
        head_width = _head_width(spec, width)
        key_heads = spec.num_kv_heads or spec.num_heads
        query = {f"{name}.query": spec.num_heads * head_width}
        others = dict.fromkeys((f"{name}.key", f"{name}.value"), key_heads * head_width)
        read = query if over_memory else query | others
        projection = self._linear(read, width, has_bias=spec.bias)
        if over_memory:
            self.memory_maps.append(self._linear(others, width, has_bias=spec.bias))
        has_bias = spec.bias if spec.output_bias is None else spec.output_bias
        return AttentionLayer(
            projection.described,
            self._linear(
                {f"{name}.output": width}, spec.num_heads * head_width, has_bias=has_bias
            ).described,
            self._norm(f"{name}_norm", width),
            spec.num_heads,
            key_heads,
            head_width,
            spec.scale or 1 / math.sqrt(head_width),
        )

    def _linear(self, heights: Mapping[str, int], in_width: int, *, has_bias: bool) -> LinearMap:
        """The maps of these names and output widths, as one."""
        made = self._weights.linear(heights, in_width, has_bias=has_bias, int8=self.int8)
        self._held.append(made)
        return made

    def _norm(self, name: str, width: int) -> DescribedNorm:
        norm = Norm(self._weights, name, self.spec.norm, width)
        self._held.append(norm)
        return norm.described


def check_stack(spec: StackSpec, width: int) -> None:
    """Refuse what kernels in C do not serve, or serve with more than is told them here.

    Raises:
        Unserved: when something in it needs more.
    """
    block = spec.block
    attentions = [block.self_attention]
    if block.cross_attention is not None:
        attentions.append(block.cross_attention)
    if (
        spec.kept_heads is not None
        or spec.shared_position_bias is not None
        or block.feedforward.experts is not None
        or not all(_is_plain(each, width) for each in attentions)
    ):
        raise Unserved


def _is_plain(spec: AttentionSpec, width: int) -> bool:
    return (
        spec.softcap is None
        and spec.position_bias is None
        and _head_width(spec, width) % kernels().heedful_lanes() == 0
    )


def _head_width(spec: AttentionSpec, width: int) -> int:
    return spec.head_width or width // spec.num_heads
