"""Losses, and the ways to compute them, against the formula without any of their code."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.engines.training import chunked_loss
from heedful.engines.training.chunked_loss import ChunkedLosses, ProcessorLosses
from heedful.engines.training.masked_loss import IGNORED, MaskedLosses
from heedful.nn import losses as definition

WAYS = {
    "definition": lambda: definition,
    "chunked": ChunkedLosses,
    "processor": ProcessorLosses,
    "masked": partial(MaskedLosses, compiled=False),
}
in_every_way = pytest.mark.parametrize("way", WAYS)


def losses(way: str, chunk: int | None = None) -> Any:
    """The losses as computed in a way, `chunk` logits at a time where it has chunks."""
    found = WAYS[way]()
    if chunk is not None and found is not definition:
        found.elements = chunk
    return found


def by_the_formula(hidden, weight, targets, smoothing, bias=None, softcap=None):
    """-sum over positions of sum over pieces of q(piece) · log p(piece)."""
    logits = hidden.double() @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    log_p = logits - logits.exp().sum(-1, keepdim=True).log()
    vocabulary = weight.shape[0]
    q = torch.full_like(log_p, smoothing / vocabulary)
    for row, target in enumerate(targets.tolist()):
        q[row, target] += 1 - smoothing
    nll = -sum(log_p[row, target] for row, target in enumerate(targets.tolist()))
    return -(q * log_p).sum(), nll


@in_every_way
@given(
    rows=st.integers(1, 9),
    vocabulary=st.integers(2, 40),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    with_bias=st.booleans(),
    softcap=st.sampled_from([None, 0.7, 5.0]),
    chunk=st.integers(1, 100),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_values_and_gradients_follow_the_formula(
    way, rows, vocabulary, smoothing, with_bias, softcap, chunk, seed
):
    torch.manual_seed(seed)
    hidden = torch.randn(rows, 6, requires_grad=True)
    weight = torch.randn(vocabulary, 6, requires_grad=True)
    bias = torch.randn(vocabulary, requires_grad=True) if with_bias else None
    targets = torch.randint(0, vocabulary, (rows,))
    leaves = [t for t in (hidden, weight, bias) if t is not None]
    loss, nll, divergence = losses(way, chunk).smoothed_cross_entropy(
        hidden, weight, targets, smoothing, bias, softcap
    )
    assert divergence == 0
    gradients = torch.autograd.grad(3 * loss, leaves)
    expected_loss, expected_nll = by_the_formula(hidden, weight, targets, smoothing, bias, softcap)
    expected = torch.autograd.grad(3 * expected_loss, leaves)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(nll.double(), expected_nll, rtol=1e-5, atol=1e-5)
    for got, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@in_every_way
def test_a_perfect_smoothed_prediction_has_the_entropy_of_the_smoothed_target(way):
    smoothing, vocabulary = 0.1, 5
    right = 1 - smoothing + smoothing / vocabulary
    wrong = smoothing / vocabulary
    weight = torch.eye(vocabulary)
    weight = torch.where(weight == 1, math.log(right), math.log(wrong))
    hidden = torch.eye(vocabulary)
    targets = torch.arange(vocabulary)
    loss, *_ = losses(way).smoothed_cross_entropy(hidden, weight, targets, smoothing)
    entropy = -right * math.log(right) - 4 * wrong * math.log(wrong)
    assert float(loss) == pytest.approx(vocabulary * entropy, rel=1e-5)


@in_every_way
def test_bfloat16_autocast_is_near_float32(way):
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 32), torch.randn(200, 32) * 0.2
    hidden.requires_grad_()
    targets = torch.randint(0, 200, (50,))
    exact, *_ = losses(way).smoothed_cross_entropy(hidden, weight, targets, 0.1)
    (exact_gradient,) = torch.autograd.grad(exact, hidden)
    with torch.autocast("cpu", torch.bfloat16):
        loss, *_ = losses(way).smoothed_cross_entropy(hidden, weight, targets, 0.1)
    assert loss.dtype == torch.float32
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert gradient.dtype == torch.float32
    # bfloat16 keeps 8 bits: logits of size 1 are off by up to 2**-9 each.
    torch.testing.assert_close(loss, exact, rtol=5e-3, atol=0)
    torch.testing.assert_close(gradient, exact_gradient, rtol=0, atol=1e-2)


@in_every_way
def test_no_gradient_is_made_when_none_is_wanted(way, monkeypatch):
    monkeypatch.setattr(chunked_loss._Output, "gradient", lambda *_: pytest.fail("made a gradient"))
    with torch.no_grad():
        loss, *_ = losses(way).smoothed_cross_entropy(
            torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 3])
        )
    assert not loss.requires_grad
    assert float(loss) == pytest.approx(2 * math.log(4), rel=1e-6)


@in_every_way
@given(
    rows=st.integers(1, 9),
    vocabulary=st.integers(2, 40),
    smoothing=st.sampled_from([0.0, 0.1]),
    consistency=st.sampled_from([0.0, 0.5, 3.0]),
    softcap=st.sampled_from([None, 0.7, 5.0]),
    chunk=st.integers(1, 100),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_two_passes_follow_the_formula(
    way, rows, vocabulary, smoothing, consistency, softcap, chunk, seed
):
    torch.manual_seed(seed)
    hidden = torch.randn(2, rows, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(vocabulary, 6, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(vocabulary, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, vocabulary, (rows,))
    found = losses(way, chunk).consistent_cross_entropy(
        hidden, weight, targets, smoothing, consistency, bias, softcap
    )
    pairs = [by_the_formula(one, weight, targets, smoothing, bias, softcap) for one in hidden]
    p, q = (one @ weight.T + bias for one in hidden)
    if softcap is not None:
        p, q = softcap * (p / softcap).tanh(), softcap * (q / softcap).tanh()
    p, q = p.exp(), q.exp()
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    divergence = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
    loss = pairs[0][0] + pairs[1][0] + consistency * divergence
    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(found.nll, pairs[0][1] + pairs[1][1])
    torch.testing.assert_close(found.divergence, divergence)
    leaves = (hidden, weight, bias)
    expected = torch.autograd.grad(2 * loss, leaves)
    for got, want in zip(torch.autograd.grad(2 * found.loss, leaves), expected, strict=True):
        torch.testing.assert_close(got, want)


@in_every_way
def test_a_confident_prediction_keeps_its_gradient_in_bfloat16(way):
    """p(right) - 1 is 4.5e-5, which bfloat16 cannot tell from 0 next to 1."""
    hidden = torch.tensor([[10.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]])
    with torch.autocast("cpu", torch.bfloat16):
        loss, *_ = losses(way).smoothed_cross_entropy(hidden, weight, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert float(gradient) == pytest.approx(-math.exp(-10), rel=0.01)


@in_every_way
def test_a_hopeless_prediction_keeps_its_loss(way):
    """p(right) is e-200, which float32 cannot hold."""
    weight = torch.tensor([[0.0], [1.0]])
    hidden, target = torch.tensor([[200.0]]), torch.tensor([0])
    loss, nll, _ = losses(way).smoothed_cross_entropy(hidden, weight, target)
    assert float(loss) == float(nll) == 200.0


@in_every_way
@pytest.mark.parametrize("consistency", [0.0, 2.0])
def test_two_passes_in_bfloat16_are_near_float32(way, consistency):
    torch.manual_seed(0)
    hidden = torch.randn(2, 50, 32, requires_grad=True)
    weight = torch.randn(200, 32) * 0.2
    targets = torch.randint(0, 200, (50,))
    exact = losses(way).consistent_cross_entropy(hidden, weight, targets, 0.1, consistency)
    (exact_gradient,) = torch.autograd.grad(exact.loss, hidden)
    with torch.autocast("cpu", torch.bfloat16):
        found = losses(way).consistent_cross_entropy(hidden, weight, targets, 0.1, consistency)
    (gradient,) = torch.autograd.grad(found.loss, hidden)
    torch.testing.assert_close(found.loss, exact.loss, rtol=5e-3, atol=0)
    torch.testing.assert_close(found.divergence, exact.divergence, rtol=2e-2, atol=0)
    torch.testing.assert_close(gradient, exact_gradient, rtol=0, atol=1e-2 * (1 + consistency))


@given(
    counts=st.lists(st.booleans(), min_size=1, max_size=9),
    smoothing=st.sampled_from([0.0, 0.1]),
    softcap=st.sampled_from([None, 0.7]),
    chunk=st.integers(1, 100),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_where_nothing_is_to_be_predicted_nothing_is_added(counts, smoothing, softcap, chunk, seed):
    """As if these positions had been taken out before."""
    torch.manual_seed(seed)
    kept = torch.tensor(counts)
    hidden = torch.randn(len(counts), 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (len(counts),)).where(kept, IGNORED)
    ways = losses("masked", chunk), losses("chunked", chunk)
    assert [each.takes_padding for each in ways] == [True, False]
    given = (hidden, targets), (hidden[kept], targets[kept])
    found, expected = (
        each.smoothed_cross_entropy(states, weight, right, smoothing, bias, softcap)
        for each, (states, right) in zip(ways, given, strict=True)
    )
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.nll, expected.nll)
    leaves = (hidden, weight, bias)
    wanted = torch.autograd.grad(2 * expected.loss, leaves)
    for got, want in zip(torch.autograd.grad(2 * found.loss, leaves), wanted, strict=True):
        torch.testing.assert_close(got, want)
    assert not torch.autograd.grad(
        losses("masked").smoothed_cross_entropy(hidden, weight, targets).loss, hidden
    )[0][~kept].any()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 3), min_size=1, max_size=7))
def test_equal_texts_share_the_targets_of_a_contrast(seed: int, kinds: list[int]) -> None:
    """By loops over rows, also where equal texts have other scores, as with dropout."""
    numbers, count = torch.tensor(kinds), len(kinds)
    scores = 5 * torch.randn(count, count, generator=torch.Generator().manual_seed(seed))
    expected = 0.0
    for table in (scores, scores.T):
        for row, kind in zip(table, kinds, strict=True):
            right = [float(p) for p, k in zip(row.log_softmax(0), kinds, strict=True) if k == kind]
            expected -= sum(right) / len(right) / 2
    found = definition.contrastive_loss(scores, numbers)
    assert float(found.nll) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert float(found.loss) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    # A tenth of the targets is spread over all pairs, in either direction.
    uniform = sum(-float(table.log_softmax(1).mean(1).sum()) for table in (scores, scores.T)) / 2
    smoothed = definition.contrastive_loss(scores, numbers, 0.1)
    assert float(smoothed.loss) == pytest.approx(0.9 * expected + 0.1 * uniform, rel=1e-4, abs=1e-4)
    assert float(smoothed.nll) == float(found.nll)
