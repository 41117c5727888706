"""Several linear maps of one input as a single matmul, stored under their own names."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusedLinear(nn.Module):
    """Linear maps of one input as a single matmul, which is faster than three small ones.

    It holds one weight. `store_maps_apart` gives the state dict of its parent the names
    `query.weight`, `key.weight` … as if each were a layer of its own.

    Args:
        in_width: last dimension of the input.
        out_widths: names and output widths of the maps, in the order of the fused output.
        bias: flag that gives each map a bias, zero at first.
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
        # Map by map: Xavier's bound depends on a map's own output width, not on the sum of all.
        for part in self.weight.detach().split(list(out_widths.values())):
            nn.init.xavier_uniform_(part, gain=gain)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Apply all maps to x [..., in_width]: one result [..., out_width] for each, in order."""
        return self.split(self.product(x))

    def product(self, x: Tensor) -> Tensor:
        """Apply all maps to x [..., in_width] as one matmul: [..., sum of out_width]."""
        return F.linear(x, self.weight, self.bias)

    def some(self, x: Tensor, *names: str) -> tuple[Tensor, ...]:
        """Apply maps with consecutive names to x [..., in_width]."""
        all_names = list(self.out_widths)
        first = all_names.index(names[0])
        widths = [self.out_widths[name] for name in names]
        assert all_names[first : first + len(names)] == list(names), names
        start = sum(self.out_widths[name] for name in all_names[:first])
        # A slice of rows is a view of the weight; an index of rows would copy them in each call.
        rows = slice(start, start + sum(widths))
        bias = None if self.bias is None else self.bias[rows]
        return torch.split(F.linear(x, self.weight[rows], bias), widths, dim=-1)

    def split(self, fused: Tensor) -> tuple[Tensor, ...]:
        """Split the fused output [..., sum of out_width] into the output of each map."""
        return torch.split(fused, list(self.out_widths.values()), dim=-1)


def store_maps_apart(parent: nn.Module) -> None:
    """Name the maps of `FusedLinear` children in the state dict as layers of their parent.

    Args:
        parent: module whose fused children exist already and have maps of different names.
    """
    # Hooks of the parent, not of the children: they run before any child looks for its weight.
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
                # Views of the fused weight, so a state dict still shares memory with the module.
                for name, part in zip(child.out_widths, parts, strict=True):
                    assert f"{prefix}{name}.{kind}" not in state, (
                        name
                    )  # otherwise one of the two would be lost
                    state[f"{prefix}{name}.{kind}"] = part


def _join_on_load(parent: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for child_name, child in _fused_children(parent):
        for kind in ("weight", "bias"):
            names = [f"{prefix}{name}.{kind}" for name in child.out_widths]
            # If one is missing, none are joined, and PyTorch reports the missing name.
            if all(name in state for name in names):
                state[f"{prefix}{child_name}.{kind}"] = torch.cat([state.pop(n) for n in names])
