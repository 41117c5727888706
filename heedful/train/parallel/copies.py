"""Data parallelism: a copy of the model in each process, and the base of all distributions.

Our losses are fused with the output projection and use its parameters after the model's own pass.
So PyTorch's engines wrap one module whose forward pass is the loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heedful.nn.positions import context_parallel
from heedful.train.batch_source import Batch
from heedful.train.objective import LossContext, LossSum, Objective, adds_penalties
from heedful.train.parallel.team import Team
from heedful.train.update import Distribution

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


Returned = tuple[Tensor, int, Mapping[str, Tensor], Mapping[str, Tensor]]
"""A `LossSum` as a tuple, as PyTorch's engines look for tensors in plain containers only."""


class LossPass(nn.Module):
    """A model and its loss as one module, which uses all parameters inside its forward pass.

    Args:
        model: model to train.
        objective: loss of the model.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Any, context: LossContext) -> Returned:
        """Return the summed loss of a batch; see `Objective.loss`."""
        result = self.objective.loss(self.model, batch, context)
        return result.loss_sum, result.tokens, dict(result.extras), dict(result.carried_state)


def loss_sum(returned: Returned) -> LossSum:
    """Rebuild the `LossSum` from the values that `LossPass` returned."""
    total, tokens, extras, carried = returned
    return LossSum(total, tokens, extras, carried)


class TeamDistribution(Distribution):
    """A model that several processes train together.

    Args:
        model: model to train.
        objective: loss of the model.
        team: processes of the run.
        context: processes that share each sequence; None where sequences are whole.
    """

    team: Team

    def __init__(
        self, model: nn.Module, objective: Objective, team: Team, context: DeviceMesh | None
    ) -> None:
        super().__init__(model, objective)
        self.team = team
        self._context = None if context is None else context.get_group()
        if context is not None:
            # Attention waits for keys of the other processes in the ring.
            self.can_run_alone = False
            # Each process has other tokens of a sequence; with equal seeds their dropout masks
            # would be equal.
            self.seed_numbers = (context.get_local_rank(),)

    def sums(self, values: Sequence[float]) -> list[float]:
        """See `Distribution.sums`."""
        return self.team.sums(values)

    def divided(self) -> AbstractContextManager[None]:
        """Return a context in which attention also sees the tokens of the other processes."""
        return nullcontext() if self._context is None else context_parallel(self._context)


class Copies(TeamDistribution):
    """A copy of the model in each process, by DistributedDataParallel (Li 2020).

    Args:
        model, objective, team, context: see `TeamDistribution`.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, team: Team, context: DeviceMesh | None
    ) -> None:
        super().__init__(model, objective, team, context)
        # DDP averages gradients; our loss is divided by the tokens of all processes already.
        self.loss_factor = float(team.process.size)
        device = next(model.parameters()).device
        with warnings.catch_warnings():
            # PyTorch 2.13 has another name for it, which older releases do not know.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            self._pass = DistributedDataParallel(
                LossPass(model, objective),
                device_ids=[device] if device.type == "cuda" else None,
                # Buffers are constants (positions, slopes): equal everywhere without a broadcast.
                broadcast_buffers=False,
                # Gradients live in the communication buckets, which saves a copy of all of them.
                gradient_as_bucket_view=True,
                # Experts that no token chose have no gradient, which DDP otherwise reports
                # as an error.
                find_unused_parameters=adds_penalties(model),
            )
        # Two numbers have the same sum in either order; with three, the order of the ring decides.
        if device.type == "cpu" and team.process.size > 2:
            group = self._pass.process_group
            self._pass.register_comm_hook(
                None, lambda _, bucket: _now(mean_in_pairs(bucket.buffer(), group))
            )

    def loss(self, batch: Batch, context: LossContext) -> LossSum:
        """Return the summed loss of a batch; DDP prepares the exchange of the last part."""
        with self.divided():
            return loss_sum(self._pass(batch, context))

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """See `Distribution.gradient_sync`; gradients are exchanged during the backward pass."""
        if last:
            yield
            return
        # Parts before the last only accumulate, so there is one exchange per update.
        with self._pass.no_sync():
            yield


def mean_in_pairs(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Average gradients over processes in the order of `PartialSums`.

    Gloo's ring adds every chunk of a tensor in another order. Here each process receives its chunk
    from all others and returns the mean, which moves as many bytes.

    Args:
        mine: [N] gradients of this process; changed in place.
        group: processes to average over.
    """
    size = dist.get_world_size(group)
    pieces = torch.nn.functional.pad(mine, (0, -len(mine) % size))
    got = torch.empty_like(pieces)
    dist.all_to_all_single(got, pieces, group=group)
    rows = got.view(size, -1)
    # [processes, N / processes]: row r came from rank r; halves are added as `PartialSums` adds
    # them.
    while len(rows) % 2 == 0:
        rows = rows[: len(rows) // 2] + rows[len(rows) // 2 :]
    dist.all_gather_into_tensor(pieces, rows.sum(0).div_(size), group=group)
    return mine.copy_(pieces[: len(mine)])


def _now(tensor: Tensor) -> torch.futures.Future[Tensor]:
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(tensor)
    return done
