"""A model on a GPU: a decoder whose steps are replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from heedful.engines.class_exchange import replace_module
from heedful.engines.inference.cuda_graphs import (
    GraphedStack,
    Record,
    Replay,
    record_on_gpu,
    record_once_run,
)
from heedful.engines.inference.fixed_decoder import FixedSteps

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.models.causal_lm import CausalLM
    from heedful.models.translator import Translator


def use_cuda_graphs(engine: AnyModel) -> None:
    """Let CUDA graphs run the decoding steps of a translator or language model."""
    # One pool of memory for all graphs: no two of them are replayed at the same time.
    pool, device = torch.cuda.graph_pool_handle(), next(engine.parameters()).device

    def on_device(record: Callable[..., Replay]) -> Record:
        def recorded(compute: Callable[[], Tensor]) -> Replay:
            with torch.cuda.device(device):  # a graph captures the current device's kernels only
                return record(compute, pool=pool)

        return recorded

    use_graphs(engine, on_device(record_on_gpu), on_device(record_once_run))


def use_graphs(engine: AnyModel, record: Record, record_step: Record) -> None:
    """Let graphs run a decoder's blocks, and whole steps of a search.

    Args:
        engine: translator or language model.
        record: recorder of blocks, which runs them once before it records them.
        record_step: recorder of a step that has run already; see `record_once_run`.
    """
    model = cast("Translator | CausalLM", engine)
    stack = GraphedStack.of(model.decoder, record)
    replace_module(engine, model.decoder, stack)
    table = getattr(model, "target_embedding", None) or cast("CausalLM", model).embedding
    vars(engine)["fixed_steps"] = FixedSteps(model, stack, table, record_step)
