"""Search for the origin of a non-finite value: the module, and the lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_SHOWN_LINES = 5


@dataclass(frozen=True)
class Diagnosis:
    """The origin of the first non-finite value.

    Args:
        place: address of a module or parameter, as a part of a sentence.
        rows: affected rows of the batch; empty if unknown.
    """

    place: str
    rows: tuple[int, ...] = ()

    def describe(self, lines: Sequence[str]) -> str:
        """Return the diagnosis together with the affected lines of text.

        Args:
            lines: origins ("file:line") of the affected examples.
        """
        first_lines = ", ".join(lines[:_SHOWN_LINES])
        more = f" and {len(lines) - _SHOWN_LINES} more" if len(lines) > _SHOWN_LINES else ""
        return f"{self.place}; lines of text: {first_lines}{more}"


NOWHERE = Diagnosis("nothing any more when the batches were run one by one")


def find_nonfinite(model: nn.Module, forward: Callable[[], Tensor], size: int) -> Diagnosis | None:
    """Run a batch again with a hook on every module, then its backward pass.

    Args:
        model: model in training; its gradients are overwritten.
        forward: function that computes the loss again, with the same random seed.
        size: batch size B, to identify the affected rows.

    Returns:
        The first module with a non-finite output, else the loss, else the first parameter in the
        order of the backward pass with a non-finite gradient; None if everything is finite.
    """
    results: list[Diagnosis] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            for tensor in _tensors(output):
                # Forward hooks fire when a module returns, so the innermost module at fault comes
                # first.
                if not results and not bool(torch.isfinite(tensor).all()):
                    results.append(Diagnosis(f"the output of {name}", _rows(tensor, size)))

        return hook

    handles = [
        module.register_forward_hook(watch(name or "the model"))
        for name, module in model.named_modules()
    ]
    # The hooks stay during the backward pass: hooks change which kernels serve, and checkpointed
    # blocks must be recomputed by the kernels of their forward pass.
    try:
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
    # Gradients come from the output backwards, so the last parameter at fault is nearest the
    # origin.
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return Diagnosis(f"the gradient of {name}")
    return None


def first_bad_weight(model: nn.Module) -> str | None:
    """Return the name of the first parameter with a non-finite element; None if there is none."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return name
    return None


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        # `isfinite` of integers is true everywhere and costs a pass.
        if output.is_floating_point():
            yield output
    elif isinstance(output, tuple | list):
        for item in output:
            yield from _tensors(item)


def _rows(tensor: Tensor, size: int) -> tuple[int, ...]:
    # Rows without padding [tokens, D] or a scalar: the examples cannot be told from the shape.
    if tensor.ndim < 2 or tensor.shape[0] % size:
        return ()
    bad = ~torch.isfinite(tensor.flatten(1)).all(-1)
    # R-Drop runs a batch twice over in one pass, so row i + B is example i.
    return tuple(sorted({int(row) % size for row in bad.nonzero()}))
