"""Updates of a deep language model on random tokens, with or without activation checkpointing."""

from __future__ import annotations

import time
from typing import Any

import serve
import torch

from heedful.data.batches import WindowBatch
from heedful.device import Precision
from heedful.memory import Trimmer
from heedful.models.build import build_model
from heedful.models.cost import count_parameters
from heedful.models.cost_memory import training_peak
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.nn.work import BFLOAT16, FLOAT32
from heedful.train.activation_checkpointing import apply_checkpointing
from heedful.train.objective import CausalLMObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.run_settings import OptimizerSettings
from heedful.train.update import Updater

VOCABULARY = 8192


def main() -> None:
    """Answer: begin (a model, and its first two updates), then train."""
    updater: Any = None
    batch: Any = None
    trimmer = Trimmer()
    step = 0

    def begin(
        shape: dict[str, Any],
        length: int,
        rows: int,
        checkpointing: Any,
        precision: Any,
        device: str,
    ) -> dict[str, Any]:
        nonlocal updater, batch
        torch.manual_seed(1)
        spec = causal_lm_spec(TranslatorShape(**shape), VOCABULARY, length)
        model = build_model(spec).to(device)
        apply_checkpointing(model, checkpointing)
        optimizer = build_optimizer(model, OptimizerSettings())
        chosen = Precision(precision, device)
        updater = Updater(model, CausalLMObjective(0.0), optimizer, chosen, seed=1)
        ids = torch.randint(VOCABULARY, (rows, length))
        positions = torch.arange(length).repeat(rows, 1)
        nothing = torch.zeros_like(ids)
        batch = WindowBatch(ids, positions, nothing, ids, torch.arange(rows), ids.numel())
        train(2)
        foreseen = training_peak(
            spec,
            ids.numel(),
            length=length,
            parameters=count_parameters(spec),
            number_bytes=FLOAT32 if precision == "fp32" else BFLOAT16,
            device=device,
            checkpointing=checkpointing,
        )
        return {"foreseen_mb": foreseen.total / 2**20, "parameters": count_parameters(spec)}

    def train(updates: int) -> dict[str, Any]:
        nonlocal step
        result: Any = None
        began = time.perf_counter()
        for _ in range(updates):
            step += 1
            result = updater.update([batch], step, 1e-4)
            trimmer.step()
        return {"seconds": (time.perf_counter() - began) / updates, "loss": result.values["loss"]}

    serve.serve({"begin": begin, "train": train})


if __name__ == "__main__":
    main()
