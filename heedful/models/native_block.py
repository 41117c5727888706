"""A whole block of a model in two calls: what is read of its input, and the rest."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heedful.models.block import Block, Sight
from heedful.nn.attend import make_request
from heedful.nn.attention import Attention, KeyValues
from heedful.nn.biases import Bias
from heedful.nn.cache import KeyValueCache
from heedful.nn.capture import Capture
from heedful.nn.feedforward import PLAIN_ACTIVATIONS, FeedForward
from heedful.nn.kernels.request import total_bias
from heedful.nn.masks import Causal, Everything, Mask
from heedful.nn.native.library import ACTIVATIONS, address, kernels, lying
from heedful.nn.native.linear import NativeLinear, workspace
from heedful.nn.native.norm import described_norm
from heedful.nn.native.structures import AttentionLayer, Layer, Linear, Seen, Turns
from heedful.nn.native.turning import Turning
from heedful.nn.positions import Positions
from heedful.nn.projection import FusedLinear
from heedful.nn.running_weights import Fused

_PLAIN_MASKS = (Everything(), Causal())
_ACTIVATIONS = {PLAIN_ACTIVATIONS[name]: place for place, name in enumerate(ACTIVATIONS)}


class NativeBlock:
    """A block whose linear layers are `NativeLinear`, as kernels in C compute it.

    Args:
        block: to be computed; one that `runs_natively`.
    """

    def __init__(self, block: Block) -> None:
        feedforward = block.feedforward
        assert isinstance(feedforward, FeedForward)
        self.block = block
        own = block.self_attention
        self.widths = _projection(own)[1]
        self.turning = Turning(own.head_width, own.rotary.spec) if own.rotary else None
        self.layer = Layer()
        described = self.layer
        described.self = _described(own, block.self_attention_norm)
        if block.cross_attention is not None:
            assert block.cross_attention_norm is not None
            described.cross = _described(block.cross_attention, block.cross_attention_norm)
            described.has_cross = 1
        described.up = _linear(feedforward.up)
        described.down = _linear(feedforward.down)
        if feedforward.gate is not None:
            described.gate = _linear(feedforward.gate)
            described.gated = 1
        described.activation = _activation(feedforward)
        described.norm = described_norm(block.feedforward_norm)
        described.norm_first = block.norm_first
        described.width = described.down.out_width

    def __call__(
        self,
        x: Tensor,
        sight: Sight,
        memory: KeyValues | None,
        cache: KeyValueCache | None,
        address: str,
    ) -> tuple[Tensor, KeyValueCache | None]:
        """As `Block.forward`, of x [B, L, D] float32; [1, R, D] without its padding."""
        x = x.contiguous()
        positions = sight.self_positions
        starts = None if sight.rows is None else sight.rows.starts
        rows = x.shape[0] * x.shape[1]
        described = self.layer
        attention = self.block.self_attention
        projected = x.new_empty((rows, described.self.projection.out_width))
        layer = ctypes.byref(described)
        library = kernels()
        space = workspace(library.heedful_layer_room(layer, rows, 0))
        library.heedful_project(layer, x.data_ptr(), rows, projected.data_ptr(), space.data_ptr())
        places = positions.query if sight.rows is None else sight.rows.positions
        if self.turning is not None:
            turned = attention.heads_left + attention.key_heads_left
            library.heedful_turn(
                *(turns_at(self.turning, places), projected.data_ptr(), rows),
                *(projected.shape[1], turned, attention.head_width),
            )
        parts = projected.view(*places.shape, projected.shape[1])
        q, k, v = attention.heads_of(*parts.split(self.widths, -1))
        if cache is not None:
            cache, positions = cache.extend(k, v, positions)
            k, v = cache.keys, cache.values
        biases = attention.biases_with(sight.biases)
        own = _Seen(attention, q, KeyValues(k, v), positions, biases, starts, starts)
        own.ask_for_weights(sight.capture, f"{address}.self.weights")
        num_keys, cross = own.described.num_keys, None
        if self.block.cross_attention is not None:
            assert memory is not None and sight.memory_positions is not None
            positions = sight.memory_positions
            cross = _Seen(self.block.cross_attention, None, memory, positions, (), starts)
            cross.ask_for_weights(sight.capture, f"{address}.cross.weights")
            num_keys = max(num_keys, cross.described.num_keys)
        y = torch.empty_like(x)
        space = workspace(library.heedful_layer_room(layer, rows, num_keys))
        library.heedful_layer(
            layer,
            x.data_ptr(),
            rows,
            ctypes.byref(own.described),
            None if cross is None else ctypes.byref(cross.described),
            y.data_ptr(),
            space.data_ptr(),
        )
        own.give_weights(sight.capture)
        if cross is not None:
            cross.give_weights(sight.capture)
        return y, cache


class _Seen:
    """What an attention sees, with the tensors that hold it.

    Args:
        attention: whose it is.
        q: [B, H, Lq, E] with the heads of a query side by side; None where kernels make them.
        memory: keys and values [B, K, Lk, E], with the numbers of each side by side.
        positions: of queries and keys.
        biases: added to the scores.
        query_rows: [B + 1] int64, where the queries of each sentence begin, if they come without
            padding: q and those positions are [1, H, R, E] and [B, Lq].
        key_rows: the same of keys and values.
    """

    def __init__(
        self,
        attention: Attention,
        q: Tensor | None,
        memory: KeyValues,
        positions: Positions,
        biases: Sequence[Bias],
        query_rows: Tensor | None = None,
        key_rows: Tensor | None = None,
    ) -> None:
        self.attention = attention
        self.shown: tuple[str, Tensor] | None = None
        described = self.described = Seen()
        k, v = (lying(t) for t in (memory.keys, memory.values))
        if q is not None:
            described.queries = q.data_ptr()
            described.query_batch, described.query_row = q.stride(0), q.stride(2)
        described.keys, described.values = k.data_ptr(), v.data_ptr()
        described.key_batch, described.key_head, described.key_slot = k.stride()[:3]
        described.value_batch, described.value_head, described.value_slot = v.stride()[:3]
        visible = tell_positions(described, positions, attention.mask)
        described.query_rows, described.key_rows = address(query_rows), address(key_rows)
        bias = None
        if biases:
            assert q is not None
            request = make_request(
                q, k, v, positions, attention.mask, biases, attention.scale, attention.softcap
            )
            bias = total_bias(request)
            assert bias is not None
            bias = bias.contiguous()
            described.bias = address(bias)
            described.bias_batch = bias.stride(0) if bias.shape[0] > 1 else 0
            described.bias_head, described.bias_query = bias.stride()[1:3]
        self.held = (q, k, v, visible, bias, query_rows, key_rows)

    def ask_for_weights(self, capture: Capture | None, place: str) -> None:
        """Have kernels leave the weights of attention for a capture that wants them."""
        if capture is None or not capture.wants(place):
            return
        described, heads = self.described, self.attention.heads_left
        weights = torch.zeros(described.batch, heads, described.num_queries, described.num_keys)
        described.weights = weights.data_ptr()
        described.weights_suffice = capture.ends_with(place)
        self.shown = place, weights

    def give_weights(self, capture: Capture | None) -> None:
        """Give the capture what it asked for, [B, H, Lq, Lk]."""
        if capture is not None and self.shown is not None:
            place, weights = self.shown
            capture.keep(place, self.attention.kept.in_place(weights))


def tell_positions(described: Seen, positions: Positions, mask: Mask) -> Tensor | None:
    """Say how many queries and keys there are and who sees whom.

    Returns:
        What must outlive the call that is told.
    """
    described.batch, described.num_queries = positions.query.shape
    described.num_keys = positions.key.shape[1]
    visible = _visible(positions, mask)
    if visible is None:
        return None
    described.visible = visible.data_ptr()
    described.visible_batch = visible.stride(0) if visible.shape[0] > 1 else 0
    described.visible_query = visible.stride(2) if visible.shape[2] > 1 else 0
    return visible


def turns_at(turning: Turning, places: Tensor) -> Turns:
    """By what queries and keys at some places [B, L] are turned."""
    places = places.contiguous()
    return turning.at(places.data_ptr(), places.numel())


def _visible(positions: Positions, mask: Mask) -> Tensor | None:
    """Which key each query sees, bytes or bool [B|1, 1, Lq|1, Lk]; None if it is every one."""
    if mask not in _PLAIN_MASKS:
        return None if positions.shows_all(mask) else positions.visible(mask).contiguous()
    return positions.derive(("seen", mask), lambda: _looked_up(positions, mask == Causal()))


def _looked_up(positions: Positions, causal: bool) -> Tensor | None:
    query, key, lineage = positions.query.contiguous(), positions.key.contiguous(), None
    if positions.lineage is not None:
        lineage = positions.lineage.contiguous()
    shape = (query.shape[0], query.shape[1], key.shape[1])
    visible = torch.empty((shape[0], 1, *shape[1:]), dtype=torch.uint8)
    all_seen = kernels().heedful_visible(
        *(query.data_ptr(), key.data_ptr(), address(lineage), *shape, causal, visible.data_ptr())
    )
    return None if all_seen else visible


def runs_natively(block: Block) -> bool:
    """Whether kernels in C compute all that a block does, once its linear layers are theirs."""
    library = kernels()
    feedforward = block.feedforward
    if library is None or type(feedforward) is not FeedForward:
        return False
    attentions = [block.self_attention]
    if block.cross_attention is not None:
        attentions.append(block.cross_attention)
    return _activation(feedforward) is not None and all(
        attention.softcap is None
        and attention.kept.regroup is None
        and attention.head_width % library.heedful_lanes() == 0
        and (not attention.heads_left or isinstance(attention.output, NativeLinear))
        for attention in attentions
    )


def _described(attention: Attention, norm: nn.Module) -> AttentionLayer:
    return AttentionLayer(
        _linear(_projection(attention)[0]),
        _linear(attention.output),
        described_norm(norm),
        attention.heads_left,
        attention.key_heads_left,
        attention.head_width,
        attention.scale,
    )


def _projection(attention: Attention) -> tuple[nn.Module, list[int]]:
    """What makes queries, keys and values, and how wide each is."""
    projection: nn.Module = attention.projection
    if isinstance(projection, Fused):
        return projection.layer, projection.out_widths
    assert isinstance(projection, FusedLinear)
    return projection, list(projection.out_widths.values())


def _linear(layer: nn.Module) -> Linear:
    if isinstance(layer, NativeLinear):
        return layer.described
    assert isinstance(layer, FusedLinear | nn.Linear)
    assert not layer.weight.numel()  # of no heads: all there is to add is a bias
    return Linear(None, address(layer.bias), None, None, *reversed(layer.weight.shape))


def _activation(feedforward: FeedForward) -> int | None:
    if isinstance(feedforward.activation, nn.Identity):  # `up` does it
        return 0
    return _ACTIVATIONS.get(feedforward.activation)
