"""A process that trains one run: `python -m heedful.apps.comparison.worker`.

A run has a process of its own so that its peak of memory is its own, it begins with nothing that
another left behind, and a comparison outlives it when the system kills it. Standard input brings
one line, the run's directory, and stays open as long as the comparison lives. Standard output gets
JSON, an object a line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from heedful.events import Event


class Lines:
    """A sink that writes progress and warnings as lines of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def handle(self, event: Event) -> None:
        """Write the event; notes and metrics are in the run's own files."""
        from heedful.events import Progress, Warning

        if isinstance(event, Progress) and event.label == "training":
            fields = dict(event.fields)
            self.write({"done": event.done, "total": event.total, "fields": fields})
        elif isinstance(event, Warning):
            self.write({"warning": event.text})

    def write(self, item: dict[str, Any]) -> None:
        """Write one line."""
        self.stream.write(json.dumps(item, ensure_ascii=False) + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Nothing to finish."""


def _end_with_parent() -> None:
    """End when standard input does: the comparison has been killed."""
    sys.stdin.read()
    os._exit(1)


def work() -> None:
    """Train the run that standard input names; the last line says how it ended."""
    from heedful.errors import UserError
    from heedful.events import Events

    lines = Lines(sys.stdout)
    run_dir = Path(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        from heedful.train.run import run_training
        from heedful.train.run_config import settings_of_run

        # A run that has not begun yet has its tokenizers and settings, and no checkpoint.
        settings = settings_of_run(run_dir)
        summary = run_training(run_dir, settings, resume=True, events=Events([lines]))
        lines.write({"finished": summary.finished})
    except UserError as error:
        lines.write({"problem": str(error)})
    except Exception as error:
        traceback.print_exc()
        lines.write({"problem": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    work()
    sys.stderr.flush()
    os._exit(0)  # the thread waits for input, and a usual end would wait for the thread
