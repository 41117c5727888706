"""A model spread over the processes that train it: copies, shards, or parts of its matrices.

The model is built as ever and knows nothing of this. `distribute` changes it in place with
PyTorch's own engines: DistributedDataParallel for copies (Li 2020), `fully_shard` for parameters
that lie in shards (ZeRO: Rajbhandari 2020; FSDP2), DTensor plans for matrices of which each process
multiplies a part (`tensor_plan.py`). Weights, moments and averages keep their names; `whole` gives
them in one piece. A checkpoint is read under any plan, whichever wrote it (`saved_tensors.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from heedful.nn.moe import adds_penalties
from heedful.train.context_parallel import check_context, context_parallel
from heedful.train.model_weights import load_weights
from heedful.train.objective import Context, LossSum, Objective
from heedful.train.parallel.pieces import weight_name
from heedful.train.parallel.shares import Share
from heedful.train.parallel.team import Team
from heedful.train.parallel.tensor_plan import (
    RowOrder,
    check_matrices,
    only_by_forward,
    split_matrices,
)
from heedful.train.update import Distribution

if TYPE_CHECKING:
    from collections.abc import Callable

    from heedful.train.batch_source import Batch
    from heedful.train.run_settings import RunSettings

Returned = tuple[Tensor, int, Mapping[str, Tensor], Mapping[str, Tensor]]
"""A `LossSum` as plain values, in which PyTorch's engines find the tensors to wait for."""


class LossPass(nn.Module):
    """A model and its loss as one pass, so that all use of parameters lies inside of it.

    Args:
        model: to train.
        objective: its loss.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Any, context: Context) -> Returned:
        """The summed loss of a batch; see `Objective.loss`."""
        result = self.objective.loss(self.model, batch, context)
        return result.loss_sum, result.tokens, dict(result.extras), dict(result.carried_state)


class _Together(Distribution):
    """A model that processes have together.

    Args:
        model: to train.
        objective: its loss.
        team: the processes.
        context: those that have a part of each text; None where texts are whole.
    """

    team: Team

    def __init__(
        self, model: nn.Module, objective: Objective, team: Team, context: DeviceMesh | None
    ) -> None:
        super().__init__(model, objective)
        self.team = team
        self._context = None if context is None else context.get_group()
        if context is not None:
            self.may_look = False  # attention waits for the others' keys
            self.lane = (context.get_local_rank(),)

    def sums(self, values: Sequence[float]) -> list[float]:
        """See `Distribution.sums`."""
        return self.team.sums(values)

    def _divided(self) -> AbstractContextManager[None]:
        """A context in which attention looks at the tokens that other processes have, too."""
        return nullcontext() if self._context is None else context_parallel(self._context)


class Copies(_Together):
    """A model of which each process has a copy, by DistributedDataParallel.

    Args:
        model: to train.
        objective: its loss.
        team: the processes.
        context: those that have a part of each text; None where texts are whole.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, team: Team, context: DeviceMesh | None
    ) -> None:
        super().__init__(model, objective, team, context)
        self.loss_factor = float(team.process.size)  # what comes out of the reduction is a mean
        device = next(model.parameters()).device
        with warnings.catch_warnings():
            # Its new name, forward_sync_buffers, is not known to PyTorch before 2.13.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            self._pass = DistributedDataParallel(
                LossPass(model, objective),
                device_ids=[device] if device.type == "cuda" else None,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=adds_penalties(model),  # experts that no token chose
            )

    def loss(self, batch: Batch, context: Context) -> LossSum:
        """The summed loss of a batch; the pass of the last part gets ready to exchange."""
        with self._divided():
            return _loss_sum(self._pass(batch, context))

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """See `Distribution.exchanging`; gradients travel while the backward pass goes on."""
        if last:
            yield
            return
        with self._pass.no_sync():
            yield


class Shards(_Together):
    """A model whose parameters lie in shards, or whose matrices are multiplied in parts.

    Args:
        model: to train, whose matrices are split already where the plan says so.
        objective: its loss.
        team: the processes.
        context: those that have a part of each text; None where texts are whole.
        mesh: the processes that learn from different examples, of which those along the last axis
            have a shard each.
        order: of the rows of split matrices.
        parts: the processes that have parts of the same matrices; None where they are whole.
        twin: makes a model like this one in one piece, with any weights.
    """

    may_look = False

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        team: Team,
        context: DeviceMesh | None,
        mesh: DeviceMesh | None,
        order: RowOrder,
        parts: DeviceMesh | None,
        twin: Callable[[], nn.Module],
    ) -> None:
        super().__init__(model, objective, team, context)
        self._order, self.rows = order, order.rows
        self._twin = twin
        self._pass = LossPass(model, objective)
        self._sharded: FSDPModule | None = None
        if mesh is not None:
            self._sharded = _shard(self._pass, mesh)
        self._parameters: dict[str, Tensor] = dict(model.named_parameters())
        self._parts = None if parts is None else parts.get_group()

    def loss(self, batch: Batch, context: Context) -> LossSum:
        """The summed loss of a batch, for which blocks get their parameters one after the other."""
        with warnings.catch_warnings(), self._divided():
            # Nothing here changes the output of a block in place.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
            return _loss_sum(self._pass(batch, context))

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """See `Distribution.exchanging`."""
        if self._sharded is not None:
            self._sharded.set_requires_gradient_sync(last)
            self._sharded.set_is_last_backward(last)
        yield
        for name in self._order.of_heads if last else ():
            gradient = self._parameters[name].grad
            if gradient is not None:
                own = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                dist.all_reduce(own, group=self._parts)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The length of the whole gradient: of each tensor first, wherever its parts lie."""
        lengths = []
        for gradient in gradients:
            length = torch.linalg.vector_norm(gradient)
            lengths.append(length.full_tensor() if isinstance(length, DTensor) else length)
        norm: Tensor = torch.linalg.vector_norm(torch.stack(lengths))
        return norm

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Distribution.whole`; one tensor after the other is put together."""
        result: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.team.main:
                result[name] = self._order.restored(weight_name(name), full).cpu()
        return result

    def placed(self, name: str, whole: Tensor) -> Tensor:
        """See `Distribution.placed`."""
        like = self._parameters.get(weight_name(name))
        if not isinstance(like, DTensor) or whole.shape != like.shape:
            return whole
        ordered = self._order.applied(weight_name(name), whole).to(like.device)
        mesh, placements = like.device_mesh, like.placements
        return distribute_tensor(ordered, mesh, placements, src_data_rank=None)

    def copy_in_one_piece(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """See `Distribution.copy_in_one_piece`; processes but the first get their own model."""
        weights = self.whole(tensors)
        if not self.team.main:
            return self.model
        copy = self._twin()
        load_weights(copy, weights)
        return copy.to(next(iter(self._parameters.values())).device)


def distribute(
    model: nn.Module,
    objective: Objective,
    settings: RunSettings,
    team: Team,
    twin: Callable[[], nn.Module],
) -> tuple[Distribution, Share]:
    """Spread a model over the processes of a run.

    Args:
        model: with its first weights, the same on all processes; changed in place.
        objective: its loss.
        settings: of the run, with the number of parts.
        team: the processes, connected.
        twin: makes a model like this one.

    Returns:
        The model spread out, and what this process learns from.

    Raises:
        ConfigError: when the model cannot be spread so.
    """
    size = team.dimensions
    cut = settings.parallel.parts or 1
    if team.alone:
        return Distribution(model, objective), Share(parts=cut)

    def check() -> None:
        check_context(model, size.context, settings.objective)
        check_matrices(model, size.tensor)

    team.only_main(check)  # so that it is said once, and none waits for those that are gone
    device = next(model.parameters()).device
    names = ("data", "shard", "context", "tensor")
    shape = (size.data, size.shard, size.context, size.tensor)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    team.limit_waits(mesh)
    place = {name: mesh.get_local_rank(name) for name in names}
    index = place["data"] * size.shard + place["shard"]
    share = Share(index, size.learners, cut, (place["context"], size.context))
    context = mesh["context"] if size.context > 1 else None
    if size.shard == size.tensor == 1:
        return Copies(model, objective, team, context), share
    order, sharded, parts = RowOrder(), None, None
    if size.tensor > 1:
        learners = mesh["data", "shard", "context"]._flatten("learners")
        team.limit_waits(learners)
        team.learners = learners.get_group()
        parts = mesh["tensor"]
        order = split_matrices(model, parts)
    if size.learners * size.context > 1:
        sharded = mesh["shard", "context"]._flatten("shards")
        team.limit_waits(sharded)
        if size.data > 1:
            sharded = DeviceMesh._concatenate([mesh["data"], sharded])
    return Shards(model, objective, team, context, sharded, order, parts, twin), share


def _shard(loss_pass: LossPass, mesh: DeviceMesh) -> FSDPModule:
    """Shard the blocks of a model, what reads a memory for them, and all else at the root.

    Gradients are summed in float32, the type they are computed in.
    """
    model: Any = loss_pass.model
    for stack in cast("Mapping[str, Any]", getattr(model, "stacks", dict)()).values():
        for block in stack.blocks:
            for part in block.parts():
                if hasattr(part, "read"):  # which happens before the block's own pass
                    for each in part.children():
                        only_by_forward(each)  # so that keys and values come as plain tensors
                    fully_shard(part, mesh=mesh)
                    for method in ("read", "step"):
                        register_fsdp_forward_method(part, method)
            fully_shard(block, mesh=mesh)
    root = fully_shard(loss_pass, mesh=mesh)
    for module in loss_pass.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return root


def _loss_sum(returned: Returned) -> LossSum:
    loss_sum, tokens, extras, carried = returned
    return LossSum(loss_sum, tokens, extras, carried)
