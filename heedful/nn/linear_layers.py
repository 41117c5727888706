"""Several linear maps of one input as a single matmul, stored under their own names."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusedLinear(nn.Module):
    """Linear maps of one input as a single matmul, which is faster than three small ones.

    It holds one weight. A parent of the class `StoredApart` gives its state dict the names
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


class StoredApart(nn.Module):
    """A module whose `FusedLinear` children are stored as layers of its own, map by map.

    The children's maps have different names.
    """

    # Methods, not hooks: PyTorch binds a hook to one module, so that copies could not be saved.
    def state_dict(  # type: ignore[override]
        self, *args: Any, prefix: str = "", **kwargs: Any
    ) -> dict[str, Any]:
        """Return the state, with the maps apart; see `nn.Module.state_dict`."""
        state: dict[str, Any] = super().state_dict(*args, prefix=prefix, **kwargs)
        _split_on_save(self, state, prefix)
        return state

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Joined before any child looks for its weight.
        _join_on_load(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _fused_children(parent: nn.Module) -> list[tuple[str, FusedLinear]]:
    return [(n, child) for n, child in parent.named_children() if isinstance(child, FusedLinear)]


def _split_on_save(parent: nn.Module, state: dict[str, Any], prefix: str) -> None:
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


def _join_on_load(parent: nn.Module, state: dict[str, Any], prefix: str) -> None:
    for child_name, child in _fused_children(parent):
        for kind in ("weight", "bias"):
            names = [f"{prefix}{name}.{kind}" for name in child.out_widths]
            # If one is missing, none are joined, and PyTorch reports the missing name.
            if all(name in state for name in names):
                state[f"{prefix}{child_name}.{kind}"] = torch.cat([state.pop(n) for n in names])
