"""Copies of a model that become engines, and their return to the definition for inspection.

An engine is a copy of the model in which classes of the engine replace some modules. Each class
derives from the definition's and computes the same, so the code around the modules does not change.
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
        by_definition: flag that the definition's code computes; see `computed_by_definition`.
    """

    by_definition = False


@contextmanager
def computed_by_definition(model: nn.Module) -> Iterator[None]:
    """A context in which an engine computes by the definition's code, with its packed layers.

    Inspection that replaces parts of a model needs it, because an engine takes the addresses of its
    parts once, ahead of time. A model that is no engine does not change.

    Args:
        model: model, which changes for all its users meanwhile.
    """
    parts: list[Any] = [module for module in model.modules() if hasattr(module, "by_definition")]
    before = [part.by_definition for part in parts]
    for part in parts:
        part.by_definition = True
    try:
        yield
    finally:
        # Each part gets its former value back, so that contexts can be nested.
        for part, value in zip(parts, before, strict=True):
            part.by_definition = value


def copy_model(model: M, *, donate: bool = False) -> M:
    """Copy a tree of modules; parameters and buffers share the memory of the originals.

    Modules and parameters that are shared within the model are shared within the copy.

    Args:
        model: model to copy.
        donate: flag that the parameters are taken from the model, which is unusable afterwards; the
            copy can then free each one as soon as it has converted it.
    """
    modules: dict[int, nn.Module] = {}
    tensors: dict[int, Tensor] = {}

    def copied(module: nn.Module) -> nn.Module:
        if id(module) in modules:
            return modules[id(module)]
        # Without `__init__`, which would allocate and initialise all weights. The dictionaries of
        # parameters, children and hooks are copied, so that changes of one model spare the other.
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
                    # A new object with the same memory: `engine.to(...)` replaces its data only.
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
    """Make an object of an engine's class that shares the attributes of a module.

    Args:
        module: module of an engine's copy.
        kind: engine's class, derived from the module's class.
    """
    part = kind.__new__(kind)
    vars(part).update(vars(module))
    return part


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module by another wherever a model uses it; tied modules occur several times."""
    for module in model.modules():
        for name, child in module._modules.items():
            if child is old:
                module._modules[name] = new
