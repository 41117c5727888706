"""Plans against runs: what `heedful plan` says, and what was published or measured.

    python benchmarks/plan.py [--results DIR]
    python benchmarks/plan.py --fit

The runs are `benchmarks/plan/runs.toml`. Some have `use = "fit"`: `--fit` finds the shares of
`heedful/apps/planning/devices.toml` and the passes over activations from them alone. All others are
tests. Writes results/plan/result.json and table.md; prints a table.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from heedful.apps.planning import estimates
from heedful.apps.planning.cluster import NUMBER_BYTES, Cluster, adapted, read_devices
from heedful.apps.planning.estimates import TrainingPlan, UpdateBatch, estimate
from heedful.apps.planning.layouts import Layout
from heedful.apps.planning.model_costs import ModelCosts, model_costs
from heedful.apps.planning.plans import PlanQuestion, choose
from heedful.models.model_spec import ModelSpec, parse_spec
from heedful.models.preset_files import preset_spec

RUNS = Path(__file__).resolve().parent / "plan" / "runs.toml"

SECONDS_AN_HOUR = 3600

ASKED = 0.25
"""Largest difference from a measured time that is asked for."""

GIB = 1 << 30


@dataclass(frozen=True)
class Comparison:
    """A run and the plan for it.

    Args:
        run: a table of `runs.toml`.
        plan: for its layout.
        measured: tokens a second.
    """

    run: dict[str, Any]
    plan: TrainingPlan
    measured: float

    @property
    def ratio(self) -> float:
        """Planned time over the measured one."""
        return self.measured / self.plan.positions_per_second

    @property
    def memory_ratio(self) -> float | None:
        """Planned bytes, without the process's own, over those measured; None if none were."""
        if "memory_gb" not in self.run:
            return None
        memory = self.plan.memory
        return (memory.needed - memory.parts["process"]) / (1e9 * self.run["memory_gb"])


def read_runs() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the runs and what their sources are."""
    tables = tomllib.loads(RUNS.read_text(encoding="utf-8"))
    return tables["run"], tables["sources"]


def spec_of(model: dict[str, Any]) -> ModelSpec:
    """Return the spec of a preset with what differs from it."""
    spec = preset_spec(model["preset"])
    if spec.kind == "translator":
        return preset_spec(model["preset"], model["vocabulary"])
    values = spec.plain()
    values["width"] = width = model.get("width", values["width"])
    values["vocabulary"] = model.get("vocabulary", values["vocabulary"])
    values["max_length"] = model["length"]
    if values["embedding"]["positions"]["kind"] == "learned":
        values["embedding"]["positions"]["max_length"] = model["length"]
    if "layers" in model:
        values["decoder"]["num_layers"] = model["layers"]
    for sublayer in values["decoder"]["pattern"][0]["sublayers"]:
        part = sublayer["part"]
        if part["kind"] == "attention":
            part["num_heads"] = model.get("heads", part["num_heads"])
            part["num_kv_heads"] = model.get("kv_heads", part["num_heads"])
        else:
            usual = 4 * width if "width" in model else part["width"]
            part["width"] = model.get("feedforward", usual)
        if model.get("plain"):  # MPT has neither dropout nor biases
            sublayer["dropout"] = part["dropout"] = values["embedding"]["dropout"] = 0.0
            part["bias"] = False
    return parse_spec(values, where="runs.toml")


@cache
def costs_of(number: int, number_bytes: int) -> ModelCosts:
    """Return the costs of the model of a run."""
    model = read_runs()[0][number]["model"]
    return model_costs(spec_of(model), model["length"], number_bytes)


def compare(number: int, *, share: float | None = None) -> Comparison:
    """Return a run beside its plan.

    Args:
        number: of the run.
        share: of the devices' rate in the place of the catalogue's.
    """
    run = read_runs()[0][number]
    device, per_host = read_devices(run["devices"], width=1)
    if share is not None:
        device = replace(device, products=dict.fromkeys(device.products, share))
    device = adapted(device, overlaps=run.get("overlap", True))
    if "bandwidth" in run:
        device = replace(device, bandwidth=run["bandwidth"] * 1e9)
    cluster = Cluster(device=device, per_host=per_host, hosts=run.get("hosts", 1))
    length, precision = run["model"]["length"], run.get("precision", "bf16")
    batch = UpdateBatch(positions=run["batch_tokens"], length=length, precision=precision)
    costs = costs_of(number, NUMBER_BYTES[precision])
    kind, accumulate = run.get("checkpointing", "none"), run.get("accumulate")
    if "layout" in run:
        plan = estimate(
            costs,
            cluster,
            batch,
            Layout(**run["layout"]),
            checkpointing=kind,
            accumulate=accumulate or 1,
        )
    else:
        question = PlanQuestion(costs=costs, cluster=cluster, batch=batch, checkpointing=(kind,))
        plan = choose(question.plans())
    return Comparison(run, plan, measured_speed(run, cluster.devices))


def measured_speed(run: dict[str, Any], devices: int) -> float:
    """Return the tokens a second of a run."""
    if "tokens_per_second" in run:
        return float(run["tokens_per_second"])
    if "seconds_per_update" in run:
        return run["batch_tokens"] / run["seconds_per_update"]
    return devices * run["tokens"] / (SECONDS_AN_HOUR * run["device_hours"])


def error(numbers: list[int], share: float, passes: float) -> float:
    """Return the sum of squared differences of ratios from 1."""
    before, estimates.PASSES = estimates.PASSES, passes
    try:
        return sum((compare(number, share=share).ratio - 1) ** 2 for number in numbers)
    finally:
        estimates.PASSES = before


def fit() -> dict[str, float]:
    """Fit the passes and the A100's share to six models, and other shares to one run each."""
    runs, _ = read_runs()
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        if run["use"] == "fit":
            device = run["devices"].split("x", 1)[1]
            name = f"{device} {run.get('precision', 'bf16')}"
            groups.setdefault(name, []).append(number)
    shares = [n / 100 for n in range(30, 100)]
    found: dict[str, float] = {}
    both = groups.pop("a100 bf16")
    grid = ((error(both, share, n / 2), share, n / 2) for share in shares for n in range(10, 40))
    _, found["a100 bf16"], found["passes"] = min(grid)
    for name, numbers in groups.items():
        errors = {share: error(numbers, share, found["passes"]) for share in shares}
        found[name] = min(errors, key=errors.__getitem__)
    return found


def facts_of(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data."""
    run, plan = comparison.run, comparison.plan
    memory = comparison.memory_ratio
    return {
        "run": run["name"],
        "devices": f"{run.get('hosts', 1)} × {run['devices']}",
        "layout": plan.layout.describe(),
        "checkpointing": plan.checkpointing,
        "use": run["use"],
        "planned_tokens_per_second": round(plan.positions_per_second),
        "measured_tokens_per_second": round(comparison.measured),
        "ratio": round(comparison.ratio, 3),
        "memory_ratio": None if memory is None else round(memory, 3),
        "why": run.get("why", ""),
        "source": run["source"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return comparisons as a table in Markdown."""
    lines = [
        "| run | devices | layout | planned tokens/s | measured | time | memory | |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        memory = "" if row["memory_ratio"] is None else f"{row['memory_ratio']:.2f}"
        ratio = f"{row['ratio']:.2f}"
        cells = (
            f"{row['run']} ({row['source']})",
            row["devices"],
            row["layout"] + ("" if row["checkpointing"] == "none" else f", {row['checkpointing']}"),
            f"{row['planned_tokens_per_second']:,}",
            f"{row['measured_tokens_per_second']:,}",
            f"**{ratio}**" if abs(row["ratio"] - 1) > ASKED else ratio,
            memory,
            "fitted" if row["use"] == "fit" else row["why"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare all runs, or fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RUNS.parents[1] / "results")
    parser.add_argument("--fit", action="store_true", help="fit the constants, and print them")
    arguments = parser.parse_args()
    if arguments.fit:
        for name, value in fit().items():
            print(f"{name}: {value}")
        return
    from report import write_result

    runs, sources = read_runs()
    rows = [facts_of(compare(number)) for number in range(len(runs))]
    tests = [row for row in rows if row["use"] == "test"]
    near = sum(abs(row["ratio"] - 1) <= ASKED for row in tests)
    facts = {"tests": len(tests), "within_25_percent": near, "sources": sources, "runs": rows}
    write_result(arguments.results, "plan", "python benchmarks/plan.py", facts)
    text = table(rows)
    (arguments.results / "plan" / "table.md").write_text(text, encoding="utf-8")
    print(text, f"{near} of {len(tests)} tests within {ASKED:.0%}", file=sys.stderr)


if __name__ == "__main__":
    main()
