"""What to keep of a forward pass, as a value passed in: nothing is stored in modules."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import Tensor


class Capture:
    """Keeps tensors at wanted addresses, such as `decoder.3.cross.weights`.

    Args:
        wanted: the addresses to keep, in which `*` stands for anything; a tensor is only computed
            for an address that is wanted.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = frozenset(wanted)
        self.found: dict[str, Tensor] = {}
        self._patterns = tuple(address for address in self.wanted if "*" in address)

    def wants(self, address: str) -> bool:
        """Whether the tensor at this address is asked for."""
        if address in self.wanted:
            return True
        return any(fnmatchcase(address, pattern) for pattern in self._patterns)

    def keep(self, address: str, value: Tensor) -> None:
        """Keep the tensor of an address."""
        self.found[address] = value
