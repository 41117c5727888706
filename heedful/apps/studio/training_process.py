"""The process of a training that a page started: reads a job, writes events as lines of JSON.

It ends as soon as its standard input does, for then the studio is gone, and removes its folder.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from heedful.errors import UserError
from heedful.events import Event, Events, Metric

if TYPE_CHECKING:
    from heedful.data.demo_corpus import DemoCorpus

_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"
"""A program that takes the place of this one when the studio is gone."""

NICE = 5
"""Added to the priority's number, so that the pages come first."""

EVERY = 5
"""Steps between two points of the training loss."""

SHOWN = 8
"""Translations that are shown in the end."""


class JsonLines:
    """A sink that writes the losses as lines of JSON.

    Args:
        stream: where to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def handle(self, event: Event) -> None:
        """Write a training loss now and then, and every validation."""
        if not isinstance(event, Metric):
            return
        values = {name: event.values[name] for name in ("loss", "bleu") if name in event.values}
        if event.kind == "validation" or (event.kind == "train" and event.step % EVERY == 0):
            self.write(event.kind, step=event.step, **values)

    def close(self) -> None:
        """Nothing is left to write."""

    def write(self, kind: str, **values: Any) -> None:
        """Write one event."""
        print(json.dumps({"kind": kind, **values}), file=self.stream, flush=True)


def run_job(job: Mapping[str, Any], out: JsonLines) -> None:
    """Generate the data, train, translate held-out lines.

    Args:
        job: see `LiveTraining.start`; and `folder`, for all files, and `minutes` of training.
        out: takes what happens.
    """
    from heedful.apps.studio.small_translator import small_corpus
    from heedful.data.demo_corpus import write_demo
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
    """Wait for the end of the input, then leave nothing behind.

    The file is read by its descriptor: a thread that waits in `sys.stdin` would hold a lock that
    the interpreter wants when it ends. The folder is removed by a program that takes the place of
    this process: only then has the training's thread stopped for certain, which else may make the
    folder anew between its removal and the end.
    """
    while os.read(descriptor, 1024):
        pass
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _REMOVE, str(folder)])


def main() -> int:
    """Run the job of the standard input; 1 where it failed."""
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
    except BrokenPipeError:  # the studio is gone, and this thread noticed first
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
