"""Arguments of attention in C: keys, masks, biases, rotary angles and captured weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heedful.engines.inference.lowering import RotaryAngles
from heedful.kernels.library import HeadAddresses, address, contiguous_vectors, kernels
from heedful.kernels.structs import AttentionArgs, RotaryTable
from heedful.nn.attention.attend import make_request
from heedful.nn.attention.beam_cache import Store
from heedful.nn.attention.cache import KeyValues
from heedful.nn.attention.kernels.request import shows_all, total_bias
from heedful.nn.attention.masks import Causal, Everything, Mask
from heedful.nn.attention.multi_head import Attention
from heedful.nn.positions import Positions

if TYPE_CHECKING:
    from heedful.nn.attention.relative_positions import Bias
    from heedful.nn.capture import Capture

_PLAIN_MASKS = (Everything(), Causal())


class AttentionCall:
    """Arguments of one attention in C, which keep the tensors behind their addresses alive.

    Args:
        attention: module of the attention.
        q: queries [B, H, Lq, E], a token's heads adjacent; None where kernels project them.
        memory: keys and values [B, K, Lk, E], the elements of a head adjacent.
        positions: positions of queries and keys.
        biases: position biases of the scores.
        query_rows: first row of each sentence's queries [B + 1] int64 for queries without padding,
            whose q is [1, H, R, E]; or None.
        key_rows: first row of each sentence's keys and values [B + 1] int64; or None.
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
        self.captured: tuple[str, Tensor] | None = None
        args = self.args = AttentionArgs()
        k, v = (contiguous_vectors(t) for t in (memory.keys, memory.values))
        if q is not None:
            args.queries = q.data_ptr()
            args.query_batch, args.query_row = q.stride(0), q.stride(2)
        args.keys, args.values = k.data_ptr(), v.data_ptr()
        args.key_batch, args.key_head, args.key_slot = k.stride()[:3]
        args.value_batch, args.value_head, args.value_slot = v.stride()[:3]
        visible = set_positions(args, positions, attention.mask)
        args.query_starts, args.key_starts = address(query_rows), address(key_rows)
        bias = None
        if biases:
            # PyTorch sums the biases; C adds one tensor to the scores.
            assert q is not None
            request = make_request(
                q, k, v, positions, attention.mask, biases, attention.scale, attention.softcap
            )
            bias = total_bias(request)
            assert bias is not None
            bias = bias.contiguous()
            args.bias = address(bias)
            # A stride of 0 repeats one bias for all sentences, as broadcasting does.
            args.bias_batch = bias.stride(0) if bias.shape[0] > 1 else 0
            args.bias_head, args.bias_query = bias.stride()[1:3]
        # `args` holds only addresses: without these references the tensors would be
        # freed too early.
        self.kept_alive = (q, k, v, visible, bias, query_rows, key_rows)

    def request_weights(self, capture: Capture | None, place: str) -> None:
        """Ask kernels for the attention weights if a capture wants them."""
        if capture is None or not capture.wants(place):
            return
        args, heads = self.args, self.attention.heads_left
        # Zeros, since kernels write no weights of queries that are padding.
        weights = torch.zeros(args.batch, heads, args.num_queries, args.num_keys)
        args.weights = weights.data_ptr()
        # A capture that ends here needs neither values nor the output map.
        args.weights_only = capture.ends_with(place)
        self.captured = place, weights

    def give_weights(self, capture: Capture | None) -> None:
        """Give the capture the requested weights [B, H, Lq, Lk], pruned heads included."""
        if capture is not None and self.captured is not None:
            place, weights = self.captured
            capture.keep(place, self.attention.kept.in_place(weights))


def set_positions(args: AttentionArgs, positions: Positions, mask: Mask) -> Tensor | None:
    """Set the numbers of queries and keys, and the keys that each query sees.

    Returns:
        The tensor whose address was set, or None; it must outlive the call.
    """
    args.batch, args.num_queries = positions.query.shape
    args.num_keys = positions.key.shape[1]
    visible = _visible(positions, mask)
    if visible is None:
        return None
    args.visible = visible.data_ptr()
    args.visible_batch = visible.stride(0) if visible.shape[0] > 1 else 0
    args.visible_query = visible.stride(2) if visible.shape[2] > 1 else 0
    return visible


def rotary_table(rotary: RotaryAngles, places: Tensor) -> RotaryTable:
    """Return the rotary angles of queries and keys at positions [B, L]."""
    places = places.contiguous()
    return rotary.at(places.data_ptr(), places.numel())


def places_of(memory: KeyValues | Store) -> HeadAddresses:
    """Return the addresses and strides of keys and values, cached in their object."""
    # Every layer asks in every step, and `data_ptr` and `stride` are calls into PyTorch.
    addresses: HeadAddresses | None = vars(memory).get("addresses")
    if addresses is None:
        addresses = vars(memory)["addresses"] = HeadAddresses.of(memory.keys, memory.values)
    return addresses


def _visible(positions: Positions, mask: Mask) -> Tensor | None:
    """Return the keys that each query sees, bytes or bool [B|1, 1, Lq|1, Lk]; None if all."""
    if mask not in _PLAIN_MASKS:
        if shows_all(positions, mask, readable=True):
            return None
        return positions.visible(mask).contiguous()
    # All layers share the positions of a pass, so the first of them computes this for the rest.
    return positions.derive(("seen", mask), lambda: _find_visible(positions, mask == Causal()))


def _find_visible(positions: Positions, causal: bool) -> Tensor | None:
    query, key, lineage = positions.query.contiguous(), positions.key.contiguous(), None
    if positions.lineage is not None:
        lineage = positions.lineage.contiguous()
    shape = (query.shape[0], query.shape[1], key.shape[1])
    visible = torch.empty((shape[0], 1, *shape[1:]), dtype=torch.uint8)
    all_visible = kernels().heedful_visible(
        *(query.data_ptr(), key.data_ptr(), address(lineage), *shape, causal, visible.data_ptr())
    )
    return None if all_visible else visible
