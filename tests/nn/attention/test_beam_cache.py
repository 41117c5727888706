"""Rows that continuations share hold what rows of their own would hold."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.engines.inference.cpu_attention import places_of
from heedful.nn.attention import beam_cache
from heedful.nn.attention.beam_cache import BeamCache, Lineage, choose_beams
from heedful.nn.attention.masks import Causal

HEADS, WIDTH = 2, 3


def chosen(cache, lineage, rows):
    """The cache and the lineage of the chosen beams."""
    lineage, choice = choose_beams(lineage, rows)
    return cache.reorder(choice), lineage


def token(value: int) -> torch.Tensor:
    """Keys of a token that are its number: [heads, width]."""
    return torch.full((HEADS, WIDTH), float(value))


def grown(
    cache: BeamCache, lineage: Lineage, values: list[list[int]], at: int, *, claims: bool = False
):
    """One more token of every continuation; its keys are its value, its values the negative."""
    keys = torch.stack([torch.stack([token(v) for v in row], 1) for row in values])
    lineage, positions = lineage.append(torch.full((len(values), len(values[0])), at))
    if claims:  # and puts them there
        used = cache.used
        cache, store = cache.claim(keys.shape, keys)
        assert places_of(store).keys == store.keys.data_ptr()
        assert places_of(store).value_strides == store.values.stride()
        store.keys[:, :, used : cache.used] = keys
        store.values[:, :, used : cache.used] = -keys
        return cache, lineage, positions
    cache, same = cache.extend(keys, -keys, positions)
    assert same is positions
    return cache, lineage, positions


def pasts(cache: BeamCache, positions, width: int) -> list[list[list[int]]]:
    """What each continuation sees, in the order of positions."""
    seen = positions.visible(Causal())[:, 0]
    found = []
    for row in range(len(seen)):
        found.append([])
        for beam in range(width):
            slots = seen[row, beam].nonzero()[:, 0].tolist()
            slots.sort(key=lambda slot: int(positions.key[row, slot]))
            for part, sign in ((cache.keys, 1), (cache.values, -1)):
                assert (part[row, :, slots] == part[row, :1, slots][..., :1]).all()
                ids = [sign * int(part[row, 0, slot, 0]) for slot in slots]
            found[-1].append(ids)
    return found


@given(data=st.data(), limit=st.sampled_from([4, 1000]))
@settings(max_examples=60)
@torch.no_grad()
def test_every_continuation_sees_its_own_past(data, limit):
    width, count = 1, data.draw(st.integers(1, 3))
    cache, lineage = BeamCache(), Lineage.empty(count, torch.device("cpu"))
    lineage = Lineage(lineage.positions, compact_from=limit)
    model: list[list[list[int]]] = [[[]] for _ in range(count)]
    fresh = iter(range(1, 10_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_cache, "_COMPACT_FROM", limit)
        for step in range(data.draw(st.integers(2, 12))):
            values = [[next(fresh) for _ in range(width)] for _ in model]
            claims = data.draw(st.booleans())
            cache, lineage, positions = grown(cache, lineage, values, step, claims=claims)
            for row, new in zip(model, values, strict=True):
                for past, value in zip(row, new, strict=True):
                    past.append(value)
            assert pasts(cache, positions, width) == model
            picked = data.draw(st.lists(st.integers(0, len(model) - 1), min_size=1, max_size=3))
            wide = data.draw(st.integers(1, 4))
            rows = [
                [s * width + data.draw(st.integers(0, width - 1)) for _ in range(wide)]
                for s in picked
            ]
            cache, lineage = chosen(cache, lineage, torch.tensor(rows))
            model = [[list(model[r // width][r % width]) for r in row] for row in rows]
            width = wide


@torch.no_grad()
def test_a_layer_whose_heads_were_all_removed_has_the_slots_of_the_others(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "HEADS", 0)
    lineage = Lineage(Lineage.empty(2, torch.device("cpu")).positions, compact_from=2)
    cache, width = BeamCache(), 1
    for at in range(6):
        cache, lineage, positions = grown(cache, lineage, [[1] * width] * 2, at)
        assert cache.keys.shape == (2, 0, positions.key.shape[1], WIDTH)
        rows = torch.tensor([[0, 0, 0], [width, width, width]])
        cache, lineage = chosen(cache, lineage, rows)
        width = 3


@torch.no_grad()
def test_unneeded_slots_are_dropped():
    cache, lineage = BeamCache(), Lineage.empty(1, torch.device("cpu"))
    values = [[1]]
    for step in range(200):
        cache, lineage, _ = grown(cache, lineage, values, step)
        cache, lineage = chosen(cache, lineage, torch.tensor([[0, 0, 0, 0]]))
        values = [[step, 1000, 1001, 1002]]
    assert cache.keys.shape[2] < 500  # of 797 that were read, 200 are anybody's past


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("claims", [True, False])
def test_a_cache_is_a_value(grad, claims):
    with torch.set_grad_enabled(grad):
        cache, lineage = BeamCache(), Lineage.empty(1, torch.device("cpu"))
        cache, lineage, _ = grown(cache, lineage, [[1]], 0, claims=claims)
        one, _, first = grown(cache, lineage, [[2]], 1, claims=claims)
        other, _, second = grown(cache, lineage, [[3]], 1, claims=claims)
        assert pasts(one, first, 1) == [[[1, 2]]]
        assert pasts(other, second, 1) == [[[1, 3]]]
        assert cache.keys.shape[2] == 1


def test_what_inference_mode_made_can_be_continued_outside():
    with torch.inference_mode():
        cache, lineage = BeamCache(), Lineage.empty(1, torch.device("cpu"))
        cache, lineage, _ = grown(cache, lineage, [[1]], 0)
    with torch.no_grad():
        cache, lineage, positions = grown(cache, lineage, [[2]], 1)
        assert pasts(cache, positions, 1) == [[[1, 2]]]
