"""Modules whose first weights nobody will see: those that are about to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def undrawn() -> Iterator[None]:
    """A context to build modules in whose every weight is overwritten afterwards.

    Drawing the first weights takes most of the time of building. Here they are what the memory
    held, and PyTorch's generator stays where it was.
    """
    with torch.random.fork_rng(devices=[]), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        arguments: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if function in _DRAWS:
            return arguments[0] if arguments else named["tensor"]
        return function(*arguments, **named)


# Not `Tensor.normal_`: matrices that start orthogonal are computed from what it draws.
_DRAWS = {Tensor.uniform_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_}
