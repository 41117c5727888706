"""Start of the processes that run the jobs of a comparison."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from heedful.train.stop_request import StopRequest

_PATIENCE = 0.2
"""Seconds between checks for a request to stop while a process writes nothing."""


def run_job(
    job: Literal["train", "measure"],
    task: Any,
    log: IO[str],
    *,
    on_line: Callable[[Mapping[str, Any]], None] | None = None,
    stop: StopRequest | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a job in a separate process.

    Args:
        job: name of the job, a key of `worker.JOBS`.
        task: argument of the job, as JSON data.
        log: open file for the standard error of the process.
        on_line: function that takes every object that the process writes.
        stop: request that is passed on to the process, which then saves and ends.
        environment: environment variables of the process, in addition to the inherited ones.

    Returns:
        The last object that the process wrote: its `result`, or a `problem` and `is_defect`, true
        for a bug of Heedful. For a process that was killed, only its exit `status`.
    """
    last: dict[str, Any] = {}
    with _process(log, environment or {}) as (process, lines):
        assert process.stdin is not None
        process.stdin.write(json.dumps([job, task]) + "\n")
        process.stdin.flush()
        is_asked = False
        while (line := _next(lines)) is not None:
            if stop and not is_asked:
                process.send_signal(signal.SIGTERM)
                is_asked = True
            if line:
                last = json.loads(line)
                if on_line is not None:
                    on_line(last)
        process.wait()
    return last if last.keys() & {"result", "problem"} else {"status": process.returncode}


def _next(lines: queue.SimpleQueue[str | None]) -> str | None:
    """Return the next line; "" if no line has come for a while, None at the end."""
    try:
        return lines.get(timeout=_PATIENCE)
    except queue.Empty:
        return ""


@contextmanager
def _process(
    log: IO[str], environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], queue.SimpleQueue[str | None]]]:
    """Return a context with the process and its lines; the process ends with the context."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "heedful.apps.comparison.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, **environment},
        # Ctrl-C in a terminal reaches this process alone, which passes it on once.
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True).start()
        yield process, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdin.close()


def _read_lines(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            if line.endswith("\n"):  # a process that is killed may leave half a line
                lines.put(line)
    lines.put(None)
