from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.train.optimizers import learning_rate
from heedful.train.run_settings import ScheduleSettings
from heedful.train.splitting import derive_seed


@given(
    step=st.integers(1, 10**6),
    width=st.sampled_from([128, 512, 1024]),
    warmup=st.sampled_from([1, 400, 4000]),
)
def test_default_is_the_papers_formula(step: int, width: int, warmup: int) -> None:
    rate = learning_rate(
        ScheduleSettings(warmup_steps=warmup), step, width=width, max_steps=100_000
    )
    # d^-0.5 · min(s^-0.5, s · w^-1.5), squared to stay in exact fractions
    squared = Fraction(1, width) * min(Fraction(1, step), Fraction(step**2, warmup**3))
    assert rate**2 == pytest.approx(float(squared), rel=1e-12)


def test_paper_base_model_peaks_at_seven_ten_thousandths() -> None:
    rate = learning_rate(ScheduleSettings(), 4000, width=512, max_steps=100_000)
    assert rate == pytest.approx(0.000698771, rel=1e-5)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_cosine_and_linear_go_from_peak_to_final(kind: str) -> None:
    settings = ScheduleSettings.parse(
        {
            "kind": kind,
            "warmup_steps": 10,
            "peak_learning_rate": 1.0,
            "final_learning_rate": 0.2,
        }
    )

    def rate(step: int) -> float:
        return learning_rate(settings, step, width=8, max_steps=110)

    assert [rate(1), rate(5), rate(10)] == pytest.approx([0.1, 0.5, 1.0])
    assert rate(60) == pytest.approx(0.6)
    assert rate(110) == rate(500) == pytest.approx(0.2)
    quarter = {"linear": 0.8, "cosine": 0.2 + 0.4 * (1 + math.cos(math.pi / 4))}[kind]
    assert rate(35) == pytest.approx(quarter)


def test_constant_stays_at_its_peak() -> None:
    settings = ScheduleSettings(kind="constant", warmup_steps=0, peak_learning_rate=0.3)
    assert {learning_rate(settings, s, width=8, max_steps=9) for s in (1, 5, 99)} == {0.3}


def test_inverse_square_root_without_warmup() -> None:
    settings = ScheduleSettings(warmup_steps=0, peak_learning_rate=0.5)
    assert learning_rate(settings, 4, width=8, max_steps=9) == pytest.approx(0.25)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4))
def test_mix_is_a_function_of_all_parts_in_order(parts: list[int]) -> None:
    assert 0 <= derive_seed(*parts) < 2**63
    assert derive_seed(*parts) == derive_seed(*parts)
    assert derive_seed(*parts) != derive_seed(*parts, 0)
    if parts != parts[::-1]:
        assert derive_seed(*parts) != derive_seed(*parts[::-1])


def test_mix_never_changes() -> None:
    """A change would silently break the exactness of runs resumed after an upgrade."""
    assert derive_seed(1, 2, 3) == 8149998584550362645
