"""Plans against runs: the constants are the fitted ones, and the published ratios are today's."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from heedful.apps.planning.cluster import read_devices
from heedful.apps.planning.estimates import PASSES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def plans():
    spec = importlib.util.spec_from_file_location("plan_benchmark", BENCHMARKS / "plan.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_published_table_is_what_the_plans_say(plans) -> None:
    result = json.loads((BENCHMARKS / "results/plan/result.json").read_text())
    runs, _ = plans.read_runs()
    assert [row["run"] for row in result["runs"]] == [run["name"] for run in runs]
    for number, row in enumerate(result["runs"]):
        assert plans.compare(number).ratio == pytest.approx(row["ratio"], abs=0.001)
    tests = [row for row in result["runs"] if row["use"] == "test"]
    near = [row for row in tests if abs(row["ratio"] - 1) <= 0.25]
    assert (len(tests), len(near)) == (result["tests"], result["within_25_percent"])
    # Whatever is farther off says why.
    assert all(row["why"] for row in tests if row not in near)
    page = (BENCHMARKS.parent / "docs/measured/plans.md").read_text()
    assert f"{len(near)} of {len(tests)} tests are within 25 %" in page


@pytest.mark.parametrize(
    ("device", "precision"),
    [("a100", "bf16"), ("h100", "bf16"), ("v100", "fp32"), ("v100", "fp16")],
)
def test_shares_are_those_that_fit_best(plans, device: str, precision: str) -> None:
    runs, _ = plans.read_runs()
    numbers = [
        number
        for number, run in enumerate(runs)
        if run["use"] == "fit"
        and run["devices"].split("x", 1)[1].startswith(device)
        and run.get("precision", "bf16") == precision
    ]
    share = read_devices(device, width=1)[0].products[precision]
    errors = {change: plans.error(numbers, share + change, PASSES) for change in (-0.01, 0.0, 0.01)}
    assert min(errors, key=errors.__getitem__) == 0.0


def test_passes_are_those_that_fit_best(plans) -> None:
    runs, _ = plans.read_runs()
    numbers = [
        number
        for number, run in enumerate(runs)
        if run["use"] == "fit" and run["devices"] == "8xa100"
    ]
    share = read_devices("a100", width=1)[0].products["bf16"]
    errors = {passes: plans.error(numbers, share, passes) for passes in (12.5, PASSES, 13.5)}
    assert min(errors, key=errors.__getitem__) == PASSES == 13.0


def test_nothing_is_fitted_to_a_test(plans) -> None:
    runs, sources = plans.read_runs()
    fitted = [run for run in runs if run["use"] == "fit"]
    assert len(fitted) == 9
    assert {run["source"] for run in runs} <= sources.keys()
