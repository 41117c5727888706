"""Arguments of attention by kernels in C: keys, masks, biases, rotation, captured weights."""

from __future__ import annotations

from collections.abc import Sequence

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
from heedful.nn.attention.relative_positions import Bias
from heedful.nn.capture import Capture
from heedful.nn.positions import Positions

_PLAIN_MASKS = (Everything(), Causal())


class AttentionCall:
    """Arguments of one attention by kernels, with the tensors that their addresses are of.

    Args:
        attention: the module.
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
        self.captured: tuple[str, Tensor] | None = None
        described = self.described = AttentionArgs()
        k, v = (contiguous_vectors(t) for t in (memory.keys, memory.values))
        if q is not None:
            described.queries = q.data_ptr()
            described.query_batch, described.query_row = q.stride(0), q.stride(2)
        described.keys, described.values = k.data_ptr(), v.data_ptr()
        described.key_batch, described.key_head, described.key_slot = k.stride()[:3]
        described.value_batch, described.value_head, described.value_slot = v.stride()[:3]
        visible = set_positions(described, positions, attention.mask)
        described.query_starts, described.key_starts = address(query_rows), address(key_rows)
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
        self.kept_alive = (q, k, v, visible, bias, query_rows, key_rows)

    def request_weights(self, capture: Capture | None, place: str) -> None:
        """Have kernels write the weights of attention for a capture that wants them."""
        if capture is None or not capture.wants(place):
            return
        described, heads = self.described, self.attention.heads_left
        weights = torch.zeros(described.batch, heads, described.num_queries, described.num_keys)
        described.weights = weights.data_ptr()
        described.weights_only = capture.ends_with(place)
        self.captured = place, weights

    def give_weights(self, capture: Capture | None) -> None:
        """Give the capture what it asked for, [B, H, Lq, Lk]."""
        if capture is not None and self.captured is not None:
            place, weights = self.captured
            capture.keep(place, self.attention.kept.in_place(weights))


def set_positions(described: AttentionArgs, positions: Positions, mask: Mask) -> Tensor | None:
    """Fill in the numbers of queries and keys, and which key each query sees.

    Returns:
        The tensor whose address was filled in, if any; it must outlive the call.
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


def rotary_table(rotary: RotaryAngles, places: Tensor) -> RotaryTable:
    """The angles of queries and keys at positions [B, L]."""
    places = places.contiguous()
    return rotary.at(places.data_ptr(), places.numel())


def places_of(memory: KeyValues | Store) -> HeadAddresses:
    """Return the addresses and strides of keys and values; found once, and kept with them."""
    found: HeadAddresses | None = vars(memory).get("addresses")
    if found is None:
        found = vars(memory)["addresses"] = HeadAddresses.of(memory.keys, memory.values)
    return found


def _visible(positions: Positions, mask: Mask) -> Tensor | None:
    """Return the keys visible to each query, bytes or bool [B|1, 1, Lq|1, Lk]; None if all are."""
    if mask not in _PLAIN_MASKS:
        if shows_all(positions, mask, readable=True):
            return None
        return positions.visible(mask).contiguous()
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
