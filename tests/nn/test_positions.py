"""Positions as a value, and the two encodings that are added to embeddings."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from heedful.engines.class_exchange import Exchange
from heedful.engines.host_parts import HOST_KINDS, PROCESSOR_KERNELS
from heedful.errors import ModelError
from heedful.nn.attention.attend import KernelSet, make_request
from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    is_causal,
    may_have_blind_rows,
    shows_all,
)
from heedful.nn.attention.masks import Causal, Everything, Mask, SameSegment, Window
from heedful.nn.positions import LearnedPositions, Positions, SinusoidalPositions


def test_self_attention_has_its_queries_as_keys() -> None:
    positions = torch.tensor([[0, 1, -1]])
    segments = torch.tensor([[0, 0, 0]])
    value = Positions.of_self(positions, segments)
    assert value.query is positions
    assert value.key is positions
    assert value.query_segment is segments
    assert value.key_segment is segments


def test_padding_neither_sees_nor_is_seen() -> None:
    visible = Positions.of_self(torch.tensor([[-1, 0, 1, -1]])).visible(Everything())
    assert visible[0, 0].int().tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]


def test_visibility_is_made_once_per_mask() -> None:
    value = Positions.of_self(torch.arange(4)[None])
    assert value.visible(Causal()) is value.visible(Causal())
    assert value.visible(Window(2)) is not value.visible(Window(3))


def test_slices_show_what_the_whole_shows() -> None:
    positions = torch.tensor([[-1, 0, 1, 2, 3], [0, 1, 0, 1, 2]])
    segments = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]])
    whole = Positions.of_self(positions, segments)
    part = whole.at_queries(slice(1, 4)).at_keys(slice(2, 5))
    mask = Causal() & SameSegment()
    assert torch.equal(part.visible(mask), whole.visible(mask)[:, :, 1:4, 2:5])
    assert torch.equal(part.distance(), whole.distance()[:, 1:4, 2:5])


def asked(value: Positions, mask: Mask, kernels: KernelSet = PROCESSOR_KERNELS) -> AttentionRequest:
    """Of positions that can be read, unless other kernels are given."""
    q, k = (torch.zeros(*each.shape[:1], 1, each.shape[1], 2) for each in (value.query, value.key))
    return make_request(q, k, k, value, mask, kernels=kernels)


def all_seen_in(request: AttentionRequest) -> bool:
    return shows_all(request.positions, request.mask, request.readable)


@pytest.mark.parametrize(
    ("positions", "all_seen", "blind"),
    [([[0, 1]], True, False), ([[0, 1, -1]], False, True), ([[-1, -1]], False, True)],
)
def test_what_is_known_of_the_rows(positions: list[list[int]], all_seen: bool, blind: bool) -> None:
    value = Positions.of_self(torch.tensor(positions))
    assert all_seen_in(asked(value, Everything())) == all_seen
    assert may_have_blind_rows(asked(value, Everything())) == blind


def test_a_hidden_key_is_not_a_blind_query() -> None:
    value = Positions(torch.tensor([[5]]), torch.tensor([[0, -1]]))
    assert not all_seen_in(asked(value, Everything()))
    assert not may_have_blind_rows(asked(value, Everything()))


@pytest.mark.parametrize(
    "mask", [Everything(), Causal(), Causal() & SameSegment(), SameSegment() & Window(2), Window(2)]
)
def test_what_is_known_without_looking(mask: Mask) -> None:
    """Of rows that count from 0 what their masks show; of others nothing, which is always true."""
    rows = torch.arange(3).expand(2, -1)
    looked_at, unknown = (
        asked(Positions.of_self(rows), mask, kernels)
        for kernels in (PROCESSOR_KERNELS, KernelSet())
    )
    counted = Positions.counting(2, 3, rows.device)
    assert torch.equal(counted.query, rows)
    assert torch.equal(counted.key, rows)
    known = asked(counted, mask, KernelSet())
    assert all_seen_in(known) == all_seen_in(looked_at) == (mask == Everything())
    assert not all_seen_in(unknown)
    # A rule of segments hides nothing in rows that have none.
    assert is_causal(known) == (mask in (Causal(), Causal() & SameSegment()))
    assert not is_causal(unknown)
    assert may_have_blind_rows(known) == (Window(2) in mask.conjuncts)
    assert not may_have_blind_rows(looked_at)
    assert may_have_blind_rows(unknown)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("places", [[0, 5021, 57, 1, 57, 1_000_003], [0, 5021, 57, 1, 57]])
@pytest.mark.parametrize("layout", ["pairs", "halves"])
@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_follow_the_formula(
    width: int, layout: Literal["pairs", "halves"], places: list[int], on_host: bool
) -> None:
    module = SinusoidalPositions(width, layout)
    if on_host:  # the farthest place lies past its table
        Exchange(module, HOST_KINDS).make()
        assert type(module) is HOST_KINDS[SinusoidalPositions]
    found = module(torch.tensor([[*places, -1]]))
    assert found.dtype == torch.float32
    sines = (width + 1) // 2
    for j, position in enumerate(places):
        for channel in range(width):
            pair, second = divmod(channel, 2)
            if layout == "halves":
                pair, second = channel % sines, channel // sines
            angle = position / 10_000 ** (2 * pair / width)
            expected = math.cos(angle) if second else math.sin(angle)
            assert found[0, j, channel].item() == pytest.approx(expected, abs=1e-7)
    assert found[0, -1].abs().max() == 0


def test_learned_positions_look_up_their_row() -> None:
    module = LearnedPositions(3, max_length=4)
    found = module(torch.tensor([[3, -1, 0]]))
    assert torch.equal(found[0, 0], module.weight[3])
    assert found[0, 1].abs().max() == 0
    assert torch.equal(found[0, 2], module.weight[0])
    found.sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.sum(-1).tolist() == [3, 0, 0, 3]


def test_learned_positions_end_in_an_error_and_are_not_clipped() -> None:
    with pytest.raises(ModelError, match="Position 4 lies past"):
        LearnedPositions(3, max_length=4)(torch.tensor([[0, 4]]))
