"""Modules of a model that are of an engine's classes for a while.

An engine computes what the definition says by subclasses of its modules. Modules keep their
parameters, names and hooks; they only change their class, so optimisers, shards, averages and
checkpoints see one and the same model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

Kinds = Mapping[type[nn.Module], type[nn.Module]]
"""The engine's class of each class of the definition; it serves subclasses of that too."""


def has_no_hooks(*modules: nn.Module) -> bool:
    """Return whether modules have no hooks, which nothing calls where they are passed over."""
    return not any(
        each._forward_hooks
        or each._forward_pre_hooks
        or each._backward_hooks
        or each._backward_pre_hooks
        for each in modules
    )


class Exchange:
    """The modules of a model that an engine has classes for.

    Args:
        model: whose modules stay as they are outside of `made`.
        kinds: the engine's classes.
        own: the engine's class of a module, where its place in the model decides; else None.
    """

    def __init__(
        self,
        model: nn.Module,
        kinds: Kinds,
        own: Callable[[nn.Module], type[nn.Module] | None] = lambda module: None,
    ) -> None:
        self._model, self._kinds, self._own = model, kinds, own
        self._pairs: list[tuple[nn.Module, type, type]] | None = None

    def make(self) -> None:
        """Give every module its engine's class, for good: of a copy that is an engine."""
        for module, _, kind in self._found():
            object.__setattr__(module, "__class__", kind)

    @contextmanager
    def made(self) -> Iterator[None]:
        """A context in which every module has its engine's class."""
        pairs = self._found()
        self.make()
        try:
            yield
        finally:
            for module, before, _ in pairs:
                object.__setattr__(module, "__class__", before)

    def _found(self) -> list[tuple[nn.Module, type, type]]:
        if self._pairs is None:
            self._pairs = []
            for module in self._model.modules():
                kind = self._own(module) or self._kind_of(type(module))
                if kind is not None:
                    derived = _derived(kind, type(module))  # type: ignore[arg-type]
                    self._pairs.append((module, type(module), derived))
        return self._pairs

    def _kind_of(self, base: type) -> type[nn.Module] | None:
        return next((self._kinds[each] for each in base.__mro__ if each in self._kinds), None)


@functools.cache
def _derived(kind: type, base: type) -> type:
    """Return the engine's class of a module's class: of subclasses one made of both."""
    if issubclass(kind, base):
        return kind
    return type(f"{kind.__name__}Of{base.__name__}", (kind, base), {})
