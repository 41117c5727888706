"""Contestants that take turns: each is a process of its own that works only when it is asked to."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

WORKERS = Path(__file__).resolve().parent / "workers"

SETTLE = 0.4
"""Seconds between turns: threads that wait by spinning must have gone to sleep."""


class WorkerError(Exception):
    """A process could not do what it was asked for; the last line says why."""


class Worker:
    """A process that answers requests, one JSON line for each.

    Args:
        script: a file in `workers`.
        log: where what it says goes.
        python: the interpreter to run it with; ours if unset.
        threads: it may use.
    """

    def __init__(
        self, script: str, log: Path, *, python: Path | None = None, threads: int = 2
    ) -> None:
        self.name = script.removesuffix(".py")
        self.log = log
        environment = dict(os.environ, TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
        environment["THP_MEM_ALLOC_ENABLE"] = "1"  # as Heedful asks for itself
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        if python is not None:
            environment.pop("PYTHONPATH", None)  # a peer has nothing to do with our packages
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                [str(python or sys.executable), str(WORKERS / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=environment,
                text=True,
            )

    def ask(self, what: str, **details: Any) -> dict[str, Any]:
        """Have something done.

        Raises:
            WorkerError: when it could not be done.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"what": what, **details}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"{self.name} ended: {_last_line(self.log)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


Turn = Callable[[int], float]
"""Works on the part of the data that a round is for, and returns a figure."""


def alternate(
    contestants: Mapping[str, Turn],
    rounds: int,
    told: Callable[[str], None],
    *,
    settle: float = SETTLE,
) -> dict[str, list[float]]:
    """Let all have their turn in every round; each round begins with another one.

    Args:
        contestants: by name.
        rounds: how many.
        told: what is going on.
        settle: seconds before each turn.

    Returns:
        The figures of each, one a round.
    """
    names = list(contestants)
    figures: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(settle)
            figures[name].append(contestants[name](number))
        shown = ", ".join(f"{name} {figures[name][-1]:,.4g}" for name in names)
        told(f"round {number + 1} of {rounds}: {shown}")
    return figures


def summary(runs: Sequence[float]) -> dict[str, Any]:
    """Every run's figure, the median and the spread."""
    median = statistics.median(runs)
    spread = 100 * (max(runs) - min(runs)) / median if median else 0.0
    return {
        "runs": [_rounded(run) for run in runs],
        "median": _rounded(median),
        "lowest": _rounded(min(runs)),
        "highest": _rounded(max(runs)),
        "spread_percent": round(spread, 1),
    }


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """The summary of the ratios, round by round."""
    return summary([a / b for a, b in zip(ours, theirs, strict=True)])


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
