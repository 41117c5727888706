"""Heedful's own training run, held after every block of updates until it is asked to go on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import serve
import torch

from heedful.events import Event, Events, Metric, Note
from heedful.train.run import run_training
from heedful.train.run_config import resolve_settings


class Hold:
    """Counts updates; after a block it answers and waits. Nothing else of the run is touched.

    Args:
        updates: of the first block, which warms up.
    """

    def __init__(self, updates: int) -> None:
        self.left = updates
        self.tokens = 0
        self.notes: list[str] = []
        self.compile_seconds = 0.0
        self.began = time.perf_counter()

    def handle(self, event: Event) -> None:
        """Look at every update."""
        if isinstance(event, Note):
            self.notes.append(event.text)
        if isinstance(event, Metric) and event.kind == "compile":
            self.compile_seconds += float(event.values["seconds"])
        if not isinstance(event, Metric) or event.kind != "train":
            return
        self.tokens += int(event.values["tokens"])
        self.left -= 1
        if self.left:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self.began
        serve.answer(
            seconds=seconds,
            tokens=self.tokens,
            loss=event.values["loss"],
            notes=self.notes,
            compile_seconds=round(self.compile_seconds, 2),
        )
        request = serve.read()
        if request is None:
            os._exit(0)  # a run that ends by itself would save and choose a model
        self.left, self.tokens, self.notes = request["updates"], 0, []
        self.began = time.perf_counter()

    def close(self) -> None:
        """Nothing to finish."""


def main() -> None:
    """Begin the run that the first request describes."""
    request: dict[str, Any] | None = serve.read()
    assert request is not None
    try:
        settings = resolve_settings(request["preset"], None, request["settings"])
        hold = Hold(request["updates"])
        run_training(Path(request["run"]), settings, events=Events([hold]))
    except Exception as error:
        serve.refuse(error)


if __name__ == "__main__":
    main()
