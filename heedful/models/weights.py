"""A model's weights under their canonical names: each shared tensor once, fused maps apart."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heedful.errors import ModelError

_SHOWN = 5


def canonical_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights to store, detached; a tensor that several modules share appears once.

    Tensors are views of the model's own where the model stores them so.
    """
    weights: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        storage = (tensor.data_ptr(), tensor.shape)
        # Without numbers in them all tensors are at one place: those of heads that were pruned.
        if storage not in seen or not tensor.numel():
            seen.add(storage)
            weights[name] = tensor
    return weights


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, where: str) -> None:
    """Put stored weights into a model.

    Args:
        model: built from the spec the weights were stored with.
        weights: exactly the tensors of `canonical_weights`.
        where: the file they come from, for the error message.

    Raises:
        ModelError: listing the tensors that are missing, unknown or of another shape.
    """
    own = canonical_weights(model)
    problems: list[str] = []
    if missing := sorted(own.keys() - weights.keys()):
        problems.append(f"missing: {_some(missing)}")
    if unknown := sorted(weights.keys() - own.keys()):
        problems.append(f"unknown: {_some(unknown)}")
    wrong = [
        f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if wrong:
        problems.append(f"of another shape: {_some(wrong)}")
    if problems:
        raise ModelError(
            f"The weights do not fit the model ({'; '.join(problems)})",
            where=where,
            remedy="Use the weights and the config.json that were saved together",
        )
    # Fused maps load through their hooks, which want every part at once; shared tensors follow.
    result = model.load_state_dict(dict(weights), strict=False)
    assert not result.unexpected_keys


def _some(items: list[str]) -> str:
    shown = ", ".join(items[:_SHOWN])
    more = len(items) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
