"""Tables, a chart by length and pictures of attention from the result of bottleneck.py."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from driver import heedful
from tables import markdown_table, mean_cell

from heedful.apps import charts
from heedful.apps.evaluation.seed_intervals import student_interval

Result = Mapping[str, Any]


def write_report(result: Result, out: Path) -> None:
    """Write table.md, by-length.md and by-length.svg beside a result."""
    (out / "table.md").write_text(markdown_table(_main_rows(result)), encoding="utf-8")
    (out / "by-length.md").write_text(markdown_table(_length_rows(result)), encoding="utf-8")
    charts.save(_length_chart(result), out / "by-length.svg")


def draw_alignments(runs: Mapping[str, Path], sentence: str, out: Path) -> None:
    """Write a picture of where each system looks while it translates a sentence.

    Args:
        runs: finished runs by the name of their system, of those that attend.
        sentence: of the source language.
        out: folder of alignment-NAME.svg.
    """
    for name, run in runs.items():
        picture = out / f"alignment-{name}.svg"
        heedful(["inspect", str(run), sentence, "-o", str(picture)], run / "inspect.log")


def _systems(result: Result) -> dict[str, list[Result]]:
    """The runs of each system."""
    found: dict[str, list[Result]] = {}
    for run in result["runs"]:
        found.setdefault(run["system"], []).append(run)
    return found


def _main_rows(result: Result) -> list[list[str]]:
    goals = [goal for goal in result["runs"][0]["seconds_to_bleu"] if int(goal) <= 25]
    head = ["system", "parameters", "BLEU", "chrF", "trained, target tokens/s"]
    head += [*(f"s to BLEU {goal}" for goal in goals), "translated, sentences/s"]
    rows = [head]
    for name, runs in _systems(result).items():
        trained = [run["training"]["target_tokens"] / run["training"]["seconds"] for run in runs]
        reached = [[run["seconds_to_bleu"][goal] for run in runs] for goal in goals]
        sentences = [run["translating"]["lines_per_second"] for run in runs]
        cells = [name, f"{runs[0]['parameters']:,}"]
        cells += [
            mean_cell([run["test"][metric] for run in runs], 1) for metric in ("bleu", "chrf")
        ]
        cells += [f"{statistics.median(trained):,.0f}"]
        cells += ["–" if None in each else f"{statistics.median(each):,.0f}" for each in reached]
        rows.append([*cells, f"{statistics.median(sentences):,.0f}"])
    return rows


def _length_rows(result: Result) -> list[list[str]]:
    counts = [each["sentences"] for each in result["runs"][0]["by_length"]]
    rows = [["words of the source", *result["bins"]]]
    rows += [["sentences", *(f"{count:,}" for count in counts)]]
    for name, runs in _systems(result).items():
        rows.append(
            [name, *(mean_cell(each, 1) if each else "–" for each in _bleu_by_length(runs))]
        )
    return rows


def _bleu_by_length(runs: Sequence[Result]) -> list[list[float]]:
    """The BLEU of every run, for each bin; nothing where a bin has too few sentences."""
    bins = zip(*(run["by_length"] for run in runs), strict=True)
    return [[each["scores"]["bleu"] for each in several if each["scores"]] for several in bins]


def _length_chart(result: Result) -> Any:
    series = {}
    for name, runs in _systems(result).items():
        places = [each["words"] for each in runs[0]["by_length"]]
        points = zip(places, _bleu_by_length(runs), strict=True)
        means = [(place, student_interval(values)) for place, values in points if values]
        series[name] = [charts.Estimate(place, m.score, m.low, m.high) for place, m in means]
    return charts.bands(series, x="words of the source, mean of each bin", y="BLEU")
