from __future__ import annotations

import pytest
import torch

from heedful.engines.training.residual_norm import CheapDropout, cheap_dropout


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drops_the_share_asked_for_and_keeps_the_mean(probability, dtype):
    torch.manual_seed(0)
    y = cheap_dropout(torch.ones(400, 1000, dtype=dtype), probability)
    dropped = (y == 0).double().mean().item()
    # Five standard deviations of a binomial share over 400,000 draws.
    assert dropped == pytest.approx(probability, abs=5 * (0.25 / 400_000) ** 0.5)
    assert y.double().mean().item() == pytest.approx(1, abs=0.02)
    assert len(y.unique()) == 2


def test_decisions_are_independent_of_each_other():
    torch.manual_seed(1)
    kept = (cheap_dropout(torch.ones(100_000), 0.3) != 0).double() - 0.7
    for lag in (1, 2, 3, 4, 8, 16, 64):
        correlation = (kept[lag:] * kept[:-lag]).mean().item() / 0.21
        assert abs(correlation) < 5 / 100_000**0.5, lag


def test_gradient_passes_where_values_passed():
    torch.manual_seed(2)
    x = torch.randn(7, 11, requires_grad=True)
    y = cheap_dropout(x, 0.4)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)


def test_identity_without_training_or_probability():
    x = torch.randn(5)
    assert cheap_dropout(x, 0.0) is x
    assert CheapDropout(0.0).train()(x) is x
    assert CheapDropout(0.5).eval()(x) is x
    assert CheapDropout(0.5).train()(x) is not x


def test_the_seed_decides():
    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return cheap_dropout(torch.ones(3, 5), 0.5)

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    assert draw(3).shape == (3, 5)
