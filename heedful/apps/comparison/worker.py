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
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.events import Event

_WARM_UP = 16  # number of sentences translated before timing begins


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


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Translate sentences together, then some of them alone.

    Args:
        task: `model`, `precision`, `beam`, `shortlist` (a file, or None), `batch_tokens`, `texts`,
            the number of texts translated `alone`, and the texts to be `scored`, or None.

    Returns:
        `seconds` of all texts together, the seconds of each text `alone`, `peak_memory_bytes`,
        `load_seconds`, and `translations` of the texts to be scored.

    Raises:
        UserError: when the model, precision or shortlist does not exist.
    """
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.translation import TranslationPipeline

    start = time.perf_counter()
    pipeline = TranslationPipeline.load(
        task["model"],
        precision=task["precision"],
        shortlist=task["shortlist"] or False,
        read=load_any,
    )
    loaded = time.perf_counter() - start
    texts: list[str] = task["texts"]
    options = {"beam": task["beam"], "batch_tokens": task["batch_tokens"]}
    step = max(1, len(texts) // _WARM_UP)
    pipeline.translate(texts[::step], **options)
    start = time.perf_counter()
    pipeline.translate(texts, **options)
    seconds = time.perf_counter() - start
    alone = texts[:: max(1, len(texts) // task["alone"])][: task["alone"]]
    for text in alone[:3]:
        pipeline.translate([text], **options)
    waits = []
    for text in alone:
        start = time.perf_counter()
        pipeline.translate([text], **options)
        waits.append(time.perf_counter() - start)
    answer: dict[str, Any] = {
        "seconds": seconds,
        "alone": waits,
        "load_seconds": loaded,
        "peak_memory_bytes": _peak(),
    }
    if task["scored"] is not None:  # after peak memory is read, since scoring may need more
        answer["translations"] = list(map(str, pipeline.translate(task["scored"], **options)))
    return answer


def _peak() -> int:
    """Return the largest resident size of this process's own memory.

    Linux's `getrusage` also counts the memory that the parent process had when it started this
    process.
    """
    from heedful.memory import peak_memory_bytes

    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return peak_memory_bytes()


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
    os._exit(0)  # an ordinary exit would wait for the thread that reads standard input
