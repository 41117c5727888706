from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.nn.attend import attend, make_request, plan
from heedful.nn.masks import AnyOf, Causal, Everything, Window
from heedful.nn.native import library
from heedful.nn.positions import Positions

pytestmark = [
    pytest.mark.skipif(library.kernels() is None, reason="no kernels were compiled here"),
    pytest.mark.usefixtures("level"),
]


def by_definition(q, k, v, seen, scale):
    """In float64; queries that see nothing find nothing."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    scores = torch.einsum("bhie,bhje->bhij", q.double(), k) * scale
    weights = torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen
    return torch.einsum("bhij,bhje->bhie", weights, v)


MASKS = {"all": Everything(), "causal": Causal(), "window": Window(3), "none": AnyOf(())}


@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 37), st.integers(1, 70)),
    groups=st.integers(1, 2),
    width=st.sampled_from([16, 32, 64, 80]),
    mask=st.sampled_from(sorted(MASKS)),
    padded=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=120, deadline=None)
def test_what_it_finds_and_its_gradients(sizes, groups, width, mask, padded, half, seed):
    batch, queries, keys = sizes
    queries = min(queries, keys) if mask in ("causal", "window") else queries
    torch.manual_seed(seed)
    kind = torch.bfloat16 if half else torch.float32
    # As a fused projection leaves them: heads side by side in a row.
    q = torch.randn(batch, queries, 2 * groups, width).to(kind).transpose(1, 2).requires_grad_()
    k = torch.randn(batch, keys, 2, width).to(kind).transpose(1, 2).requires_grad_()
    v = torch.randn(batch, 2, keys, width).to(kind).requires_grad_()
    places = torch.arange(keys).expand(batch, -1).clone()
    own = places[:, keys - queries :].clone() if queries <= keys else torch.arange(queries)
    own = own.expand(batch, -1).clone()
    if padded:
        places[-1, keys // 2 :] = -1
        own[0, : queries // 3] = -1
    positions = Positions(own, places)
    y = attend(q, k, v, positions, MASKS[mask], scale=0.3, kernel="native")
    seen = positions.visible(MASKS[mask])
    expected = by_definition(q, k, v, seen, 0.3)
    tolerance = 2e-2 if half else 1e-5
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.all(y[~seen.any(-1).expand(y.shape[:3])] == 0.0)
    up = torch.randn_like(y)
    found = torch.autograd.grad(y, (q, k, v), up)
    wanted = torch.autograd.grad(expected, (q, k, v), up.double())
    for each, other in zip(found, wanted, strict=True):
        assert each.dtype == kind
        torch.testing.assert_close(
            each.double(), other.double(), rtol=tolerance, atol=tolerance * queries**0.5
        )


def test_threads_change_nothing():
    torch.manual_seed(0)
    q, k, v = (torch.randn(5, 4, 40, 32, requires_grad=True) for _ in range(3))
    positions = Positions.of_self(torch.arange(40).expand(5, -1))
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        y = attend(q, k, v, positions, Causal(), kernel="native")
        results.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v))])
    torch.set_num_threads(before)
    assert all(map(torch.equal, *results))


def test_it_is_planned_where_short_sequences_are_learned_from():
    def planned(length: int, learned: bool, **other: float) -> str:
        q, k, v = (torch.randn(1, 2, length, 16, requires_grad=learned) for _ in range(3))
        positions = Positions.of_self(torch.arange(length)[None])
        return plan(make_request(q, k, v, positions, **other)).kernel

    assert planned(40, True) == "native"
    assert planned(40, False) == "matmul"
    assert planned(40, True, dropout=0.1) == "matmul"
    assert planned(300, True) == "sdpa"
