"""Several linear maps of one input as a single matrix product, stored under their own names.

One large product is faster than three small ones, yet a checkpoint should not depend on how the
maps happen to be fused. So the module holds one weight, and the state dict of the module it is part
of holds `query.weight`, `key.weight` … as if each were a module of its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from heedful.nn.product import linear
from heedful.nn.unpadding import RealRows


class FusedLinear(nn.Module):
    """Linear maps `names` of one input.

    Args:
        in_width: width of the input.
        out_widths: the maps' names and output widths, in the order of the fused output.
        bias: whether each map has a bias, zero at first.
        gain: factor of the Xavier-uniform initialisation of each map.
    """

    def __init__(
        self, in_width: int, out_widths: dict[str, int], *, bias: bool, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.out_widths = dict(out_widths)
        total = sum(out_widths.values())
        self.weight = nn.Parameter(torch.empty(total, in_width))
        self.bias = nn.Parameter(torch.zeros(total)) if bias else None
        for part in self.weight.detach().split(list(out_widths.values())):
            nn.init.xavier_uniform_(part, gain=gain)

    def forward(self, x: Tensor, rows: RealRows | None = None) -> tuple[Tensor, ...]:
        """Apply all maps.

        Args:
            x: [..., in_width]; [1, R, in_width] without its padding.
            rows: where the rows of x stand in the padded batch, if its padding was taken out.

        Returns:
            One [..., out_width] per map, in order, padded.
        """
        return self.parts(self.fused(x), rows)

    def fused(self, x: Tensor) -> Tensor:
        """All maps of x [..., in_width] side by side, [..., sum of out_width]."""
        return linear(x, self.weight, self.bias)

    def parts(self, fused: Tensor, rows: RealRows | None = None) -> tuple[Tensor, ...]:
        """Split the output of `fused` by map; padded again, if there are rows of real tokens."""
        if rows is not None:
            fused = rows.unpack(fused)
        widths = list(self.out_widths.values())
        learned = fused.requires_grad and not torch.compiler.is_compiling()
        if not learned or fused.device.type != "cpu":  # where attention in C gives its gradients
            return torch.split(fused, widths, dim=-1)
        parts: tuple[Tensor, ...] = _Parts.apply(fused, widths)  # type: ignore[no-untyped-call]
        return parts


class _Parts(torch.autograd.Function):
    """Parts of each row. Gradients that lie side by side already are not copied to lie so."""

    @staticmethod
    def forward(ctx: Any, fused: Tensor, widths: list[int]) -> tuple[Tensor, ...]:
        return torch.split(fused, widths, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _side_by_side(gradients), None


def _side_by_side(parts: tuple[Tensor, ...]) -> Tensor:
    """The parts [..., width] joined: the memory that they share, if they lie in it as the whole."""
    first = parts[0]
    shape = (*first.shape[:-1], sum(part.shape[-1] for part in parts))
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    at = first.storage_offset()
    for part in parts:
        elsewhere = part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        if elsewhere or part.storage_offset() != at or part.stride() != strides:
            return torch.cat(parts, dim=-1)
        at += part.shape[-1]
    if torch.is_grad_enabled():  # second derivatives need to know of every part
        return torch.cat(parts, dim=-1)
    return first.as_strided(shape, strides)


def store_maps_apart(parent: nn.Module) -> None:
    """Have the parent's state dict name the maps of its `FusedLinear` children as its own.

    Args:
        parent: a module all of whose fused children exist already, and have differently named maps.
    """
    parent.register_state_dict_post_hook(_split_on_save)
    parent.register_load_state_dict_pre_hook(_join_on_load)


def _fused_children(parent: nn.Module) -> list[tuple[str, FusedLinear]]:
    return [(n, child) for n, child in parent.named_children() if isinstance(child, FusedLinear)]


def _split_on_save(parent: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for child_name, child in _fused_children(parent):
        for kind in ("weight", "bias"):
            fused = state.pop(f"{prefix}{child_name}.{kind}", None)
            if fused is not None:
                parts = fused.split(list(child.out_widths.values()))
                for name, part in zip(child.out_widths, parts, strict=True):
                    state[f"{prefix}{name}.{kind}"] = part


def _join_on_load(parent: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for child_name, child in _fused_children(parent):
        for kind in ("weight", "bias"):
            names = [f"{prefix}{name}.{kind}" for name in child.out_widths]
            if all(name in state for name in names):
                state[f"{prefix}{child_name}.{kind}"] = torch.cat([state.pop(n) for n in names])
