"""The plan that is chosen, the layouts that are refused, and the reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heedful.apps.planning.cluster import Cluster
from heedful.apps.planning.estimates import UpdateBatch
from heedful.apps.planning.layouts import Layout
from heedful.apps.planning.plans import PlanQuestion, choose, reason
from heedful.errors import ConfigError, RunError

from .devices_for_tests import costs, device

BATCH = UpdateBatch(positions=1 << 20, length=1024, precision="bf16")


def ask(**changes: Any) -> PlanQuestion:
    values: dict[str, Any] = {
        "costs": costs(),
        "cluster": Cluster(device=device(), per_host=8),
        "batch": BATCH,
    }
    return PlanQuestion(**values | changes)


def test_a_small_model_is_copied() -> None:
    plans = ask().plans()
    chosen = choose(plans)
    assert chosen.layout == Layout(data=8)
    assert chosen.memory.fits
    assert [plan.seconds for plan in plans] == sorted(plan.seconds for plan in plans)
    assert all(plan.seconds >= plans[0].seconds for plan in plans)


def test_a_large_model_is_sharded_before_anything_else() -> None:
    memory = 3_500_000_000  # the model alone is 2.4 GB of weights, gradients and moments
    small = Cluster(device=device(memory=memory), per_host=8)
    plans = ask(cluster=small).plans()
    chosen = choose(plans)
    assert chosen.layout.shard > 1
    assert chosen.accumulate > 1
    copied = next(plan for plan in plans if plan.layout == Layout(data=8))
    assert not copied.memory.fits
    assert "does not fit" in reason(copied, chosen)
    fits = [plan.memory.fits for plan in plans]
    assert fits == sorted(fits, reverse=True)


def test_the_fewest_batches_that_fit_are_taken() -> None:
    memory = 8_000_000_000
    question = ask(
        cluster=Cluster(device=device(memory=memory), per_host=8), checkpointing=("none",)
    )
    chosen = choose(question.plans())
    assert chosen.memory.fits
    fewer = replace(question, accumulate=chosen.accumulate // 2)
    same = next(plan for plan in fewer.plans() if plan.layout == chosen.layout)
    assert not same.memory.fits


def test_no_plan_fits() -> None:
    small = Cluster(device=device(memory=100_000_000), per_host=8)
    with pytest.raises(RunError, match=r"No plan fits: .* needs least, .*, which has 100 MB"):
        choose(ask(cluster=small).plans())


@pytest.mark.parametrize(
    ("layout", "changes", "words"),
    [
        (Layout(tensor=8), {"costs": costs(divisors={"heads": 12})}, "does not divide 12 heads"),
        (Layout(tensor=8), {"costs": costs(undivided=("mamba",))}, "cannot divide mamba"),
        (Layout(context=8), {"costs": costs(refuses_context="no ring")}, "no ring"),
        (
            Layout(context=8),
            {"batch": replace(BATCH, length=1000)},
            "context 8 needs texts of a multiple of 16 tokens",
        ),
        (Layout(data=8), {"batch": replace(BATCH, positions=4096)}, "4 texts are too few for 8"),
        (Layout(tensor=16), {}, "tensor 16 does not divide the devices of a host"),
    ],
)
def test_layouts_are_refused_with_a_reason(
    layout: Layout, changes: dict[str, Any], words: str
) -> None:
    question = ask(**changes)
    assert words in question.refusal(layout)
    if layout.devices == 8:
        assert all(plan.layout != layout for plan in question.plans())


def test_nothing_is_possible() -> None:
    question = ask(
        costs=costs(undivided=("mamba",), refuses_context="no ring"),
        batch=replace(BATCH, positions=2048),
    )
    with pytest.raises(ConfigError, match="8 devices cannot share this work"):
        question.plans()


def test_reasons() -> None:
    slow = Cluster(device=device(link=1e9), per_host=8)
    plans = ask(cluster=slow).plans()
    chosen = choose(plans)
    together = next(plan for plan in plans if plan.layout == Layout(tensor=8))
    assert "slower" in reason(together, chosen)
    assert "waits for activations" in reason(together, chosen)
    again = ask(checkpointing=("full",)).plans()[0]
    assert "computes activations again" in reason(again, choose(ask().plans()))
    alone = ask(cluster=Cluster(device=device(), per_host=1)).plans()
    assert reason(alone[0], choose(alone)) == "nothing is sent"
