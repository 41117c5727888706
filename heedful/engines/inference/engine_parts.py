"""The way from a model's definition to an engine's copy of it, and back for inspection.

An engine is a copy of the model in which some modules are replaced by classes of the engine. Each
derives from the definition's class and computes the same, so the code around them stays that of the
definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
N = TypeVar("N", bound=nn.Module)


class EnginePart(nn.Module):
    """A module of the definition that an engine computes in its own way.

    Attributes:
        by_definition: compute by the definition's code for now; see `computed_by_definition`.
    """

    by_definition = False


@contextmanager
def computed_by_definition(model: nn.Module) -> Iterator[None]:
    """A context in which an engine computes by the definition's code, with its packed layers.

    Inspection that replaces parts of a model needs it: engines read their parts once, ahead of
    time. It does nothing to a model that is no engine.

    Args:
        model: changed for everyone who uses it meanwhile.
    """
    parts: list[Any] = [module for module in model.modules() if hasattr(module, "by_definition")]
    before = [part.by_definition for part in parts]
    for part in parts:
        part.by_definition = True
    try:
        yield
    finally:
        for part, value in zip(parts, before, strict=True):
            part.by_definition = value


def copy_model(model: M, *, donate: bool = False) -> M:
    """Copy a tree of modules; parameters and buffers share the memory of the originals.

    Modules and parameters that are shared within the model are shared within the copy.

    Args:
        model: stays as it is, unless it is donated.
        donate: take the parameters away from the model, which cannot be used any more; so each
            can be freed as soon as the copy has converted it.
    """
    modules: dict[int, nn.Module] = {}
    tensors: dict[int, Tensor] = {}

    def copied(module: nn.Module) -> nn.Module:
        if id(module) in modules:
            return modules[id(module)]
        copy = modules[id(module)] = module.__new__(type(module))
        vars(copy).update(
            {
                name: value.copy() if name.startswith("_") and isinstance(value, dict) else value
                for name, value in vars(module).items()
            }
        )
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in tensors:
                    shared = nn.Parameter(parameter.detach(), parameter.requires_grad)
                    tensors[id(parameter)] = shared
                copy._parameters[name] = tensors[id(parameter)]  # type: ignore[assignment]
        for name, child in module._modules.items():
            copy._modules[name] = None if child is None else copied(child)
        return copy

    result = copied(model)
    modules.clear()  # `copied` refers to itself, and would keep both until garbage is collected
    tensors.clear()
    if donate:
        for module in model.modules():
            for name in module._parameters:
                module._parameters[name] = None
    return result  # type: ignore[return-value]


def become(module: nn.Module, kind: type[N]) -> N:
    """A module of an engine's copy as an object of the engine's own class.

    Args:
        module: of the definition; its attributes are shared.
        kind: derives from the module's class.
    """
    part = kind.__new__(kind)
    vars(part).update(vars(module))
    return part


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another, wherever that stands in a model."""
    for module in model.modules():
        for name, child in module._modules.items():
            if child is old:
                module._modules[name] = new
