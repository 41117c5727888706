"""Matrices multiplied in parts: each process has some heads and some inner units (Shoeybi 2019).

The maps into attention and into a feed-forward network are split by output, the maps out of them by
input, so that a sub-layer needs one sum over the processes on its way forward and one on its way
back. DTensors say where the parts lie. Norms, embeddings and the output projection are whole on
each process.

The maps to queries, keys and values are one matrix. A contiguous part of its rows would be all of
the queries for one process and none of the keys, so rows are put in another order first: those of
the first process's heads, queries, keys and values, then the second's. `RowOrder` remembers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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

if TYPE_CHECKING:
    from heedful.nn.spec import PartSpec


@dataclass
class RowOrder:
    """The order of the rows of split matrices, by the names of their weights.

    Args:
        rows: for each of them [N] int64, the original number of every row.
        of_heads: names of weights that are whole on each process, which uses them for its own heads
            alone: position biases, norms of queries and keys. Its gradients are parts of a sum.
    """

    rows: dict[str, Tensor] = field(default_factory=dict)
    of_heads: tuple[str, ...] = ()

    def applied(self, name: str, tensor: Tensor) -> Tensor:
        """A whole tensor [N, …] in the order that processes keep it in."""
        return tensor[self.rows[name].to(tensor.device)] if name in self.rows else tensor

    def restored(self, name: str, tensor: Tensor) -> Tensor:
        """A whole tensor [N, …] in its original order; a number for all of it as it is."""
        if name not in self.rows or not tensor.ndim:
            return tensor
        result = torch.empty_like(tensor)
        result[self.rows[name].to(tensor.device)] = tensor
        return result


class _SplitFusedLinear(FusedLinear):
    """Linear maps of one input of which this process has a part of the outputs of each."""

    mesh: DeviceMesh

    def product(self, x: Tensor) -> Tensor:
        """The part of x [..., in_width] that this process computes, [..., width / processes]."""
        everywhere = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return cast(DTensor, F.linear(everywhere, self.weight, self.bias)).to_local()


class _FusedColumns(ParallelStyle):
    """The style of `FusedLinear`: each map is split by output."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, FusedLinear)
        rows = fused_rows(module, device_mesh.size())
        for name, parameter in list(module.named_parameters()):
            whole = parameter.detach()[rows]
            part = distribute_tensor(whole, device_mesh, [Shard(0)], src_data_rank=None)
            setattr(module, name, nn.Parameter(part, parameter.requires_grad))
        widths = module.out_widths
        module.out_widths = {name: width // device_mesh.size() for name, width in widths.items()}
        module.__class__ = _SplitFusedLinear
        vars(module)["mesh"] = device_mesh
        only_by_forward(module)
        return module


def only_by_forward(module: nn.Module) -> None:
    """Mark a module whose weights no fused operation may multiply past its `forward`: by a hook."""
    module.register_forward_pre_hook(lambda *_: None)


class _Rows(RowwiseParallel):
    """A map split by input, whose sum over processes is there when it returns.

    PyTorch's own returns at once and waits where its operations first need the sum. Kernels in C
    read memory, and need no operation of PyTorch's for it.
    """

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, mod: Any, outputs: Any, device_mesh: Any
    ) -> Any:
        return outputs.redistribute(placements=output_layouts, async_op=False).to_local()


def fused_rows(projection: FusedLinear, processes: int) -> Tensor:
    """The rows of a fused matrix in the order of the processes that have them, [N] int64.

    Args:
        projection: before it is split.
        processes: which divides the width of each map.
    """
    starts, start = [], 0
    for width in projection.out_widths.values():
        starts.append(torch.arange(start, start + width).chunk(processes))
        start += width
    return torch.cat([part[process] for process in range(processes) for part in starts])


def check_matrices(model: nn.Module, processes: int) -> None:
    """Refuse a model whose matrices processes cannot share.

    Args:
        model: to be trained, in one piece.
        processes: that share its matrices; 1 asks for nothing.

    Raises:
        ConfigError: when there is a part that cannot be split, or heads or inner units that the
            number of processes does not divide.
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
        for name, count in _SPLITS[described.kind].divided(part).items():
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
        model: with all of its weights on each process, as `check_matrices` lets it pass.
        mesh: the processes, one dimension.
    """
    order = RowOrder()
    for address, described, part in _parts(model):
        _SPLITS[described.kind].split(part, mesh, address, order)
    order.of_heads = tuple(_of_heads(model))
    return order


def _of_heads(model: nn.Module) -> Iterator[str]:
    """Names of whole weights of attention: in its modules, or shared by those of a stack."""
    modules: list[Any] = [part for _, like, part in _parts(model) if like.kind == "attention"]
    for stack in getattr(model, "stacks", dict)().values():
        modules.extend([] if stack.position_bias is None else [stack.position_bias])
    theirs = {id(weight) for module in modules for weight in module.parameters()}
    for name, weight in model.named_parameters():
        if id(weight) in theirs and not isinstance(weight, DTensor):
            yield name


def _parts(model: nn.Module) -> Iterator[tuple[str, PartSpec, nn.Module]]:
    """Address, spec and module of each part of a model's blocks."""
    spec = cast(Any, model).spec
    for stack in getattr(model, "stacks", dict)().values():
        described = spec.stacks()[stack.name].blocks
        for number, (block, like) in enumerate(zip(stack.blocks, described, strict=True)):
            for sublayer, part in zip(like.sublayers, block.parts(), strict=True):
                yield f"{stack.name}.blocks.{number}.{sublayer.name}", sublayer.part, part


def _can_be_split(part: PartSpec) -> bool:
    """Return whether there is a way to split a part: none for experts, nor for pruned heads."""
    if part.kind == "feedforward":
        return part.experts is None
    return part.kind == "attention" and part.kept_heads is None


def _split_feedforward(part: FeedForward, mesh: DeviceMesh, address: str, order: RowOrder) -> None:
    plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": _Rows()}
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
    # An attention with some of the heads is one whose other heads were pruned.
    heads = part.num_heads // processes
    first = place * heads
    part.kept = KeptHeads(tuple(range(first, first + heads)), part.num_heads, part.kept.shared)
    part.heads_left, part.key_heads_left = heads, part.num_kv_heads // processes


class _Split(NamedTuple):
    """A way to split a part.

    Args:
        divided: numbers that the processes must divide, by their names.
        split: splits it in place: the part, the processes, its address, and the order to fill.
    """

    divided: Callable[[Any], dict[str, int]]
    split: Callable[[Any, DeviceMesh, str, RowOrder], None]


_SPLITS: dict[str, _Split] = {
    "attention": _Split(
        lambda part: {"heads": part.heads_left, "key/value heads": part.key_heads_left},
        _split_attention,
    ),
    "feedforward": _Split(lambda part: {"inner units": part.up.out_features}, _split_feedforward),
}
"""Ways to split the matrices of parts, by their kinds."""
