"""Find the origin of a number that is not finite: the module and the lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_SHOWN_LINES = 5


@dataclass(frozen=True)
class Diagnosis:
    """The origin of the first number that is not finite.

    Args:
        place: a module's or parameter's address, a sentence part.
        rows: rows of the batch that are affected; empty when it cannot be told.
    """

    place: str
    rows: tuple[int, ...] = ()

    def describe(self, lines: Sequence[str]) -> str:
        """The diagnosis with the lines of text it concerns.

        Args:
            lines: `file:line` of the affected pairs.
        """
        first_lines = ", ".join(lines[:_SHOWN_LINES])
        more = f" and {len(lines) - _SHOWN_LINES} more" if len(lines) > _SHOWN_LINES else ""
        return f"{self.place}; lines of text: {first_lines}{more}"


NOWHERE = Diagnosis("nothing any more when the batches were run one by one")


def find_nonfinite(model: nn.Module, forward: Callable[[], Tensor], size: int) -> Diagnosis | None:
    """Run a batch again with every module watched, and its gradients after that.

    Args:
        model: the model; its gradients are overwritten.
        forward: computes the loss again, with the same random seed.
        size: B, to tell which rows are affected.

    Returns:
        The first module whose output is not finite, else the loss, else the first parameter in the
        order of the backward pass whose gradient is not; None when all is finite.
    """
    results: list[Diagnosis] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            for tensor in _tensors(output):
                if not results and not bool(torch.isfinite(tensor).all()):
                    results.append(Diagnosis(f"the output of {name}", _rows(tensor, size)))

        return hook

    handles = [
        module.register_forward_hook(watch(name or "the model"))
        for name, module in model.named_modules()
    ]
    try:  # blocks that are computed again for their gradients need to find the hooks they had
        model.zero_grad(set_to_none=True)
        loss = forward()
        if results:
            return results[0]
        if not bool(torch.isfinite(loss)):
            return Diagnosis("the loss")
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return Diagnosis(f"the gradient of {name}")
    return None


def first_bad_weight(model: nn.Module) -> str | None:
    """The first parameter that is itself not finite, if any."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return name
    return None


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, tuple | list):
        for item in output:
            yield from _tensors(item)


def _rows(tensor: Tensor, size: int) -> tuple[int, ...]:
    if tensor.ndim < 2 or tensor.shape[0] % size:
        return ()
    bad = ~torch.isfinite(tensor.flatten(1)).all(-1)
    # a doubled batch (R-Drop) repeats its rows
    return tuple(sorted({int(row) % size for row in bad.nonzero()}))
