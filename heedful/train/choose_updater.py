"""Choice of a run's updater: one that records updates as CUDA graphs, or the ordinary one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from heedful.device import Precision
from heedful.engines.inference.cuda_graphs import record_on_gpu
from heedful.events import Events
from heedful.nn.batch_norm import has_batch_norm
from heedful.train.graphed_update import GraphedUpdater, Replay
from heedful.train.objective import adds_penalties
from heedful.train.optimizers import build_optimizer
from heedful.train.run_settings import RunSettings
from heedful.train.update import Distribution, Updater

# Elements of a batch's states up to which a GPU waits for kernel launches: an H100 reads and writes
# 2 M elements in about the 5 µs of a launch. Larger batches lose more by the additional padding
# than graphs give back. An estimate; not measured yet.
_LAUNCH_BOUND = 1 << 21


def updater_of_run(
    distribution: Distribution, settings: RunSettings, precision: Precision, events: Events
) -> Updater:
    """Build the updater of a run, with a new optimizer.

    Args:
        distribution: the model, spread over the processes.
        settings: settings of the training run.
        precision: number format of the matmuls.
        events: receivers of notes.
    """
    model, objective = distribution.model, distribution.objective
    optimizer = build_optimizer(model, settings.optimizer)
    options: dict[str, Any] = {
        "seed": settings.seed,
        "clip_norm": settings.optimizer.clip_norm,
        "distribution": distribution,
    }
    device = next(model.parameters()).device
    # On other devices nothing can be recorded, and rounding shapes up would only add padding.
    if device.type != "cuda" or not is_recordable(distribution, settings, precision):
        return Updater(model, objective, optimizer, precision, **options)
    # Packed rows and windows have one shape; only padded batches need rounding up to few shapes.
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
    """Return True if a run's updates can be recorded as CUDA graphs and would gain by it.

    Args:
        distribution: the model, spread over the processes.
        settings: settings of the training run.
        precision: number format of the matmuls.
    """
    model = distribution.model
    # Collectives and the loss scaler need the host in the middle of an update.
    if distribution.team is not None or precision.needs_scaler:
        return False
    # Balance losses of experts route tokens by value, so their shapes differ from batch to batch.
    if not getattr(distribution.objective, "can_be_static", False) or adds_penalties(model):
        return False
    # Recording a graph passes a batch several times, each of which would count.
    if has_batch_norm(model):
        return False
    # Checkpointing saves and restores random states, which a recording cannot do.
    if settings.checkpointing != "none":
        return False
    # Positions of a batch times the model's width D.
    elements = settings.data.budget * cast(Any, model).spec.width
    return has_one_shape(settings) or elements <= _LAUNCH_BOUND


def has_one_shape(settings: RunSettings) -> bool:
    """Return True if all batches of a run, except the last of an epoch, have the same shape."""
    return settings.cuts_windows or settings.data.packed_length is not None


class UpdateRecorder:
    """Records parts of updates as CUDA graphs; one memory pool serves all, as none overlap.

    Args:
        device: GPU of the model, which may differ from the current one.
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
    """A context that fails if a random number is drawn on the host: graphs would repeat it.

    Raises:
        RuntimeError: when a random number was drawn.
    """
    # Some attention kernels draw the seed of their dropout on the host: a graph would repeat one
    # mask.
    before = torch.default_generator.get_state()
    yield
    if not torch.equal(before, torch.default_generator.get_state()):
        raise RuntimeError("random numbers are drawn on the processor, in attention or dropout")
