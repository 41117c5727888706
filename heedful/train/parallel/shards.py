"""A model whose parameters lie in shards, or whose matrices are multiplied in parts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from heedful.engines.class_exchange import has_no_hooks
from heedful.train.model_weights import load_weights
from heedful.train.objective import LossContext, LossSum, Objective
from heedful.train.parallel.copies import LossPass, Together, loss_sum
from heedful.train.parallel.pieces import weight_name
from heedful.train.parallel.team import Team
from heedful.train.parallel.tensor_plan import RowOrder, split_matrices

if TYPE_CHECKING:
    from collections.abc import Callable

    from heedful.train.batch_source import Batch


class Shards(Together):
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

    def loss(self, batch: Batch, context: LossContext) -> LossSum:
        """The summed loss of a batch, for which blocks get their parameters one after the other."""
        with warnings.catch_warnings(), self.divided():
            # Nothing here changes the output of a block in place.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
            return loss_sum(self._pass(batch, context))

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


def split_over(
    model: nn.Module,
    objective: Objective,
    team: Team,
    mesh: DeviceMesh,
    context: DeviceMesh | None,
    twin: Callable[[], nn.Module],
) -> Shards:
    """Spread the parameters of a model over processes, in place.

    Args:
        model: with its first weights, the same on all processes.
        objective: its loss.
        team: the processes.
        mesh: the same along `data`, `shard`, `context` and `tensor`.
        context: those that have a part of each text; None where texts are whole.
        twin: makes a model like this one.
    """
    size = team.dimensions
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
    return Shards(model, objective, team, context, sharded, order, parts, twin)


def _shard(loss_pass: LossPass, mesh: DeviceMesh) -> FSDPModule:
    """Shard the blocks of a model, what reads a memory for them, and all else at the root.

    Gradients are summed in float32, the type they are computed in.
    """
    model: Any = loss_pass.model
    for stack in cast("Mapping[str, Any]", getattr(model, "stacks", dict)()).values():
        for block in stack.blocks:
            for part in block.parts():
                if hasattr(part, "memory_projection"):
                    _shard_by_method(part.memory_projection, ("forward", "product"), mesh)
                elif hasattr(part, "read"):
                    _shard_by_method(part, ("read", "step"), mesh)
            fully_shard(block, mesh=mesh)
    root = fully_shard(loss_pass, mesh=mesh)
    for module in loss_pass.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return root


def _shard_by_method(module: nn.Module, methods: Sequence[str], mesh: DeviceMesh) -> None:
    """Shard what is used before a block's own pass: memories are read first.

    Parameters are gathered around each method; the hooks that gather them around a call are taken
    away, as kernels pass by modules with hooks.
    """
    plain = has_no_hooks(module)
    fully_shard(module, mesh=mesh)
    if plain:
        module._forward_pre_hooks.clear()
        module._forward_hooks.clear()
    else:
        methods = [method for method in methods if method != "forward"]  # by its hooks
    for method in methods:
        vars(module)[method] = partial(_of_class, module, method)
        register_fsdp_forward_method(module, method)


def _of_class(module: nn.Module, method: str, *inputs: Any) -> Any:
    """Call a method of the module's class, which an engine may have exchanged since."""
    return getattr(type(module), method)(module, *inputs)
