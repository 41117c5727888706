"""Attention over sequences side by side: which sequences, in which places, and what is refused.

PyTorch's kernel is for CUDA. A stand-in computes what its documentation says, a sequence at a time.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heedful.errors import ModelError
from heedful.nn.attention.attend import attend, make_request, plan
from heedful.nn.attention.kernels import varlen
from heedful.nn.attention.masks import Causal, Everything, Mask, Prefix, SameSegment, Window
from heedful.nn.attention.relative_positions import T5Bias
from heedful.nn.positions import Positions

HEADS, WIDTH = 4, 8


def by_its_documentation(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """[T, H, E]; windows are counted from the last query, which stands at the last key."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert len(cu_seq_q) == len(cu_seq_k)
    assert (cu_seq_q[-1], cu_seq_k[-1]) == (len(query), len(key))
    assert enable_gqa == (query.shape[1] != key.shape[1])
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    pieces = []
    for number in range(len(cu_seq_q) - 1):
        q = query[cu_seq_q[number] : cu_seq_q[number + 1]]
        k, v = (x[cu_seq_k[number] : cu_seq_k[number + 1]] for x in (key, value))
        if not len(k):  # of which nothing is promised
            pieces.append(torch.full_like(q, 7.0))
            continue
        assert len(q) <= max_q
        assert len(k) <= max_k
        ahead = torch.arange(len(k)) - torch.arange(len(q))[:, None] - (len(k) - len(q))
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if window_size[0] >= 0:
            seen &= ahead >= -window_size[0]
        if window_size[1] >= 0:
            seen &= ahead <= window_size[1]
        scores = scale * torch.einsum("qhe,khe->hqk", q, k)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        pieces.append(torch.einsum("hqk,khe->qhe", weights, v))
    return torch.cat(pieces)


def places(texts: list[list[int]], length: int) -> tuple[Tensor, Tensor]:
    """Positions and segments [B, L] of rows of texts so long, each counted from 0."""
    rows, segments = torch.full((2, len(texts), length), -1).unbind()
    for row, sizes in enumerate(texts):
        start = 0
        for number, size in enumerate(sizes):
            rows[row, start : start + size] = torch.arange(size)
            segments[row, start : start + size] = number
            start += size
    return rows, segments


def inputs(queries: Tensor, keys: Tensor, kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q = torch.randn(len(queries), HEADS, queries.shape[1], WIDTH)
    k, v = torch.randn(2, len(keys), kv_heads, keys.shape[1], WIDTH)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def check(positions: Positions, mask: Mask, kv_heads: int = HEADS) -> None:
    """Forward and gradients equal the definition."""
    tensors = inputs(positions.query, positions.key, kv_heads)
    request = make_request(*tensors, positions, mask)
    assert varlen.unsuitable(request) is None
    expected = attend(*tensors, positions, mask, kernel="reference")
    found = varlen.compute(request, by_its_documentation)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    change = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, tensors, change)
    for one, other in zip(gradients, torch.autograd.grad(expected, tensors, change), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


MASKS: list[Mask] = [
    SameSegment(),
    Causal() & SameSegment(),
    SameSegment() & Window(2),
    Causal() & Window(3) & SameSegment(),
]
TEXTS = st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4)


@given(texts=TEXTS, mask=st.sampled_from(MASKS), kv_heads=st.sampled_from([1, 2, HEADS]))
def test_packed_texts_see_themselves(texts: list[list[int]], mask: Mask, kv_heads: int) -> None:
    positions, segments = places(texts, 12)
    check(Positions.of_self(positions, segments), mask, kv_heads)


@given(sizes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=4))
def test_queries_see_the_memory_of_their_row(sizes: list[tuple[int, int]]) -> None:
    """Also where one of them is nothing but padding."""
    queries, _ = places([[size] * (size > 0) for size, _ in sizes], 6)
    keys, _ = places([[size] * (size > 0) for _, size in sizes], 5)
    check(Positions(queries, keys), Everything())


@given(sizes=st.lists(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=3)))
def test_packed_pairs_see_their_own_memory(sizes: list[list[tuple[int, int]]]) -> None:
    rows = sizes or [[]]
    queries, query_segments = places([[q for q, _ in row] for row in rows], 9)
    keys, key_segments = places([[k for _, k in row] for row in rows], 10)
    check(Positions(queries, keys, query_segments, key_segments), SameSegment())


@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(3), Window(3)])
def test_later_tokens_see_those_before(mask: Mask) -> None:
    """A query stands at its position, not at its place in the array."""
    keys, _ = places([[6], [4]], 6)
    queries = torch.tensor([[3, 4, 5], [2, 3, -1]])
    check(Positions(queries, keys), mask)


def test_a_row_without_segments_is_one_sequence() -> None:
    """Positions may then jump, where it does not matter in which order tokens stand."""
    positions = torch.tensor([[4, 1, 2, -1], [0, 5, 7, 9]])
    check(Positions.of_self(positions), Everything())
    packed, segments = places([[2, 2], [3]], 4)
    check(Positions.of_self(packed, segments), Everything())


def refusal(positions: Positions, mask: Mask, **more: Any) -> str | None:
    return varlen.unsuitable(
        make_request(*inputs(positions.query, positions.key), positions, mask, **more)
    )


LINE = torch.arange(4)[None]


@pytest.mark.parametrize(
    ("positions", "mask", "reason"),
    [
        (Positions.of_self(torch.tensor([[-1, 0, 1]])), Everything(), "padding must come last"),
        (Positions.of_self(torch.tensor([[0, -1, 1]])), Everything(), "padding must come last"),
        (Positions.of_self(torch.tensor([[0, 2, 3]])), Causal(), "count up by one"),
        (Positions.of_self(torch.tensor([[0, 1, 0]])), Causal(), "count up by one"),
        (
            Positions.of_self(LINE, torch.tensor([[0, 1, 1, 0]])),
            SameSegment(),
            "each segment in one piece",
        ),
        (
            Positions(LINE, LINE.clone(), torch.zeros_like(LINE), torch.ones_like(LINE)),
            SameSegment(),
            "the same segments",
        ),
        (
            Positions(LINE, LINE.clone(), LINE.clamp(max=1), LINE.clamp(max=1) + 1),
            SameSegment(),
            "the same segments",
        ),
        (Positions(LINE, torch.arange(5)[None]), Causal(), "must end where"),
        (Positions.of_self(LINE), Prefix(2), "masks are"),
        (Positions.of_self(LINE), Causal() | Window(2), "masks are"),
    ],
)
def test_what_cannot_be_told_as_sequences(positions: Positions, mask: Mask, reason: str) -> None:
    assert reason in str(refusal(positions, mask))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"biases": [T5Bias(HEADS)]}, "no biases"),
        ({"softcap": 2.0}, "no soft caps"),
        ({"dropout": 0.1}, "no dropout"),
    ],
)
def test_what_it_does_not_compute(options: dict[str, Any], reason: str) -> None:
    assert reason in str(refusal(Positions.of_self(LINE), Everything(), **options))


def test_heads_of_widths_it_is_not_compiled_for() -> None:
    q = torch.randn(1, 2, 4, 12)
    request = make_request(q, q, q, Positions.of_self(LINE))
    assert "multiples of 8" in str(varlen.unsuitable(request))


def test_positions_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers of a batch share what is found; another batch is looked at anew."""
    looks: list[Positions] = []
    own = varlen._lay_out

    def looking(positions: Positions, **how: bool) -> Any:
        looks.append(positions)
        return own(positions, **how)

    monkeypatch.setattr(varlen, "_lay_out", looking)
    first, second = (Positions.of_self(LINE.clone()) for _ in range(2))
    for positions in (first, first, second, first):
        request = make_request(*inputs(LINE, LINE), positions, Causal())
        assert varlen.unsuitable(request) is None
        varlen.compute(request, by_its_documentation)
    assert looks == [first, second]


def test_it_is_asked_for_by_name_and_on_cuda_only() -> None:
    tensors = inputs(LINE, LINE)
    with pytest.raises(ModelError, match="'varlen' cannot serve this attention: it is for CUDA"):
        attend(*tensors, Positions.of_self(LINE), kernel="varlen")
    rejected = plan(make_request(*tensors, Positions.of_self(LINE))).rejected
    assert "CUDA" in rejected["varlen"]
