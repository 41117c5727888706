"""Changes of a model that somebody holds: of its weights, its parts and its settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.models.build import build_on_meta

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

_SMALL = 1 << 14
"""Elements below which tensors are summed together: each sum of its own takes 20 µs."""

_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_values(model: nn.Module) -> None:
    """Refuse weights without values.

    Args:
        model: model on any device.

    Raises:
        ModelError: when a weight is on the device `meta`, or its memory was taken away.
    """
    for name, tensor in model.named_parameters():
        # Kernels would read past the end of a storage that was emptied.
        extent = 1 + sum(
            (n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
        size = (tensor.storage_offset() + extent) * tensor.element_size()
        if tensor.is_meta or (tensor.numel() and tensor.untyped_storage().nbytes() < size):
            raise ModelError(
                "A weight of the model has no values",
                where=f"{name}, on the device {tensor.device.type!r}",
                remedy="Load the model again, or give it a weight with values",
            )


def is_as_specified(model: AnyModel) -> bool:
    """Return whether a model is what its spec describes: parts, settings, shapes, and no hooks.

    Args:
        model: model in float32 whose weights may have any values.
    """
    tensors = list(model.parameters())
    plain = all(
        each.dtype == torch.float32 and each.layout == torch.strided and each.is_contiguous()
        for each in tensors
    )
    if not plain or len({each.device for each in tensors}) != 1:
        return False
    built = build_on_meta(model.spec)
    # Names of shared parts and tensors appear once, so that untying changes the names.
    ours, theirs = dict(model.named_modules()), dict(built.named_modules())
    if ours.keys() != theirs.keys():
        return False
    if [(n, p.shape) for n, p in model.named_parameters()] != [
        (n, p.shape) for n, p in built.named_parameters()
    ]:
        return False
    return all(_settings(ours[name]) == _settings(theirs[name]) for name in ours)


def _settings(module: nn.Module) -> tuple[object, ...]:
    """Return the class and the attributes of a module, but for its tensors and children."""
    unused = ("training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    values = {
        # Tensors without names, such as tables of angles, follow from the settings.
        name: tuple(value.shape) if isinstance(value, Tensor) else value
        for name, value in vars(module).items()
        if name not in unused
    }
    return type(module), sorted(module._buffers), values


def pieces(model: nn.Module) -> Iterator[object]:
    """Yield the classes, attributes, children and hooks of all modules, to compare identities."""
    for module in model.modules():
        yield type(module)
        for name, value in vars(module).items():
            if isinstance(value, dict):
                yield from value.values()
            elif name != "training":
                yield value


def checksums(model: nn.Module) -> list[object]:
    """Return sums of the bits of all tensors of a model, which change with any element.

    Version counters miss `p.data.mul_(2)` and whatever NumPy writes, addresses miss more; 40 MB are
    summed in 5 ms.

    Args:
        model: model on any device.
    """
    tensors = [*model.parameters(), *model.buffers()]
    facts: list[object] = [(each.dtype, each.device, each.shape) for each in tensors]
    small: dict[torch.device, list[Tensor]] = {}
    sums: list[Tensor] = []
    for tensor in tensors:
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        flat = tensor.detach().contiguous().reshape(-1).view(_WHOLE_NUMBERS[tensor.element_size()])
        if len(flat) < _SMALL:
            small.setdefault(tensor.device, []).append(flat)
            continue
        # Two floats at a time where they are pairs: sums of 64 bits need no conversion.
        if flat.element_size() == 4 and len(flat) % 2 == 0 and flat.storage_offset() % 2 == 0:
            flat = flat.view(torch.int64)
        rows = flat[: len(flat) // 256 * 256].view(-1, 256)
        # Weighted by place, so that exchanged rows and columns show.
        sums += [_weighted(rows.sum(0)), _weighted(rows.sum(1))]
        small.setdefault(tensor.device, []).append(flat[rows.numel() :])
    sums += [_weighted(torch.cat(each)) for each in small.values()]
    return [*facts, *(int(each) for each in sums)]


def _weighted(values: Tensor) -> Tensor:
    return (values * torch.arange(1, len(values) + 1, device=values.device)).sum()
