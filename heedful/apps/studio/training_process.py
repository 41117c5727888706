"""The process of a page's training: it reads a job and writes events as lines of JSON.

When its standard input ends, the studio has exited: the process then removes its folder and exits.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from heedful.errors import UserError
from heedful.events import Event, Events, Metric

if TYPE_CHECKING:
    from heedful.apps.demo_corpus import DemoCorpus

_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"
"""A program that replaces this process when the studio has exited."""

NICE = 5
"""Niceness of the process, so that pages have priority."""

EVERY = 5
"""Number of steps between two points of the training loss."""

SHOWN = 8
"""Number of translations that are shown at the end."""


@dataclass(frozen=True)
class JsonLines:
    """A sink that writes losses as lines of JSON.

    Args:
        stream: output stream.
    """

    stream: TextIO

    def handle(self, event: Event) -> None:
        """Write the training loss of every few steps, and every validation."""
        if not isinstance(event, Metric):
            return
        values = {name: event.values[name] for name in ("loss", "bleu") if name in event.values}
        if event.kind == "validation" or (event.kind == "train" and event.step % EVERY == 0):
            self.write(event.kind, step=event.step, **values)

    def close(self) -> None:
        """Do nothing, since every line is written at once."""

    def write(self, kind: str, **values: Any) -> None:
        """Write one event."""
        print(json.dumps({"kind": kind, **values}), file=self.stream, flush=True)


def run_job(job: Mapping[str, Any], out: JsonLines) -> None:
    """Generate the data, train, translate held-out lines.

    Args:
        job: job of `LiveTraining.start`, with `folder` for all files and `minutes` of training.
        out: receiver of events.
    """
    from heedful.apps.demo_corpus import write_demo
    from heedful.apps.studio.small_translator import small_corpus
    from heedful.train.run import run_training
    from heedful.train.run_settings import RunSettings

    folder = Path(job["folder"])
    out.write("state", state="writing sentences")
    corpus = small_corpus(job["pairs"], job["held_out"])
    files = write_demo(corpus, folder / "pairs")
    names = {
        part: [dict(zip(("source", "target"), map(str, files[part]), strict=True))]
        for part in ("train", "valid")
    }
    settings = dict(job["settings"])
    settings["data"] = {**settings["data"], **names}
    settings["max_minutes"] = job["minutes"]
    out.write("state", state="preparing")
    run_training(folder / "run", RunSettings.parse(settings), events=Events([out]))
    out.write("state", state="translating")
    out.write("result", **_result(folder / "run", corpus))


def _result(run: Path, corpus: DemoCorpus) -> dict[str, Any]:
    from heedful.evaluate.corpus_metrics import exact_match
    from heedful.pipelines.translation import TranslationPipeline

    sources = [item.source for item in corpus.test]
    pipeline = TranslationPipeline.load(run)
    written = [str(text) for text in pipeline.translate(sources, beam=1)]
    references = [item.target for item in corpus.test]
    rows = zip(sources, references, written, strict=True)
    samples = [dict(zip(("source", "reference", "text"), row, strict=True)) for row in rows]
    return {
        "exact": exact_match(written, references),
        "sentences": len(written),
        "samples": samples[:SHOWN],
    }


def _leave_with(descriptor: int, folder: Path) -> None:
    """Wait for the end of the input, then remove all files and exit.

    The file is read by its descriptor: a thread that waits in `sys.stdin` would hold a lock that
    the interpreter needs to exit. The folder is removed by a program that replaces this process,
    since the training thread, which could create the folder again, has certainly stopped only then.
    """
    while os.read(descriptor, 1024):
        pass
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _REMOVE, str(folder)])


def main() -> int:
    """Run the job of the standard input; return 1 if it failed."""
    job = json.loads(sys.stdin.readline())
    folder = Path(job["folder"])
    arguments = (sys.stdin.fileno(), folder)
    threading.Thread(target=_leave_with, args=arguments, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICE)
    out = JsonLines(sys.stdout)
    try:
        run_job(job, out)
    except UserError as error:
        out.write("error", what=str(error))
        return 1
    except BrokenPipeError:  # the studio has exited, which this thread noticed first
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
