"""Updates of a language model of Heedful's on random tokens, computed as a run would do it."""

from __future__ import annotations

import time
from typing import Any

import serve
import torch

from heedful.data.batches import WindowBatch
from heedful.device import Precision
from heedful.engines.cost_memory import training_peak
from heedful.engines.training.activation_checkpointing import apply_checkpointing
from heedful.events import Event, Events, Metric, Note
from heedful.memory import Trimmer
from heedful.models.build import build_model
from heedful.models.cost import count_parameters, text_work
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.nn.work import BFLOAT16, FLOAT32
from heedful.train.choose_updater import updater_of_run
from heedful.train.objective import CausalLMObjective
from heedful.train.run_settings import RunSettings
from heedful.train.update import Distribution


class Told:
    """A sink of events: the notes, and the seconds in which graphs were compiled."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.compile_seconds = 0.0

    def handle(self, event: Event) -> None:
        """Keep what an event tells."""
        if isinstance(event, Note):
            self.notes.append(event.text)
        if isinstance(event, Metric) and event.kind == "compile":
            self.compile_seconds += float(event.values["seconds"])

    def close(self) -> None:
        """Nothing to finish."""


def new_updater(
    spec: Any,
    rows: int,
    length: int,
    checkpointing: Any,
    precision: Any,
    device: str,
    optimizer: dict[str, Any] | None,
    events: Events,
) -> Any:
    """The updater of a new model, as a run on windows of `length` tokens would have it."""
    model = build_model(spec).to(device)
    apply_checkpointing(model, checkpointing)
    settings = RunSettings.parse(
        {
            "task": "causal_lm",
            "data": {"train": [{"file": "none"}], "batch_tokens": rows * length},
            "optimizer": optimizer or {},
            "checkpointing": checkpointing,
        }
    )
    distribution = Distribution(model, CausalLMObjective(0.0))
    return updater_of_run(distribution, settings, Precision(precision, device), events)


def new_batch(rows: int, length: int, vocabulary: int) -> WindowBatch:
    """Windows of random tokens, which are full and count from 0, as those of a long text do."""
    ids = torch.randint(vocabulary, (rows, length))
    positions = torch.arange(length).repeat(rows, 1)
    nothing = torch.zeros_like(ids)
    numbers = torch.arange(rows)
    return WindowBatch(ids, positions, nothing, ids, numbers, ids.numel(), counted=True)


def main() -> None:
    """Answer: begin (a model, and its first two updates), then train."""
    updater: Any = None
    batch: Any = None
    trimmer, told = Trimmer(), Told()
    step = 0

    def begin(
        shape: dict[str, Any],
        vocabulary: int,
        length: int,
        rows: int,
        checkpointing: Any,
        precision: Any,
        device: str,
        compile: bool = False,
        optimizer: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        nonlocal updater, batch
        began = time.perf_counter()
        torch.manual_seed(1)
        events = Events([told])
        spec = causal_lm_spec(TranslatorShape(**shape), vocabulary, length)
        updater = new_updater(
            spec, rows, length, checkpointing, precision, device, optimizer, events
        )
        batch = new_batch(rows, length, vocabulary)
        if compile:
            updater.compile(batch, 0, events, asked_for=True, one_shape=True)
        train(2)
        seconds = round(time.perf_counter() - began, 2)
        foreseen = training_peak(
            spec,
            rows * length,
            length=length,
            parameters=count_parameters(spec),
            number_bytes=FLOAT32 if precision == "fp32" else BFLOAT16,
            device=device,
            checkpointing=checkpointing,
        )
        return {
            "foreseen_mb": round(foreseen.total / 2**20),
            "parameters": count_parameters(spec),
            "operations_a_token": 3 * text_work(spec, length).total // length,
            "warm_up_seconds": seconds,
            "compile_seconds": round(told.compile_seconds, 2),
            "notes": told.notes,
        }

    def train(updates: int) -> dict[str, Any]:
        nonlocal step
        before: Any = None
        began = time.perf_counter()
        for _ in range(updates):
            step += 1
            launched = updater.launch([batch], step, 1e-4)
            if before is not None:  # while the device is at work, as a run does
                before.read()
            before = launched
            trimmer.step()
        result = before.read()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return {"seconds": (time.perf_counter() - began) / updates, "loss": result.values["loss"]}

    serve.serve({"begin": begin, "train": train})


if __name__ == "__main__":
    main()
