"""A model on a GPU: a decoder whose steps are replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from heedful.engines.inference.cuda_graphs import (
    GraphedStack,
    Record,
    Replay,
    record_on_gpu,
    record_once_run,
)
from heedful.engines.inference.engine_parts import replace_module
from heedful.engines.inference.fixed_decoder import FixedSteps

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.models.causal_lm import CausalLM
    from heedful.models.translator import Translator


def use_cuda_graphs(engine: AnyModel) -> None:
    """Have CUDA graphs run the steps of a model that generates."""
    pool, device = torch.cuda.graph_pool_handle(), next(engine.parameters()).device

    def there(record: Callable[..., Replay]) -> Record:
        def recorded(compute: Callable[[], Tensor]) -> Replay:
            with torch.cuda.device(device):  # else the graph would be another device's, and empty
                return record(compute, pool=pool)

        return recorded

    use_graphs(engine, there(record_on_gpu), there(record_once_run))


def use_graphs(engine: AnyModel, record: Record, record_step: Record) -> None:
    """Have graphs run a decoder's blocks, and whole steps of a search.

    Args:
        engine: a model that generates.
        record: makes a graph of blocks, which it runs first.
        record_step: makes a graph of a step that has run; see `record_once_run`.
    """
    model = cast("Translator | CausalLM", engine)
    stack = GraphedStack.of(model.decoder, record)
    replace_module(engine, model.decoder, stack)
    table = getattr(model, "target_embedding", None) or cast("CausalLM", model).embedding
    vars(engine)["fixed_steps"] = FixedSteps(model, stack, table, record_step)
