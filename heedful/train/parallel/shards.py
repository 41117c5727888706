"""A model with sharded parameters (FSDP2) or split matrices (tensor parallelism)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from heedful.engines.class_exchange import has_no_hooks
from heedful.train.batch_source import Batch
from heedful.train.checkpoint_contents import weight_name
from heedful.train.model_weights import load_weights
from heedful.train.objective import LossContext, LossSum, Objective
from heedful.train.parallel.copies import LossPass, TeamDistribution, loss_sum
from heedful.train.parallel.team import Team
from heedful.train.parallel.tensor_plan import RowOrder, split_matrices


class Shards(TeamDistribution):
    """A model with sharded parameters, split matrices, or both.

    Args:
        model: model to train, its matrices already split.
        objective, team, context: see `TeamDistribution`.
        mesh: processes to shard over: replicas along the first of two axes, shards along the last;
            None without shards.
        order: row order of split matrices.
        parts: processes that share matrices; None where matrices are whole.
        twin: function that makes a model of the same kind in one piece, with any weights.
    """

    can_run_alone = False

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

    def loss(self, batch: Batch, context: LossContext) -> LossSum:
        """Return the summed loss of a batch; each block gathers its parameters when it runs."""
        with warnings.catch_warnings(), self.divided():
            # FSDP2 warns of outputs that are views, in case of in-place changes; there are none.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
            return loss_sum(self._pass(batch, context))

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """See `Distribution.gradient_sync`."""
        if self._sharded is not None:
            # Earlier parts accumulate whole gradients; only the last one reduces them to shards.
            self._sharded.set_requires_gradient_sync(last)
            self._sharded.set_is_last_backward(last)
        yield
        # Whole weights used for a process's own heads have gradients that are parts of a sum.
        for name in self._order.of_heads if last else ():
            gradient = self._parameters[name].grad
            if gradient is not None:
                own = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                dist.all_reduce(own, group=self._parts)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norm of the whole gradient, from the norms of its tensors."""
        lengths = []
        for gradient in gradients:
            length = torch.linalg.vector_norm(gradient)
            # A norm of a DTensor is a partial DTensor until it is reduced.
            lengths.append(length.full_tensor() if isinstance(length, DTensor) else length)
        norm: Tensor = torch.linalg.vector_norm(torch.stack(lengths))
        return norm

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Distribution.full_tensors`; one tensor is gathered after the other."""
        result: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            # The others drop the tensor at once: gathering needs memory for one at a time.
            if self.team.main:
                result[name] = self._order.restored(weight_name(name), full).cpu()
        return result

    def local_part(self, name: str, whole: Tensor) -> Tensor:
        """See `Distribution.local_part`."""
        like = self._parameters.get(weight_name(name))
        # Step counts of the optimiser are scalars, whole on each process.
        if not isinstance(like, DTensor) or whole.shape != like.shape:
            return whole
        ordered = self._order.applied(weight_name(name), whole).to(like.device)
        mesh, placements = like.device_mesh, like.placements
        # `src_data_rank=None`: every process has the whole tensor, so nothing is sent.
        return distribute_tensor(ordered, mesh, placements, src_data_rank=None)

    def whole_model(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """See `Distribution.whole_model`; all but the first process return their own model."""
        weights = self.full_tensors(tensors)
        if not self.team.main:
            return self.model
        copy = self._twin()
        load_weights(copy, weights)
        return copy.to(next(iter(self._parameters.values())).device)


def split_over(
    model: nn.Module,
    objective: Objective,
    team: Team,
    mesh: DeviceMesh,
    context: DeviceMesh | None,
    twin: Callable[[], nn.Module],
) -> Shards:
    """Distribute the parameters of a model over processes, in place.

    Args:
        model: model with its initial weights, the same on all processes.
        objective: loss of the model.
        team: processes of the run.
        mesh: grid of all processes along `data`, `shard`, `context` and `tensor`.
        context: processes that share each sequence; None where sequences are whole.
        twin: function that makes another model of the same kind.
    """
    size = team.dimensions
    order, sharded, parts = RowOrder(), None, None
    # Matrices are split before they are sharded: FSDP2 then shards the local parts.
    if size.tensor > 1:
        learners = mesh["data", "shard", "context"]._flatten("learners")
        team.limit_waits(learners)
        team.learners = learners.get_group()
        parts = mesh["tensor"]
        order = split_matrices(model, parts)
    if size.learners * size.context > 1:
        # The gradients of processes that split a sequence are summed like those of a shard, so
        # parameters are sharded over both dimensions.
        sharded = mesh["shard", "context"]._flatten("shards")
        team.limit_waits(sharded)
        # Two dimensions make FSDP2 shard along the last and replicate along the first (HSDP).
        if size.data > 1:
            sharded = DeviceMesh._concatenate([mesh["data"], sharded])
    return Shards(model, objective, team, context, sharded, order, parts, twin)


def _shard(loss_pass: LossPass, mesh: DeviceMesh) -> FSDPModule:
    """Shard a model's blocks, their projections of an encoder output, and the rest at the root.

    Gradients are summed in float32, their own type.
    """
    model: Any = loss_pass.model
    for stack in cast("Mapping[str, Any]", getattr(model, "stacks", dict)()).values():
        for block in stack.blocks:
            for part in block.readers():
                if part is None:
                    continue
                # Keys and values of the encoder output are projected before the block's own pass,
                # so their parameters are gathered apart from the block's.
                if hasattr(part, "memory_projection"):
                    _shard_by_method(part.memory_projection, ("forward", "product"), mesh)
                else:
                    _shard_by_method(part, ("read", "step"), mesh)
            fully_shard(block, mesh=mesh)
    root = fully_shard(loss_pass, mesh=mesh)
    for module in loss_pass.modules():
        if isinstance(module, FSDPModule):
            # FSDP2 averages by default; our loss is divided by the tokens of all processes already.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return root


def _shard_by_method(module: nn.Module, methods: Sequence[str], mesh: DeviceMesh) -> None:
    """Shard a module that is used before its block's own pass, by the given methods.

    Parameters are gathered around each method. The hooks that gather them around a call are
    removed, as our kernels do not serve modules with hooks.
    """
    plain = has_no_hooks(module)
    fully_shard(module, mesh=mesh)
    if plain:
        module._forward_pre_hooks.clear()
        module._forward_hooks.clear()
    else:
        # A module with other hooks is not served by kernels anyway, and FSDP2's own hooks handle
        # `forward`.
        methods = [method for method in methods if method != "forward"]
    for method in methods:
        # Set on the instance, where `register_fsdp_forward_method` replaces it.
        vars(module)[method] = partial(_of_class, module, method)
        register_fsdp_forward_method(module, method)


def _of_class(module: nn.Module, method: str, *inputs: Any) -> Any:
    """Call a method of the module's present class, which an engine may have exchanged."""
    return getattr(type(module), method)(module, *inputs)
