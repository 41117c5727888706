"""What to keep of a forward pass, as a value passed in: nothing is stored in modules."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class Capture:
    """Keeps tensors at wanted addresses, such as `decoder.3.cross.weights`.

    Args:
        wanted: the addresses to keep; a tensor is only computed for one that is wanted.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = frozenset(wanted)
        self.found: dict[str, Tensor] = {}

    def wants(self, address: str) -> bool:
        """Whether the tensor at this address is asked for."""
        return address in self.wanted

    def keep(self, address: str, value: Tensor) -> None:
        """Keep the tensor of an address."""
        self.found[address] = value
