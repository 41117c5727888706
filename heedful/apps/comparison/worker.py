"""A process that runs one job of a comparison: `python -m heedful.apps.comparison.worker`.

Each job has its own process, so that its peak memory and its number of OpenMP threads do not depend
on other jobs, and the comparison survives if the system kills it. Standard input is one line of
JSON with the name of the job and its task, and stays open as long as the comparison runs. Standard
output is JSON, an object a line; the last one is `result`, or `problem` if the job failed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.events import Event


def write(item: dict[str, Any]) -> None:
    """Write one line to standard output."""
    print(json.dumps(item, ensure_ascii=False), flush=True)


class ProgressLines:
    """A sink that writes progress and warnings as lines of JSON."""

    def handle(self, event: Event) -> None:
        """Write the event; notes and metrics are in the run's own files."""
        from heedful.events import Progress, Warning

        if isinstance(event, Progress) and event.label == "training":
            write({"done": event.done, "total": event.total, "fields": dict(event.fields)})
        elif isinstance(event, Warning):
            write({"warning": event.text})

    def close(self) -> None:
        """Do nothing, since every line is written at once."""


def train(run_dir: str) -> dict[str, Any]:
    """Train a run, or continue its training.

    Args:
        run_dir: directory with the run's settings and tokenizers, and a checkpoint once it began.
    """
    from heedful.events import Events
    from heedful.train.run import run_training
    from heedful.train.run_config import settings_of_run

    settings = settings_of_run(Path(run_dir))
    events = Events([ProgressLines()])
    summary = run_training(Path(run_dir), settings, resume=True, events=events)
    return {"finished": summary.finished}


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Measure one setting of a translator; see `measure_setting`."""
    from heedful.apps.comparison.measured_setting import measure_setting

    return measure_setting(task)


JOBS: dict[str, Callable[[Any], dict[str, Any]]] = {"train": train, "measure": measure}


def _end_with_parent() -> None:
    """Exit when standard input ends, since the comparison has been killed."""
    sys.stdin.read()
    os._exit(1)


def work() -> None:
    """Run the job named by standard input; the last line written is its result or problem."""
    from heedful.errors import UserError

    name, task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        write({"result": JOBS[name](task)})
    except UserError as error:
        write({"problem": str(error), "is_defect": False})
    except Exception as error:
        traceback.print_exc()
        write({"problem": f"{type(error).__name__}: {error}", "is_defect": True})


if __name__ == "__main__":
    work()
    sys.stderr.flush()
    os._exit(0)  # the thread waits for input, and a usual end would wait for the thread
