"""Curves and tables, from records written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heedful.apps.comparison.curves import training_curve, validation_curve
from heedful.apps.comparison.plan import ComparisonPlan, Run, variants_of
from heedful.apps.comparison.results import read_comparison


def write_record(run: Run, losses: list[float], *, summary: bool = True) -> None:
    """A record of a validation after every second update, each of 10 tokens in 2 seconds."""
    run.directory.mkdir(parents=True)
    lines = []
    for step, loss in enumerate(losses, start=1):
        lines.append({"step": step, "loss": 2 * loss, "tokens": 10, "tokens_per_second": 5.0,
                      "total_tokens": 10 * step, "seconds": 3.0 * step})  # fmt: skip
        if step % 2 == 0:
            lines.append({"step": step, "event": "validation", "loss": loss})
    if summary:
        lines.append({"step": len(losses), "event": "summary", "steps": len(losses),
                      "target_tokens": 10 * len(losses), "seconds": 3.0 * len(losses),
                      "peak_memory_bytes": 7, "loss": losses[-1]})  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9, "lo'
    (run.directory / "metrics.jsonl").write_text(text.removesuffix('{"step": 9, "lo' * summary))


@pytest.fixture
def plan(write) -> ComparisonPlan:
    variants = variants_of([write("good"), write("bad"), write("late")], {})
    return ComparisonPlan(tuple(variants), 2)


def test_curves_are_means_at_common_steps(plan: ComparisonPlan, tmp_path: Path) -> None:
    first, second = (run for run in plan.runs(tmp_path) if run.variant.name == "good")
    write_record(first, [4, 3, 2, 1])
    write_record(second, [4, 5, 2, 3, 2, 1], summary=False)
    points = validation_curve([first, second], "loss")
    assert [(p.step, p.seconds, p.tokens, p.value.score) for p in points] == [
        (2, 6, 20, 4), (4, 12, 40, 2)
    ]  # fmt: skip
    # Two values 1 apart from their mean: 12.706 · √2 / √2.
    assert points[0].value.high - 4 == pytest.approx(12.706, abs=1e-3)
    assert points[1].at("operations", 100.0) == 400
    assert points[1].at("seconds", 100.0) == 12
    assert [p.value.score for p in training_curve([first, second])] == [8, 8, 4, 4]
    assert validation_curve([first], "bleu") == []


def test_the_table_ranks_and_counts_what_is_finished(plan: ComparisonPlan, tmp_path: Path) -> None:
    runs = {(run.variant.name, run.seed): run for run in plan.runs(tmp_path)}
    write_record(runs["good", 1], [3, 1])
    write_record(runs["good", 2], [3, 2])
    write_record(runs["bad", 1], [3, 2.5])
    write_record(runs["bad", 2], [3], summary=False)
    result = read_comparison(plan, tmp_path, {"late, seed 1": "It failed."})
    assert [each.variant.name for each in result.ranking] == ["good", "bad"]
    assert not result.finished
    table = result.plain()
    good, bad, late = table["variants"]
    assert good["scores"]["loss"]["values"] == [1, 2]
    assert good["scores"]["loss"]["mean"] == 1.5
    assert good["tokens_per_second"] == 5
    assert good["seconds"] == 6
    assert bad["scores"]["loss"]["low"] is None
    assert late["scores"] == {}
    states = {(run["variant"], run["seed"]): run["state"] for run in table["runs"]}
    assert states["bad", 2] == "stopped"
    assert states["late", 1] == "failed"
    assert states["late", 2] == "waiting"
    rows = result.markdown().splitlines()
    assert rows[4].startswith("| good | 2 | 1.5000 ± 6.3531 |")
    assert rows[5].startswith("| bad | 1 | 2.5000 |")
    assert rows[6].startswith("| late | 0 | – |")
