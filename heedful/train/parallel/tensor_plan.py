"""Tensor parallelism: each process has some heads and some inner units (Shoeybi 2019).

Input projections of attention and feed-forward networks are split by output, output projections by
input, so a sub-layer needs one sum over the processes in its forward pass and one in its backward
pass. The parts are DTensors. Norms, embeddings and the model's output projection are whole on each
process.

The projections to queries, keys and values are one matrix. Contiguous parts of its rows would give
one process all queries and no keys, so its rows are permuted first: queries, keys and values of the
first process's heads, then those of the second's. `RowOrder` records the permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from heedful.errors import ConfigError
from heedful.nn.attention.multi_head import Attention, KeptHeads
from heedful.nn.feedforward import FeedForward
from heedful.nn.linear_layers import FusedLinear
from heedful.nn.spec import PartSpec


@dataclass
class RowOrder:
    """The row permutations of split matrices, by weight name.

    Args:
        rows: original row numbers [N] int64, by weight name.
        of_heads: names of whole weights that each process uses for its own heads only (position
            biases, norms of queries and keys), so that their gradients have to be summed.
    """

    rows: dict[str, Tensor] = field(default_factory=dict)
    of_heads: tuple[str, ...] = ()

    def applied(self, name: str, tensor: Tensor) -> Tensor:
        """Permute a whole tensor [N, …] into the order in which processes hold it."""
        return tensor[self.rows[name].to(tensor.device)] if name in self.rows else tensor

    def restored(self, name: str, tensor: Tensor) -> Tensor:
        """Permute a whole tensor [N, …] back to the original order; leave scalars alone."""
        if name not in self.rows or not tensor.ndim:
            return tensor
        result = torch.empty_like(tensor)
        # The inverse permutation: row i goes back to its original place.
        result[self.rows[name].to(tensor.device)] = tensor
        return result


class _SplitFusedLinear(FusedLinear):
    """Linear maps of one input; this process has a part of each map's outputs."""

    mesh: DeviceMesh

    def product(self, x: Tensor) -> Tensor:
        """Multiply x [..., in_width] by this process's rows: [..., width / processes]."""
        # Replicated, so that the backward pass sums the input gradients of all processes.
        everywhere = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return cast(DTensor, F.linear(everywhere, self.weight, self.bias)).to_local()


class _FusedColumns(ParallelStyle):
    """The parallel style of `FusedLinear`: each map is split by output."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, FusedLinear)
        rows = fused_rows(module, device_mesh.size())
        for name, parameter in list(module.named_parameters()):
            whole = parameter.detach()[rows]
            # Each process cuts its own rows from the weights that all have; nothing is sent.
            part = distribute_tensor(whole, device_mesh, [Shard(0)], src_data_rank=None)
            setattr(module, name, nn.Parameter(part, parameter.requires_grad))
        widths = module.out_widths
        module.out_widths = {name: width // device_mesh.size() for name, width in widths.items()}
        # The module keeps its name, so checkpoints and engines find it as before.
        module.__class__ = _SplitFusedLinear
        vars(module)["mesh"] = device_mesh
        only_by_forward(module)
        return module


def only_by_forward(module: nn.Module) -> None:
    """Exclude a module from fused kernels, which bypass `forward`, by a hook that does nothing."""
    module.register_forward_pre_hook(lambda *_: None)


class _Rows(RowwiseParallel):
    """A map split by input that waits for the sum over processes before it returns.

    PyTorch's own style returns at once, and its operations wait for the sum when they need it. Our
    kernels read memory directly and would not wait.
    """

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, mod: Any, outputs: Any, device_mesh: Any
    ) -> Any:
        return outputs.redistribute(placements=output_layouts, async_op=False).to_local()


def fused_rows(projection: FusedLinear, processes: int) -> Tensor:
    """Return the rows [N] int64 of a fused matrix in the order of the processes that hold them.

    Args:
        projection: fused projection before the split.
        processes: number of processes, a divisor of each map's width.
    """
    starts, start = [], 0
    for width in projection.out_widths.values():
        # Each map, queries, keys and values, has a tuple of chunks.
        starts.append(torch.arange(start, start + width).chunk(processes))
        start += width
    return torch.cat([part[process] for process in range(processes) for part in starts])


def check_matrices(model: nn.Module, processes: int) -> None:
    """Refuse a model whose matrices cannot be split over processes.

    Args:
        model: model to train, in one piece.
        processes: number of processes that share its matrices; 1 is always accepted.

    Raises:
        ConfigError: when a part cannot be split, or the number of processes does not divide its
            heads or inner units.
    """
    if processes == 1:
        return
    for address, described, part in _parts(model):
        if not _can_be_split(described):
            raise ConfigError(
                f"{address} ({type(part).__name__}) cannot be split over processes",
                where="parallel.tensor",
                remedy="Use parallel.shard, or attention and plain feed-forward networks",
            )
        _, counts_of = _SPLITS[described.kind]
        for name, count in counts_of(part).items():
            if count % processes:
                raise ConfigError(
                    f"{address} has {count} {name}, which {processes} processes cannot share "
                    "equally",
                    where="parallel.tensor",
                    remedy=f"Take a number of processes that divides {count}",
                )


def split_matrices(model: nn.Module, mesh: DeviceMesh) -> RowOrder:
    """Split the matrices of a model's blocks over processes, in place.

    Args:
        model: whole model on each process, accepted by `check_matrices`.
        mesh: processes that share the matrices, in one dimension.
    """
    order = RowOrder()
    for address, described, part in _parts(model):
        split, _ = _SPLITS[described.kind]
        split(part, mesh, address, order)
    order.of_heads = tuple(_of_heads(model))
    return order


def _of_heads(model: nn.Module) -> Iterator[str]:
    """Yield the names of whole weights that attention uses by head, shared biases included."""
    modules: list[Any] = [part for _, like, part in _parts(model) if like.kind == "attention"]
    for stack in getattr(model, "stacks", dict)().values():
        modules.extend([] if stack.position_bias is None else [stack.position_bias])
    theirs = {id(weight) for module in modules for weight in module.parameters()}
    for name, weight in model.named_parameters():
        if id(weight) in theirs and not isinstance(weight, DTensor):
            yield name


def _parts(model: nn.Module) -> Iterator[tuple[str, PartSpec, nn.Module]]:
    """Yield address, spec and module of each part of a model's blocks."""
    spec = cast(Any, model).spec
    for stack in getattr(model, "stacks", dict)().values():
        described = spec.stacks()[stack.name].blocks
        for number, (block, like) in enumerate(zip(stack.blocks, described, strict=True)):
            for sublayer, part in zip(like.sublayers, block.parts(), strict=True):
                yield f"{stack.name}.blocks.{number}.{sublayer.name}", sublayer.part, part


def _can_be_split(part: PartSpec) -> bool:
    """Return True if a part can be split; experts and pruned heads cannot."""
    if part.kind == "feedforward":
        return part.experts is None
    return part.kind == "attention" and part.kept_heads is None


def _split_feedforward(part: FeedForward, mesh: DeviceMesh, address: str, order: RowOrder) -> None:
    plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": _Rows()}
    # Gate and up projection are multiplied element by element, so both are split alike.
    if part.gate is not None:
        plan["gate"] = ColwiseParallel()
    parallelize_module(part, mesh, plan)


def _split_attention(part: Attention, mesh: DeviceMesh, address: str, order: RowOrder) -> None:
    processes, place = mesh.size(), mesh.get_local_rank()
    fused = {name: each for name, each in part.named_children() if isinstance(each, FusedLinear)}
    for name, projection in fused.items():
        rows = fused_rows(projection, processes)
        for parameter, _ in projection.named_parameters():
            order.rows[f"{address}.{name}.{parameter}"] = rows
    plan: dict[str, ParallelStyle] = {name: _FusedColumns() for name in fused}
    parallelize_module(part, mesh, {**plan, "output": _Rows()})
    # To the module, the heads of other processes look like pruned ones.
    heads = part.num_heads // processes
    first = place * heads
    part.kept = KeptHeads(tuple(range(first, first + heads)), part.num_heads, part.kept.shared)
    part.heads_left, part.key_heads_left = heads, part.num_kv_heads // processes


# For each kind of part that can be split: the function that does it, given part, mesh, address and
# row order, and a function from a part to the counts that the processes must divide, by name.
_SPLITS: dict[
    str,
    tuple[
        Callable[[Any, DeviceMesh, str, RowOrder], None],
        Callable[[Any], dict[str, int]],
    ],
] = {
    "attention": (
        _split_attention,
        lambda part: {"heads": part.heads_left, "key/value heads": part.key_heads_left},
    ),
    "feedforward": (_split_feedforward, lambda part: {"inner units": part.up.out_features}),
}
