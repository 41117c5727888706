"""Captures: tensors of a forward pass kept in a value that is passed in, not in modules."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor


class Capture:
    """Keeps tensors at wanted addresses, such as `decoder.3.cross.weights`.

    Args:
        wanted: the addresses to keep, in which `*` stands for one part and `**` for any number of
            parts; a tensor is only computed for an address that is wanted.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = frozenset(wanted)
        self.found: dict[str, Tensor] = {}
        self._patterns = [address_pattern(address) for address in self.wanted if "*" in address]
        self._answers: dict[str, bool] = {}

    @property
    def offered(self) -> tuple[str, ...]:
        """All addresses that a pass has asked about, wanted or not, in their order."""
        return tuple(self._answers)

    def wants(self, address: str) -> bool:
        """Return whether the tensor at this address is asked for."""
        answer = self._answers.get(address)
        if answer is None:
            answer = address in self.wanted or any(p.fullmatch(address) for p in self._patterns)
            self._answers[address] = answer
        return answer

    def concerns(self, place: str, besides: Iterable[str] = ()) -> bool:
        """Return whether anything inside a part of the model may be asked for.

        Args:
            place: the part, such as `decoder.3`.
            besides: addresses within it, such as `cross.weights`, that do not count.
        """
        spared = {f"{place}.{each}" for each in besides}
        concerned = (each for each in self.wanted if "*" in each or each.startswith(f"{place}."))
        return any(each not in spared for each in concerned)

    def keep(self, address: str, value: Tensor) -> None:
        """Keep the tensor of an address."""
        self.found[address] = value

    def ends_with(self, address: str) -> bool:
        """Return whether the pass ends once this address has been kept, after all before it."""
        return False

    def unmet(self) -> list[str]:
        """Return the addresses that no pass has offered so far."""
        return sorted(
            wanted
            for wanted in self.wanted
            if not any(map(address_pattern(wanted).fullmatch, self._answers))
        )


class Enough(Exception):
    """Ends a pass that has given all that was wanted of it."""


class Stopping(Capture):
    """A capture that raises `Enough` as soon as it has what it wants.

    Args:
        wanted: the addresses, without `*`.
    """

    def keep(self, address: str, value: Tensor) -> None:
        """Keep the tensor of an address; go no further after the last."""
        super().keep(address, value)
        if len(self.found) == len(self.wanted):
            raise Enough

    def ends_with(self, address: str) -> bool:
        """Return whether this address is the last that is missing."""
        return self.wanted - self.found.keys() == {address}


def offer(capture: Capture | None, address: str, value: Tensor) -> None:
    """Give a tensor that is there anyway to whoever wants it."""
    if capture is not None and capture.wants(address):
        capture.keep(address, value)


def address_pattern(wanted: str) -> re.Pattern[str]:
    """Matches addresses: `*` stands for one part, `**` for any number of parts."""
    parts = re.split(r"(\*\*|\*)", wanted)
    wild = {"*": r"[^.]*", "**": r".*"}
    return re.compile("".join(wild.get(part) or re.escape(part) for part in parts))
