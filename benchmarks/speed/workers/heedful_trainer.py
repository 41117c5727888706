"""Heedful's own training run, held after every block of updates until it is asked to go on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import serve
import torch

from heedful.events import Event, Events, Metric, Note
from heedful.nn.attention import attend
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
        self.facts: dict[str, int] = {}
        self.began = time.perf_counter()

    def handle(self, event: Event) -> None:
        """Look at every update."""
        if isinstance(event, Note):
            self.notes.append(event.text)
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
            **self.facts,
        )
        request = serve.read()
        if request is None:
            os._exit(0)  # a run that ends by itself would save and choose a model
        self.left, self.tokens, self.notes = request["updates"], 0, []
        self.began = time.perf_counter()

    def close(self) -> None:
        """Nothing to finish."""


def prefer(name: str, facts: dict[str, int]) -> None:
    """Take a kernel of attention wherever it serves, and count how often it does.

    Args:
        name: of the kernel.
        facts: receive the number of its calls.
    """
    kernel, ranking = attend.KERNELS[name], attend._ranking
    run = kernel.run
    facts["calls_of_kernel"] = 0

    def counted(request: Any) -> Any:
        facts["calls_of_kernel"] += 1
        return run(request)

    kernel.run = counted  # type: ignore[method-assign]
    attend._ranking = lambda request: [(name, "it is measured"), *ranking(request)]


def main() -> None:
    """Begin the run that the first request describes."""
    request: dict[str, Any] | None = serve.read()
    assert request is not None
    try:
        settings = resolve_settings(request["preset"], None, request["settings"])
        hold = Hold(request["updates"])
        if request.get("kernel") is not None:
            prefer(request["kernel"], hold.facts)
        run_training(Path(request["run"]), settings, events=Events([hold]))
    except Exception as error:
        serve.refuse(error)


if __name__ == "__main__":
    main()
