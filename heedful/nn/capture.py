"""What to keep of a forward pass, as a value passed in: nothing is stored in modules."""

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
        """Whether the tensor at this address is asked for."""
        answer = self._answers.get(address)
        if answer is None:
            answer = address in self.wanted or any(p.fullmatch(address) for p in self._patterns)
            self._answers[address] = answer
        return answer

    def concerns(self, place: str) -> bool:
        """Whether anything inside a part of the model, such as `decoder.3`, may be asked for."""
        return any("*" in each or each.startswith(f"{place}.") for each in self.wanted)

    def keep(self, address: str, value: Tensor) -> None:
        """Keep the tensor of an address."""
        self.found[address] = value

    def unmet(self) -> list[str]:
        """What is wanted and was offered by no pass so far."""
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


def offer(capture: Capture | None, address: str, value: Tensor) -> None:
    """Give a tensor that is there anyway to whoever wants it."""
    if capture is not None and capture.wants(address):
        capture.keep(address, value)


def address_pattern(wanted: str) -> re.Pattern[str]:
    """Matches addresses: `*` stands for one part, `**` for any number of parts."""
    parts = re.split(r"(\*\*|\*)", wanted)
    wild = {"*": r"[^.]*", "**": r".*"}
    return re.compile("".join(wild.get(part) or re.escape(part) for part in parts))
