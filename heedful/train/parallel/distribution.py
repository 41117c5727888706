"""A model spread over the processes that train it: copies, shards, or parts of its matrices.

The model is built as ever and knows nothing of this. `distribute` changes it in place with
PyTorch's own engines: DistributedDataParallel for copies (Li 2020), `fully_shard` for parameters
that lie in shards (ZeRO: Rajbhandari 2020; FSDP2), DTensor plans for matrices of which each process
multiplies a part (`tensor_plan.py`). Weights, moments and averages keep their names; `whole` gives
them in one piece, so a checkpoint is the same file whatever the plan it was written under.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from heedful.nn.moe import adds_penalties
from heedful.train.checkpoints import load_weights, weights_of
from heedful.train.objective import Context, LossSum, Objective
from heedful.train.parallel.shares import Share, parts_needed
from heedful.train.parallel.team import ALONE, Team
from heedful.train.parallel.tensor_plan import RowOrder, only_by_forward, split_matrices

if TYPE_CHECKING:
    from collections.abc import Callable

    from heedful.train.batch_source import Batch
    from heedful.train.parallel.dimensions import Dimensions
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


class Distribution:
    """A model that one process has all of.

    Args:
        model: to train.
        objective: its loss.
        team: the processes.
        share: what this one learns from.

    Attributes:
        loss_factor: what to multiply a loss by, so that summed gradients of all processes are those
            of the summed loss.
        may_look: whether a process can pass a batch through the model without the others.
    """

    loss_factor = 1.0
    may_look = True

    def __init__(
        self, model: nn.Module, objective: Objective, team: Team = ALONE, share: Share | None = None
    ) -> None:
        self.model = model
        self.objective = objective
        self.team = team
        self.share = share or Share()

    def loss(self, batch: Batch, context: Context) -> LossSum:
        """The summed loss of a batch on the model's device."""
        return self.objective.loss(self.model, batch, context)

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """A context for the forward pass and the backward pass of one part of an update.

        Args:
            last: whether gradients are summed over all processes in its backward pass.
        """
        yield

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The length of the whole gradient [], the same on all processes."""
        return torch.nn.utils.get_total_norm(gradients)

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors in one piece, by the names of weights (after a kind and a slash, if any).

        All processes ask together; those who do not write get no copies.
        """
        return dict(tensors)

    def placed(self, name: str, whole: Tensor) -> Tensor:
        """The part of a tensor that this process keeps, by its name as in `whole`."""
        return whole

    @contextmanager
    def judged(self, average: Mapping[str, Tensor] | None = None) -> Iterator[nn.Module]:
        """A context with the model for the first process to judge or write.

        Args:
            average: other weights that it has in there, as this process keeps them.
        """
        if average is None:
            yield self.model
            return
        own = {name: tensor.clone() for name, tensor in weights_of(self.model).items()}
        load_weights(self.model, average)
        try:
            yield self.model
        finally:
            load_weights(self.model, own)


class Copies(Distribution):
    """A model of which each process has a copy, by DistributedDataParallel."""

    def __init__(
        self, model: nn.Module, objective: Objective, team: Team, share: Share, learners: int
    ) -> None:
        super().__init__(model, objective, team, share)
        self.loss_factor = float(learners)  # their mean is what comes out of the reduction
        device = next(model.parameters()).device
        self._pass = DistributedDataParallel(
            LossPass(model, objective),
            device_ids=[device] if device.type == "cuda" else None,
            process_group=team.learners,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=adds_penalties(model),  # experts that no token chose
        )

    def loss(self, batch: Batch, context: Context) -> LossSum:
        """The summed loss of a batch; the pass of the last part gets ready to exchange."""
        if not torch.is_grad_enabled():
            return super().loss(batch, context)
        return _loss_sum(self._pass(batch, context))

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """See `Distribution.exchanging`; gradients travel while the backward pass goes on."""
        if last:
            yield
            return
        with self._pass.no_sync():
            yield


class Shards(Distribution):
    """A model whose parameters lie in shards, or whose matrices are multiplied in parts.

    Args:
        model: to train, whose matrices are split already where the plan says so.
        objective: its loss.
        team: the processes.
        share: what this one learns from.
        mesh: the processes that learn from different examples, of which those along the last axis
            have a shard each.
        order: of the rows of split matrices.
        twin: makes a model like this one in one piece, with any weights.
    """

    may_look = False

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        team: Team,
        share: Share,
        mesh: DeviceMesh | None,
        order: RowOrder,
        twin: Callable[[], nn.Module],
    ) -> None:
        super().__init__(model, objective, team, share)
        self._order = order
        self._twin = twin
        self._pass = LossPass(model, objective)
        self._sharded: FSDPModule | None = None
        if mesh is not None:
            self._sharded = _shard(self._pass, mesh)
        self._parameters: dict[str, Tensor] = dict(model.named_parameters())

    def loss(self, batch: Batch, context: Context) -> LossSum:
        """The summed loss of a batch, for which blocks get their parameters one after the other."""
        with warnings.catch_warnings():
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
                result[name] = self._order.restored(_weight_name(name), full).cpu()
        return result

    def placed(self, name: str, whole: Tensor) -> Tensor:
        """See `Distribution.placed`."""
        like = self._parameters.get(_weight_name(name))
        if not isinstance(like, DTensor) or whole.shape != like.shape:
            return whole
        ordered = self._order.applied(_weight_name(name), whole).to(like.device)
        mesh, placements = like.device_mesh, like.placements
        return distribute_tensor(ordered, mesh, placements, src_data_rank=None)

    @contextmanager
    def judged(self, average: Mapping[str, Tensor] | None = None) -> Iterator[nn.Module]:
        """See `Distribution.judged`; the first process gets a copy in one piece."""
        weights = self.whole(weights_of(self.model) if average is None else average)
        if not self.team.main:
            yield self.model
            return
        copy = self._twin()
        load_weights(copy, weights)
        yield copy.to(next(iter(self._parameters.values())).device)


@dataclass(frozen=True)
class Meshes:
    """The processes of a run, arranged along the four dimensions of its plan.

    Args:
        dimensions: their sizes.
        whole: of all of them; None for one process.
    """

    dimensions: Dimensions
    whole: DeviceMesh | None = field(default=None)

    @classmethod
    def of(cls, dimensions: Dimensions, device: torch.device) -> Meshes:
        """Arrange the processes, which are connected."""
        if dimensions.processes == 1:
            return cls(dimensions)
        names = ("data", "shard", "context", "tensor")
        sizes = tuple(getattr(dimensions, name) for name in names)
        return cls(dimensions, init_device_mesh(device.type, sizes, mesh_dim_names=names))

    def index(self, *names: str) -> int:
        """The number of this process along some dimensions, taken together."""
        number = 0
        for name in names:
            place = 0 if self.whole is None else self.whole.get_local_rank(name)
            number = number * getattr(self.dimensions, name) + place
        return number


def distribute(
    model: nn.Module,
    objective: Objective,
    settings: RunSettings,
    team: Team,
    meshes: Meshes,
    twin: Callable[[], nn.Module],
) -> Distribution:
    """Spread a model over the processes of a run.

    Args:
        model: with its first weights, the same on all processes; changed in place.
        objective: its loss.
        settings: of the run, with the number of parts.
        team: the processes, connected.
        meshes: their arrangement.
        twin: makes a model like this one.

    Raises:
        ConfigError: when the model cannot be spread so.
    """
    dimensions = meshes.dimensions
    learners = dimensions.data * dimensions.shard
    parts = settings.parallel.parts or parts_needed(settings.optimizer.accumulate, learners)
    share = Share(meshes.index("data", "shard"), learners, parts)
    if meshes.whole is None:
        return Distribution(model, objective, team, share)
    order = RowOrder()
    if dimensions.tensor > 1:
        team.learners = meshes.whole["data", "shard", "context"]._flatten("learners").get_group()
        order = split_matrices(model, meshes.whole["tensor"])
    if dimensions.shard == 1 and dimensions.tensor == 1:
        return Copies(model, objective, team, share, learners * dimensions.context)
    mesh = None
    if learners * dimensions.context > 1:
        sharded = meshes.whole["shard", "context"]._flatten("shards")
        mesh = sharded
        if dimensions.data > 1:
            mesh = DeviceMesh._concatenate([meshes.whole["data"], sharded])
    return Shards(model, objective, team, share, mesh, order, twin)


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


def _weight_name(name: str) -> str:
    """The name of the weight that a moment belongs to."""
    return name.rpartition("/")[2]
