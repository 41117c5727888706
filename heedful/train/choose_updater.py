"""The updater of a run: one that records updates as CUDA graphs where that can serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from heedful.engines.inference.cuda_graphs import record_on_gpu
from heedful.train.graphed_update import GraphedUpdater, Replay
from heedful.train.objective import adds_penalties
from heedful.train.optimizers import build_optimizer
from heedful.train.update import Updater

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.models.build import AnyModel
    from heedful.train.run_settings import RunSettings
    from heedful.train.update import Distribution

_LAUNCH_BOUND = 1 << 21
"""Elements of a batch's states up to which a GPU waits for kernels to be started: an H100 reads and
writes 2 M elements in about the 5 µs that a start takes. Padding more, so that few shapes come up,
costs larger batches more than graphs give back. An estimate; not measured yet."""


def updater_of_run(
    distribution: Distribution, settings: RunSettings, precision: Precision, events: Events
) -> Updater:
    """The updater of a run, with a new optimizer.

    Args:
        distribution: of the model.
        settings: of the run.
        precision: of the products.
        events: receive notes.
    """
    model, objective = distribution.model, distribution.objective
    optimizer = build_optimizer(model, settings.optimizer)
    options: dict[str, Any] = {
        "seed": settings.seed,
        "clip_norm": settings.optimizer.clip_norm,
        "distribution": distribution,
    }
    device = next(model.parameters()).device
    if device.type != "cuda" or not is_recordable(distribution, settings, precision):
        return Updater(model, objective, optimizer, precision, **options)
    return GraphedUpdater(
        model,
        objective,
        optimizer,
        precision,
        record=UpdateRecorder(device),
        events=events,
        rounds=not has_one_shape(settings),
        **options,
    )


def is_recordable(distribution: Distribution, settings: RunSettings, precision: Precision) -> bool:
    """Return True if a run's updates can be graphs, and would gain by it.

    Args:
        distribution: of the model.
        settings: of the run.
        precision: of the products.
    """
    model = distribution.model
    if distribution.team is not None or precision.needs_scaler:
        return False
    if not getattr(distribution.objective, "can_be_static", False) or adds_penalties(model):
        return False
    if settings.checkpointing != "none":  # which keeps and restores states of random numbers
        return False
    elements = settings.data.budget * cast("AnyModel", model).spec.width
    return has_one_shape(settings) or elements <= _LAUNCH_BOUND


def has_one_shape(settings: RunSettings) -> bool:
    """Return True if all batches of a run have the same shape but for the last ones of an epoch."""
    return settings.task == "causal_lm" or settings.data.packed_length is not None


class UpdateRecorder:
    """Records pieces of updates as CUDA graphs, which share memory: they run one by one.

    Args:
        device: that computes them, which need not be the present one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        """See `record_on_gpu`."""
        # The context restores the stream, which a failed recording does not.
        with torch.cuda.stream(torch.cuda.current_stream(self.device)), no_host_randomness():
            return record_on_gpu(compute, self._pool)


@contextmanager
def no_host_randomness() -> Iterator[None]:
    """A context that draws no random number on the processor, which a graph would repeat for ever.

    Raises:
        RuntimeError: when one was drawn.
    """
    before = torch.default_generator.get_state()
    yield
    if not torch.equal(before, torch.default_generator.get_state()):
        raise RuntimeError("random numbers are drawn on the processor, in attention or dropout")
