"""Caches: attention over a cache equals attention over the whole sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.nn.attention.attend import attend
from heedful.nn.attention.cache import Cache, RingCache, StaticCache
from heedful.nn.attention.masks import Causal, Mask, Window
from heedful.nn.mixer import Reordering
from heedful.nn.positions import Positions
from tests.reference_parts import GrowingCache

WINDOW = 4
LENGTH = 11
# Left padding, right padding, none.
LAYOUTS = torch.stack(
    [
        torch.cat([torch.full((3,), -1), torch.arange(LENGTH - 3)]),
        torch.cat([torch.arange(LENGTH - 2), torch.full((2,), -1)]),
        torch.arange(LENGTH),
    ]
)


def tokens() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(3, 4, LENGTH, 8),
        torch.randn(3, 2, LENGTH, 8),
        torch.randn(3, 2, LENGTH, 6),
    )


def empty(kind: str) -> Cache:
    _, k, v = tokens()
    if kind == "growing":
        return GrowingCache.empty(k, v)
    if kind == "static":
        return StaticCache.empty(k, v, capacity=LENGTH + 2)
    return RingCache.empty(k, v, capacity=WINDOW + 2, window=WINDOW)


def slices(chunks: list[int]) -> list[slice]:
    stops = torch.tensor(chunks).cumsum(0).tolist()
    return [slice(stop - size, stop) for stop, size in zip(stops, chunks, strict=True)]


@pytest.mark.parametrize("chunks", [[1] * LENGTH, [3, 3, 3, 2], [2, 1, 3, 1, 3, 1]])
@pytest.mark.parametrize("kind", ["growing", "static", "ring"])
@torch.no_grad()
def test_attention_in_chunks_equals_attention_at_once(kind: str, chunks: list[int]) -> None:
    q, k, v = tokens()
    mask = Causal() & Window(WINDOW)
    whole = attend(q, k, v, Positions.of_self(LAYOUTS), mask, kernel="reference")
    cache = empty(kind)
    for part in slices(chunks):
        cache = cache.append(k[:, :, part], v[:, :, part], LAYOUTS[:, part])
        positions = Positions(LAYOUTS[:, part], cache.positions)
        found = attend(q[:, :, part], cache.keys, cache.values, positions, mask)
        torch.testing.assert_close(found, whole[:, :, part], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["growing", "static"])
@torch.no_grad()
def test_without_a_window_too(kind: str) -> None:
    q, k, v = tokens()
    whole = attend(q, k, v, Positions.of_self(LAYOUTS), Causal(), kernel="reference")
    cache = empty(kind)
    for part in slices([4] + [1] * (LENGTH - 4)):
        cache = cache.append(k[:, :, part], v[:, :, part], LAYOUTS[:, part])
    found = attend(
        q[:, :, -1:],
        cache.keys,
        cache.values,
        Positions(LAYOUTS[:, -1:], cache.positions),
        Causal(),
    )
    torch.testing.assert_close(found, whole[:, :, -1:], atol=1e-5, rtol=0)


def test_padding_in_every_chunk_makes_a_ring_forget_nothing() -> None:
    """Right-padded chunks: a ring that counted slots would lose keys of the window."""
    _, k, v = tokens()
    cache = RingCache.empty(k, v, capacity=WINDOW + 2, window=WINDOW)
    for start in range(5):
        at = torch.tensor([[start, -1, -1]] * 3)
        cache = cache.append(k[:, :, :3], v[:, :, :3], at)
    held = sorted(p for p in cache.positions[0].tolist() if p >= 0)
    assert held == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["growing", "static", "ring"])
@torch.no_grad()
def test_reorder_takes_rows(kind: str) -> None:
    _, k, v = tokens()
    cache = empty(kind).append(k[:, :, :3], v[:, :, :3], LAYOUTS[:, :3])
    rows = torch.tensor([2, 0, 0, 1])
    taken = cache.reorder(Reordering(rows[:, None]))
    assert type(taken) is type(cache)
    assert torch.equal(taken.keys, cache.keys[rows])
    assert torch.equal(taken.values, cache.values[rows])
    assert torch.equal(taken.positions, cache.positions[rows])
    # Rows that were one are two now: writing to one does not show in the other.
    new = torch.randn(4, 2, 1, 8)
    later = taken.append(new, torch.randn(4, 2, 1, 6), torch.tensor([[3], [0], [0], [3]]))
    slot = (later.positions[0] == 3).nonzero().item()
    assert torch.equal(later.keys[0, :, int(slot)], new[0, :, 0])
    assert torch.equal(cache.positions, taken.positions[torch.tensor([1, 3, 0])])


@pytest.mark.parametrize("kind", ["growing", "static", "ring"])
@torch.no_grad()
def test_trimmed_tokens_can_be_appended_anew(kind: str) -> None:
    q, k, v = tokens()
    at = torch.arange(LENGTH)[None].expand(3, -1)
    mask = Causal() & Window(WINDOW)
    whole = attend(q, k, v, Positions.of_self(at), mask, kernel="reference")
    cache = empty(kind)
    for part in slices([3, 3]):
        cache = cache.append(k[:, :, part], v[:, :, part], at[:, part])
    wrong = torch.full((3, 2, 1, 8), 50.0), torch.full((3, 2, 1, 6), 50.0)
    cache = cache.append(*wrong, torch.full((3, 1), 6)).trim(6)
    for part in (slice(6, 8), slice(8, 9)):
        cache = cache.append(k[:, :, part], v[:, :, part], at[:, part])
    found = attend(
        q[:, :, 8:9], cache.keys, cache.values, Positions(at[:, 8:9], cache.positions), mask
    )
    torch.testing.assert_close(found, whole[:, :, 8:9], atol=1e-5, rtol=0)


def test_trimming_gives_slots_back() -> None:
    _, k, v = tokens()
    at = torch.arange(LENGTH)[None].expand(3, -1)
    grown = GrowingCache.empty(k, v).append(k, v, at).trim(4)
    assert grown.keys.shape[2] == 4
    static = StaticCache.empty(k, v, LENGTH).append(k, v, at).trim(4)
    assert static.used == 4
    assert StaticCache.empty(k, v, 3).trim(0).used == 0


def test_a_ring_does_not_go_back_past_what_it_has_overwritten() -> None:
    _, k, v = tokens()
    cache = RingCache.empty(k, v, capacity=6, window=WINDOW)
    for i in range(9):
        cache = cache.append(k[:, :, :1], v[:, :, :1], torch.full((3, 1), i))
    # Held: 3 to 8. The query at 6 sees 3 to 6, the one at 5 would need 2.
    assert sorted(cache.trim(6).positions[0].tolist()) == [-1, -1, -1, -1, 3, 4, 5]
    with pytest.raises(ModelError, match="cannot go back to position 5"):
        cache.trim(5)


def test_a_full_static_cache_says_so() -> None:
    _, k, v = tokens()
    with pytest.raises(ModelError, match="11 tokens do not fit into a cache of 8"):
        StaticCache.empty(k, v, capacity=8).append(k, v, LAYOUTS)


def test_a_ring_refuses_a_chunk_that_would_overwrite_its_own_window() -> None:
    _, k, v = tokens()
    cache = RingCache.empty(k, v, capacity=WINDOW + 2, window=WINDOW)
    with pytest.raises(ModelError, match="at most 3 tokens at a time"):
        cache.append(k[:, :, :4], v[:, :, :4], LAYOUTS[:, :4])
    with pytest.raises(ModelError, match="cannot hold a window"):
        RingCache.empty(k, v, capacity=WINDOW - 1, window=WINDOW)


def test_without_gradients_a_static_cache_is_written_in_place() -> None:
    _, k, v = tokens()
    cache = StaticCache.empty(k, v, LENGTH)
    with torch.no_grad():
        assert cache.append(k, v, LAYOUTS).keys.data_ptr() == cache.keys.data_ptr()


@torch.no_grad()
def test_an_earlier_static_value_stays_readable() -> None:
    q, k, v = tokens()
    at = torch.arange(LENGTH)[None].expand(3, -1)
    early = StaticCache.empty(k, v, LENGTH).append(k[:, :, :3], v[:, :, :3], at[:, :3])

    def read(cache: Cache) -> Tensor:
        positions = Positions(at[:, 9:10], cache.positions)
        return attend(q[:, :, 9:10], cache.keys, cache.values, positions, Causal())

    before = read(early)
    early.append(k[:, :, 3:6], v[:, :, 3:6], at[:, 3:6])
    assert torch.equal(read(early), before)


@pytest.mark.parametrize("kind", ["growing", "static", "ring"])
def test_gradients_flow_through_appends(kind: str) -> None:
    q, k, v = tokens()
    k.requires_grad_()
    mask: Mask = Causal() & Window(WINDOW)
    attend(q, k, v, Positions.of_self(LAYOUTS), mask, kernel="reference").sum().backward()
    assert k.grad is not None
    expected, k.grad = k.grad, None
    cache, total = empty(kind), torch.zeros(())
    for part in slices([3, 3, 3, 2]):
        cache = cache.append(k[:, :, part], v[:, :, part], LAYOUTS[:, part])
        positions = Positions(LAYOUTS[:, part], cache.positions)
        total = total + attend(q[:, :, part], cache.keys, cache.values, positions, mask).sum()
    total.backward()
    torch.testing.assert_close(k.grad, expected, atol=1e-5, rtol=0)
