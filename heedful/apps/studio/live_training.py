"""A training started by a page: one at a time, in a separate process, for about a minute.

The process reads a job from standard input and writes a line of JSON for each event. Its input
stays open while the studio runs. When the studio ends, by any signal, the process reads the end of
its input, removes its files and exits.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heedful.errors import RunError, UserError

MINUTES = 1.0
"""Maximum minutes of training."""

LIMIT = 300.0
"""Seconds after which the process is killed, including import, data and final translations."""

MOST_POINTS = 400
FOLDER_PREFIX = "heedful-training-"


@dataclass
class _Progress:
    """The state of a training so far."""

    number: int
    job: Mapping[str, Any]
    state: str = "starting"
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    step: int = 0
    curves: dict[str, list[tuple[int, float]]] = field(
        default_factory=lambda: {"train": [], "loss": [], "valid_bleu": []}
    )
    result: Mapping[str, Any] | None = None
    problem: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "stopped", "failed")

    def take(self, event: Mapping[str, Any]) -> None:
        """Record an event of the process."""
        kind = event["kind"]
        if kind == "train":
            self.state, self.step = "training", event["step"]
            if len(self.curves["train"]) < MOST_POINTS:
                self.curves["train"].append((event["step"], event["loss"]))
        elif kind == "validation":
            self.curves["loss"].append((event["step"], event["loss"]))
            self.curves["valid_bleu"].append((event["step"], event["bleu"]))
        elif kind == "state":
            self.state = event["state"]
        elif kind == "result":
            self.result = {name: event[name] for name in ("exact", "sentences", "samples")}
        else:
            self.problem = event["what"]

    def plain(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        seconds = self.seconds if self.is_over else time.monotonic() - self.began
        return {
            "number": self.number,
            "state": self.state,
            "components": self.job["components"],
            "seed": self.job["settings"]["seed"],
            "step": self.step,
            "max_steps": self.job["settings"]["max_steps"],
            "seconds": round(seconds, 1),
            **{name: list(points) for name, points in self.curves.items()},
            "result": self.result,
            "problem": self.problem,
        }


class LiveTraining:
    """The single training that all pages of a studio share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._progress: _Progress | None = None
        self._count = 0

    def start(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Start a training.

        Args:
            job: JSON data with the page's `components`, the `settings` of the run without its data,
                and the size of the data (`pairs`, `held_out`).

        Raises:
            UserError: when another training is running.
            RunError: when no process can be started.
        """
        with self._lock:
            if self._process is not None:
                raise UserError(
                    "Another training is running, and only one can run at a time",
                    where="this page, or another one of this studio",
                    remedy="Wait for its end, or stop it",
                )
            self._process, folder = _launch(job)
            self._count += 1
            self._progress = _Progress(self._count, job)
            arguments = (self._process, self._progress, folder)
            self._reader = threading.Thread(target=self._follow, args=arguments, daemon=True)
            self._reader.start()
            return self._progress.plain()

    def status(self) -> dict[str, Any] | None:
        """Return the state of the last training that was started; None before the first."""
        with self._lock:
            return None if self._progress is None else self._progress.plain()

    def stop(self) -> dict[str, Any] | None:
        """Stop the training if there is one, and wait until its files are gone."""
        with self._lock:
            process, reader = self._process, self._reader
            if process is not None and self._progress is not None:
                self._progress.state = "stopped"
                process.kill()
        if reader is not None:
            reader.join()
        return self.status()

    def _follow(self, process: subprocess.Popen[str], progress: _Progress, folder: Path) -> None:
        """Read the events of a process until it ends, and remove its files."""
        limit = threading.Timer(LIMIT, process.kill)
        limit.daemon = True
        limit.start()
        assert process.stdout is not None
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # an incomplete line of a killed process
            with self._lock:
                if not progress.is_over:
                    progress.take(event)
        status = process.wait()
        limit.cancel()
        process.stdout.close()
        if process.stdin is not None:
            process.stdin.close()
        shutil.rmtree(folder, ignore_errors=True)
        with self._lock:
            progress.seconds = time.monotonic() - progress.began
            if not progress.is_over:
                progress.state = "done" if status == 0 and progress.result else "failed"
                if progress.state == "failed" and progress.problem is None:
                    progress.problem = f"The training ended early (status {status})"
            self._process = None


def _launch(job: Mapping[str, Any]) -> tuple[subprocess.Popen[str], Path]:
    """Start the process in a new folder, and send it the job."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    except OSError as error:
        raise RunError(
            f"There is no space for the files of a training: {error.strerror}",
            where=tempfile.gettempdir(),
            remedy="Free some space there",
        ) from None
    # One thread keeps pages fast, and such a small model gains little from more threads.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "heedful.apps.studio.training_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
            start_new_session=True,  # Ctrl-C goes to the studio, which then ends this process
        )
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise RunError(
            f"No process can be started for a training: {error.strerror}",
            where=sys.executable,
            remedy="Close other programs",
        ) from None
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps({**job, "folder": str(folder), "minutes": MINUTES}) + "\n")
        process.stdin.flush()
    except OSError:
        pass  # the process has already ended, which the reader of its output reports
    return process, folder
