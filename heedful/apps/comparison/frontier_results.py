"""The Pareto frontier of a translator's settings, in speed, memory and quality."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.apps.comparison.frontier_rounds import MeasuredTask, Measurements, Setting
from heedful.apps.comparison.result_files import TabledResults, markdown_table

if TYPE_CHECKING:
    from heedful.apps.evaluation.bootstrap import Interval, PairedScore

METRICS = ("bleu", "chrf")
MARGIN = 0.5
"""Margin of BLEU and chrF: quality is no worse if the 95 % interval of its loss lies below it."""
_SAME_MEMORY = 1.02  # peak memory varies by 2 % from run to run
_LESS_MEMORY = 0.9
_FEWEST_ROUNDS = 3  # of two equal settings, one wins all 3 rounds in a quarter of cases


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """The measurements of a setting, summarised over its rounds.

    Args:
        setting: the measured setting.
        rates: sentences a second in each round.
        median_waits: median seconds of a sentence translated alone, in each round.
        wait_p50, wait_p95: quantiles over all rounds of the seconds of a sentence translated alone.
        peak_memory_bytes: largest resident size of the process over all rounds.
        translations: translations of all texts, in their order.
    """

    setting: Setting
    rates: tuple[float, ...]
    median_waits: tuple[float, ...]
    wait_p50: float
    wait_p95: float
    peak_memory_bytes: int
    translations: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Sentences a second, the median of the rounds."""
        return statistics.median(self.rates)

    @classmethod
    def of(
        cls, setting: Setting, records: Sequence[dict[str, Any]], found: Measurements
    ) -> FrontierPoint | None:
        """Summarise the measurements of a setting; None if it has none, or no translations."""
        translations = found.translations(setting)
        if translations is None or not records:
            return None
        waits = np.concatenate([record["alone"] for record in records])
        return cls(
            setting=setting,
            rates=tuple(found.task.timed / record["seconds"] for record in records),
            median_waits=tuple(float(np.median(record["alone"])) for record in records),
            wait_p50=float(np.quantile(waits, 0.5)),
            wait_p95=float(np.quantile(waits, 0.95)),
            peak_memory_bytes=max(record["peak_memory_bytes"] for record in records),
            translations=tuple(translations),
        )


class Frontier(TabledResults):
    """Settings with their measurements, scores and verdicts.

    Args:
        found: measurements of a folder.
        settings: settings to judge, the most exact one first.
    """

    def __init__(self, found: Measurements, settings: Sequence[Setting]) -> None:
        self.task: MeasuredTask = found.task
        self.problems = {each: p for each in settings if (p := found.problem(each)) is not None}
        records = {each: found.of(each) for each in settings if each not in self.problems}
        points = (FrontierPoint.of(each, records[each], found) for each in records)
        self.points = sorted((p for p in points if p is not None), key=lambda point: -point.rate)
        measured = {point.setting for point in self.points}
        self.unmeasured = [each for each in records if each not in measured]
        self.reference = next((s for s in settings if s in measured), None)
        loads = [r["load"] for each in measured for r in records[each] if r["load"]]
        self.load = statistics.median(loads) if loads else None
        self._compared: dict[tuple[Any, Any], dict[str, PairedScore]] = {}

    @cached_property
    def by_setting(self) -> dict[Setting, FrontierPoint]:
        """The points by their settings."""
        return {point.setting: point for point in self.points}

    @cached_property
    def scores(self) -> dict[tuple[str, int, bool], dict[str, Interval]]:
        """Scores with their 95 % intervals, by `Setting.output`."""
        from heedful.apps.evaluation.bootstrap import score_intervals

        outputs = {point.setting.output: point.translations for point in self.points}
        return {
            output: score_intervals(lines, self.task.references, METRICS)
            for output, lines in outputs.items()
        }

    def compared(self, a: FrontierPoint, b: FrontierPoint) -> dict[str, PairedScore]:
        """Compare the translations of two settings by paired bootstrap: B minus A."""
        from heedful.apps.evaluation.bootstrap import paired_bootstrap

        key = (a.setting.output, b.setting.output)
        if key not in self._compared:
            self._compared[key] = paired_bootstrap(
                a.translations, b.translations, self.task.references, METRICS
            )
        return self._compared[key]

    def against_reference(self, point: FrontierPoint) -> dict[str, PairedScore]:
        """Compare a setting with the most exact one by paired bootstrap."""
        assert self.reference is not None
        return self.compared(self.by_setting[self.reference], point)

    @cached_property
    def dominated(self) -> dict[Setting, Setting]:
        """Dominated settings, each with the fastest setting that dominates it."""
        found: dict[Setting, Setting] = {}
        for point in self.points:
            for other in self.points:  # the fastest first
                if other is not point and self._dominates(other, point):
                    found[point.setting] = other.setting
                    break
        return found

    def _dominates(self, other: FrontierPoint, point: FrontierPoint) -> bool:
        """Return True if `other` is no worse in any measure, and surely better in one.

        No worse means: as many sentences a second, as short a wait for one sentence in at least
        one round, as little memory, no more threads, and no quality lost beyond the margin.
        Surely better means: faster in every round, a tenth less memory, or a difference of
        quality whose interval lies above 0.
        """
        no_worse = (
            other.rate >= point.rate
            and min(other.median_waits) <= max(point.median_waits)
            and other.peak_memory_bytes <= point.peak_memory_bytes * _SAME_MEMORY
            and other.setting.threads <= point.setting.threads
        )
        if not no_worse or not self._as_good(other, point):
            return False
        rounds = list(zip(other.rates, point.rates, strict=False))
        return (
            (len(rounds) >= _FEWEST_ROUNDS and all(fast > slow for fast, slow in rounds))
            or other.peak_memory_bytes < point.peak_memory_bytes * _LESS_MEMORY
            or self._surely_better(other, point)
        )

    def _surely_better(self, other: FrontierPoint, point: FrontierPoint) -> bool:
        """Return True if the intervals of all metrics show better translations of `other`."""
        if other.translations == point.translations:
            return False
        return all(score.difference.low > 0 for score in self.compared(point, other).values())

    def _as_good(self, other: FrontierPoint, point: FrontierPoint) -> bool:
        """Return True if the translations of `other` surely lose less than the margin."""
        if other.translations == point.translations:
            return True
        scores = self.compared(point, other).values()
        return all(score.difference.low > -MARGIN for score in scores)

    @cached_property
    def recommended(self) -> dict[str, Setting]:
        """The recommended settings, by purpose.

        Settings for good translations lose no quality beyond the margin against the most exact
        setting, or against a setting that is surely better. The highest score cannot be the
        reference: among many settings, one reaches it by chance.
        """
        if self.reference is None:
            return {}
        best = self.by_setting[self.reference]
        for point in self.points:
            if self._surely_better(point, best):
                best = point
        good = [point for point in self.points if self._as_good(point, best)]
        return {
            "good translations, many sentences": good[0].setting,
            "good translations, one at a time": min(good, key=lambda p: p.wait_p50).setting,
            "fastest": self.points[0].setting,
            "least memory": min(self.points, key=lambda p: p.peak_memory_bytes).setting,
        }

    def command(self, setting: Setting) -> str:
        """Return the command that translates with a setting."""
        words = [f"heedful translate {self.task.model} --precision {setting.precision}"]
        words.append(f"--beam {setting.beam} --batch-tokens {setting.batch_tokens}")
        if setting.shortlist:
            words.append(f"--shortlist-file {self.task.shortlist}")
        if setting.threads != self.task.machine["cores"]:
            words.insert(0, f"OMP_NUM_THREADS={setting.threads}")
        return " ".join(words)

    def plain(self) -> dict[str, Any]:
        task = self.task
        return {
            "model": task.model,
            "machine": task.machine,
            "load": self.load,
            "lines": len(task.texts),
            "timed": task.timed,
            "alone": task.alone,
            "reference": None if self.reference is None else asdict(self.reference),
            "settings": [self._plain(point) for point in self.points],
            "recommended": {
                name: {**asdict(setting), "command": self.command(setting)}
                for name, setting in self.recommended.items()
            },
            "not_possible": [{**asdict(s), "why": why} for s, why in self.problems.items()],
            "not_measured": [asdict(setting) for setting in self.unmeasured],
        }

    def _plain(self, point: FrontierPoint) -> dict[str, Any]:
        better = self.dominated.get(point.setting)
        compared = self.against_reference(point)
        return {
            **asdict(point.setting),
            "rounds": len(point.rates),
            "sentences_per_second": {
                "median": point.rate,
                "low": min(point.rates),
                "high": max(point.rates),
            },
            "alone_seconds": {"p50": point.wait_p50, "p95": point.wait_p95},
            "peak_memory_bytes": point.peak_memory_bytes,
            "scores": {
                name: {
                    **asdict(interval),
                    "difference": asdict(compared[name].difference),
                    "p_value": compared[name].p_value,
                }
                for name, interval in self.scores[point.setting.output].items()
            },
            "dominated_by": None if better is None else asdict(better),
        }

    COLUMNS = (
        "setting", "sentences/s", "low to high", "one: p50 ms", "p95 ms", "MB", "BLEU", "Δ", "p",
        "chrF", "Δ", "p", "",
    )  # fmt: skip

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table, the fastest setting first."""
        names: dict[Setting, list[str]] = {}
        for name, setting in self.recommended.items():
            names.setdefault(setting, []).append(name)
        rows = []
        for point in self.points:
            compared = self.against_reference(point)
            scores = self.scores[point.setting.output]
            quality = [
                cell
                for name in METRICS
                for cell in (
                    f"{scores[name].score:.2f}",
                    f"{compared[name].difference.score:+.2f}",
                    f"{compared[name].p_value:.3f}",
                )
            ]
            better = self.dominated.get(point.setting)
            note = "; ".join(names.get(point.setting, ()))
            rows.append(
                (
                    str(point.setting),
                    f"{point.rate:.1f}",
                    f"{min(point.rates):.1f} to {max(point.rates):.1f}",
                    f"{1000 * point.wait_p50:.1f}",
                    f"{1000 * point.wait_p95:.1f}",
                    f"{point.peak_memory_bytes / 1e6:.0f}",
                    *quality,
                    note if better is None else f"use {better}",
                )
            )
        return rows

    def about(self) -> str:
        """Return a paragraph that describes the measurements and the machine."""
        task, rounds = self.task, {len(point.rates) for point in self.points} or {0}
        between = f"{min(rounds)}" if len(rounds) == 1 else f"{min(rounds)} to {max(rounds)}"
        load = ""
        if self.load is not None:
            load = f" The system's load was {self.load:g} in the median, measuring included."
        return (
            f"{Path(task.model).name if Path(task.model).exists() else task.model}: "
            f"{task.timed} sentences together, {task.alone} of them alone, median of {between} "
            f"alternating rounds; scores of {len(task.texts):,} sentences; each "
            "measurement a process of its own after a warm-up, on "
            f"{task.machine['processor']}, {task.machine['cores']} cores.{load} Δ and p: "
            f"against {self.reference}, by paired bootstrap."
        )

    def markdown(self) -> str:
        dominated = [point.setting in self.dominated for point in self.points]
        rows = [
            [f"*{cell}*" if faint and cell else cell for cell in row]
            for faint, row in zip(dominated, self.rows(), strict=True)
        ]
        lines = markdown_table(self.COLUMNS, rows, ["---"] * len(self.COLUMNS))
        commands = [f"- {n}: `{self.command(s)}`" for n, s in self.recommended.items()]
        return "\n".join([self.about(), "", *lines, "", *commands, ""])
