"""Results of a comparison: read from the runs' own files, as a table in JSON and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from heedful.apps.comparison.plan import ComparisonPlan, Run, Variant
from heedful.apps.comparison.result_files import TabledResults, markdown_table
from heedful.apps.evaluation.bootstrap import Interval
from heedful.apps.evaluation.seed_intervals import student_interval
from heedful.config import flat
from heedful.events import read_metrics
from heedful.train.run_config import METRICS_FILE

LESS_IS_BETTER = ("loss", "ter")


def events_of(run: Run) -> list[dict[str, Any]]:
    """Return the metrics of a run so far; none before it has begun."""
    path = run.directory / METRICS_FILE
    return read_metrics(path) if path.exists() else []


def summary_of(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The summary that ends the record of a finished run."""
    last = events[-1] if events else {}
    return last if last.get("event") == "summary" else None


def is_finished(run: Run) -> bool:
    """Return True if the run is finished."""
    return summary_of(events_of(run)) is not None


@dataclass(frozen=True)
class RunResult:
    """The result of one run.

    Attributes:
        run: variant, seed and directory.
        state: finished, stopped, failed or waiting.
        scores: scores of the final model, by name; empty before the run is finished.
        steps: updates made.
        tokens: target tokens trained on.
        seconds: seconds of training and validation.
        tokens_per_second: target tokens a second of training, validation left out.
        flops: operations of all updates, counted by the cost model.
        peak_memory_bytes: the largest resident size of its process.
        problem: error message of a failed run.
    """

    run: Run
    state: str
    scores: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    flops: float = 0.0
    peak_memory_bytes: int = 0
    problem: str | None = None

    @classmethod
    def read(cls, run: Run, scores: Sequence[str], problem: str | None = None) -> RunResult:
        """Read a run's record.

        Args:
            run: run to read, finished or not.
            scores: names of the scores to read.
            problem: error message of a failed run.
        """
        events = events_of(run)
        summary = summary_of(events)
        if summary is None:
            state = "failed" if problem else "stopped" if events else "waiting"
            return cls(run, state, problem=problem)
        updates = [event for event in events if "tokens_per_second" in event]
        working = sum(e["tokens"] / max(e["tokens_per_second"], 1e-9) for e in updates)
        return cls(
            run,
            "finished",
            scores={name: summary[name] for name in scores if name in summary},
            steps=summary["steps"],
            tokens=summary["target_tokens"],
            seconds=summary["seconds"],
            tokens_per_second=summary["target_tokens"] / max(working, 1e-9),
            flops=summary["steps"] * run.variant.flops_per_update,
            peak_memory_bytes=summary["peak_memory_bytes"],
        )

    def plain(self) -> dict[str, Any]:
        """The run as JSON data."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["run"]
        return {"variant": self.run.variant.name, "seed": self.run.seed, **values}


COSTS = ("steps", "tokens", "seconds", "tokens_per_second", "flops", "peak_memory_bytes")


@dataclass(frozen=True)
class VariantResult:
    """The finished runs of a variant.

    Attributes:
        variant: the configuration.
        runs: finished runs.
        scores: mean of each score over the seeds, with its 95 % confidence interval.
        costs: mean of each cost over the seeds, by the field names of `RunResult`.
    """

    variant: Variant
    runs: tuple[RunResult, ...]
    scores: Mapping[str, Interval]
    costs: Mapping[str, float]

    @classmethod
    def of(
        cls, variant: Variant, runs: Sequence[RunResult], scores: Sequence[str]
    ) -> VariantResult:
        """Average finished runs.

        Args:
            variant: configuration of all these runs.
            runs: finished runs of the variant; may be empty.
            scores: names of the scores.
        """
        results = {}
        for name in scores:
            values = [run.scores[name] for run in runs if name in run.scores]
            if values:
                results[name] = student_interval(values)
        costs = {
            name: sum(getattr(run, name) for run in runs) / len(runs) for name in COSTS if runs
        }
        return cls(variant, tuple(runs), results, costs)

    def plain(self) -> dict[str, Any]:
        """The variant as JSON data."""
        scores = {
            name: {
                "mean": interval.score,
                "low": interval.low if len(self.runs) > 1 else None,
                "high": interval.high if len(self.runs) > 1 else None,
                "values": [run.scores.get(name) for run in self.runs],
            }
            for name, interval in self.scores.items()
        }
        return {
            "name": self.variant.name,
            "finished_runs": len(self.runs),
            "scores": scores,
            "parameters": self.variant.parameters,
            "flops_per_update": self.variant.flops_per_update,
            **self.costs,
        }


@dataclass(frozen=True)
class Comparison(TabledResults):
    """The results of a comparison.

    Attributes:
        plan: variants, seeds and budget.
        out: folder of the comparison.
        runs: results of all runs, in the order of training.
    """

    plan: ComparisonPlan
    out: Path
    runs: tuple[RunResult, ...]

    @property
    def finished(self) -> bool:
        """True if every run is finished."""
        return all(run.state == "finished" for run in self.runs)

    @cached_property
    def variants(self) -> tuple[VariantResult, ...]:
        """The variants in the order they were given."""
        return tuple(
            VariantResult.of(
                variant,
                [r for r in self.runs if r.run.variant is variant and r.state == "finished"],
                self.plan.scores,
            )
            for variant in self.plan.variants
        )

    @property
    def ranking(self) -> list[VariantResult]:
        """The variants with a result, best first, by the score that ranks them."""
        chosen = self.plan.scores[0]
        sign = 1 if chosen in LESS_IS_BETTER else -1
        judged = [each for each in self.variants if chosen in each.scores]
        return sorted(judged, key=lambda each: sign * each.scores[chosen].score)

    def differences(self) -> dict[str, dict[str, Any]]:
        """The settings that differ between variants: the values of each, by variant."""
        settings = {v.name: flat(v.settings.plain()) for v in self.plan.variants}
        keys = dict.fromkeys(key for values in settings.values() for key in values)
        rows = {key: {name: each.get(key) for name, each in settings.items()} for key in keys}
        return {key: row for key, row in rows.items() if len({repr(v) for v in row.values()}) > 1}

    def line(self, run: Run) -> str:
        """One line about a finished run."""
        result = next(each for each in self.runs if each.run.label == run.label)
        scores = ", ".join(f"{name} {value:.4g}" for name, value in result.scores.items())
        return f"{run.label}: {scores}, {result.steps:,} updates in {result.seconds:.0f} s"

    def plain(self) -> dict[str, Any]:
        return {
            "budget": self.plan.budget(),
            "seeds": self.plan.seeds,
            "scores": list(self.plan.scores),
            "finished": self.finished,
            "variants": [each.plain() for each in self.variants],
            "runs": [each.plain() for each in self.runs],
            "differences": self.differences(),
        }

    def columns(self) -> list[str]:
        """Column headings of the printed table."""
        costs = ["parameters", "updates", "seconds", "tokens/s", "operations", "peak memory"]
        return ["variant", "runs", *self.plan.scores, *costs]

    def rows(self) -> Iterator[list[str]]:
        """Cells of the printed table, the best variant first, variants without a result last."""
        ranking = self.ranking
        for each in [*ranking, *(v for v in self.variants if v not in ranking)]:
            scores = [_cell(each.scores.get(n), len(each.runs)) for n in self.plan.scores]
            yield [each.variant.name, str(len(each.runs)), *scores, *_costs(each)]

    def markdown(self) -> str:
        head = self.columns()
        lines = markdown_table(head, self.rows(), [":--", *["--:"] * (len(head) - 1)])
        text = f"{self.plan.budget().capitalize()}, {self.plan.seeds} seeds. {INTERVALS}"
        return f"{text}\n\n" + "\n".join(lines) + "\n"


INTERVALS = (
    "± is the half width of the 95 % confidence interval of the mean over seeds (Student's t)."
)


def read_comparison(
    plan: ComparisonPlan, out: Path, problems: Mapping[str, str] | None = None
) -> Comparison:
    """Read the present results of a comparison.

    Args:
        plan: plan of the comparison.
        out: folder of the comparison.
        problems: error messages of failed runs, by their labels.
    """
    problems = problems or {}
    runs = plan.runs(out)
    return Comparison(
        plan,
        out,
        tuple(RunResult.read(run, plan.scores, problems.get(run.label)) for run in runs),
    )


def _cell(interval: Interval | None, runs: int) -> str:
    """Return a mean over runs as text, with the half width of its interval for several runs."""
    if interval is None:
        return "–"
    mean = f"{interval.score:.4f}" if abs(interval.score) < 10 else f"{interval.score:.2f}"
    if runs < 2:
        return mean
    half = (interval.high - interval.low) / 2
    return f"{mean} ± {half:.4f}" if abs(interval.score) < 10 else f"{mean} ± {half:.2f}"


def _costs(each: VariantResult) -> list[str]:
    from heedful.models.cost import human_bytes

    parameters = f"{each.variant.parameters:,}"
    if not each.runs:
        return [parameters, *["–"] * 5]
    costs = each.costs
    return [
        parameters,
        f"{costs['steps']:,.0f}",
        f"{costs['seconds']:,.1f}",
        f"{costs['tokens_per_second']:,.0f}",
        f"{costs['flops']:.3g}",
        human_bytes(round(costs["peak_memory_bytes"])),
    ]
