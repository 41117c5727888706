from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.engines.host_parts import PROCESSOR_KERNELS
from heedful.kernels import library
from heedful.nn.attention.attend import attend, make_request, plan
from heedful.nn.attention.masks import AnyOf, Causal, Everything, Window
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
@settings(max_examples=120)
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
    y = attend(
        q, k, v, positions, MASKS[mask], scale=0.3, kernel="native", kernels=PROCESSOR_KERNELS
    )
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


@pytest.mark.parametrize(
    ("kind", "width", "tolerance"), [(torch.float32, 48, 1e-5), (torch.bfloat16, 96, 2e-2)]
)
@pytest.mark.parametrize("queries", [*range(1, 14), 16, 17, 32, 33, 48, 49, 256])
def test_any_number_of_queries_fills_its_tiles(queries, kind, width, tolerance):
    torch.manual_seed(queries)
    keys = 256 if queries == 256 else 3 * queries % 50 + 1
    q, k, v = (torch.randn(1, 2, n, width).to(kind) for n in (queries, keys, keys))
    for each in (q, k, v):
        each.requires_grad_()
    seen = torch.rand(1, queries, keys) < 0.3  # some see nothing, and all see keys with gaps
    positions = Positions(torch.zeros(1, queries).long(), torch.zeros(1, keys).long(), lineage=seen)
    y = attend(q, k, v, positions, scale=0.3, kernel="native", kernels=PROCESSOR_KERNELS)
    expected = by_definition(q, k, v, seen[:, None], 0.3)
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    up = torch.randn_like(y)
    found = torch.autograd.grad(y, (q, k, v), up)
    wanted = torch.autograd.grad(expected, (q, k, v), up.double())
    for each, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            each.double(), other.double(), rtol=tolerance, atol=tolerance * queries**0.5
        )


def test_scores_may_be_huge_and_what_is_no_number_stays_with_its_query():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 11, 16, requires_grad=True) for _ in range(3))
    positions = Positions.of_self(torch.arange(11)[None])
    y = attend(q, k, v, positions, Causal(), scale=1e4, kernel="native", kernels=PROCESSOR_KERNELS)
    seen = positions.visible(Causal())
    torch.testing.assert_close(y.double(), by_definition(q, k, v, seen, 1e4), rtol=1e-5, atol=1e-5)
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), (q, k, v)))
    bad = q.detach().clone()
    bad[0, 0, 5, 3] = torch.nan
    y = attend(
        bad.requires_grad_(), k, v, positions, Causal(), kernel="native", kernels=PROCESSOR_KERNELS
    )
    assert torch.equal(y.isnan().any(-1)[0, 0], torch.arange(11) == 5)
    gradient = torch.autograd.grad(y.sum(), bad)[0]
    assert torch.equal(gradient.isnan().any(-1)[0, 0], torch.arange(11) == 5)


def test_threads_change_nothing():
    torch.manual_seed(0)
    q, k, v = (torch.randn(5, 4, 40, 32, requires_grad=True) for _ in range(3))
    positions = Positions.of_self(torch.arange(40).expand(5, -1))
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        y = attend(q, k, v, positions, Causal(), kernel="native", kernels=PROCESSOR_KERNELS)
        results.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v))])
    torch.set_num_threads(before)
    assert all(map(torch.equal, *results))


def test_it_is_planned_where_short_sequences_are_learned_from():
    def planned(length: int, learned: bool, **other: float) -> str:
        q, k, v = (torch.randn(1, 2, length, 16, requires_grad=learned) for _ in range(3))
        positions = Positions.of_self(torch.arange(length)[None])
        request = make_request(q, k, v, positions, **other, kernels=PROCESSOR_KERNELS)
        return plan(request, PROCESSOR_KERNELS).kernel

    assert planned(40, True) == "native"
    assert planned(40, False) == "matmul"
    assert planned(40, True, dropout=0.1) == "matmul"
    assert planned(300, True) == "sdpa"


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_gradients_of_a_fused_projection_lie_side_by_side(key_heads):
    torch.manual_seed(0)
    heads = [4, key_heads, key_heads]
    fused = torch.randn(3, 9, 16 * sum(heads), requires_grad=True)
    positions = Positions.of_self(torch.arange(9).expand(3, -1))

    def found(apart: bool) -> tuple[torch.Tensor, ...]:
        parts = fused.unflatten(-1, (sum(heads), 16)).transpose(1, 2).split(heads, dim=1)
        q, k, v = (part.clone() for part in parts) if apart else parts
        y = attend(q, k, v, positions, Causal(), kernel="native", kernels=PROCESSOR_KERNELS)
        return torch.autograd.grad(y.square().sum(), (q, k, v))

    gradients = found(apart=False)
    assert all(map(torch.equal, gradients, found(apart=True)))
    memory = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    assert len(memory) == 1
    places = [gradient.storage_offset() for gradient in gradients]
    assert places == [0, 16 * 4, 16 * (4 + key_heads)]
    assert all(gradient.stride(2) == 16 * sum(heads) for gradient in gradients)
