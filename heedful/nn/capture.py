"""Captures: values passed into a forward pass that keep some of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor


class Capture:
    """Keep the tensors of a pass at wanted addresses, such as `decoder.3.cross.weights`.

    Args:
        wanted: addresses to keep, in which `*` stands for one part and `**` for any number of
            parts; a tensor is only computed for an address that is wanted.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = frozenset(wanted)
        self.found: dict[str, Tensor] = {}
        # Compiled once: every block of every pass asks again. Plain addresses need no pattern.
        self._patterns = [address_pattern(address) for address in self.wanted if "*" in address]
        # A cache, and also the record of all offered addresses: a dict keeps its order.
        self._answers: dict[str, bool] = {}

    @property
    def offered(self) -> tuple[str, ...]:
        """All addresses that a pass has asked about, wanted or not, in their order."""
        return tuple(self._answers)

    def wants(self, address: str) -> bool:
        """Return whether the tensor at this address is wanted."""
        answer = self._answers.get(address)
        if answer is None:
            answer = address in self.wanted or any(p.fullmatch(address) for p in self._patterns)
            self._answers[address] = answer
        return answer

    def concerns(self, place: str, besides: Iterable[str] = ()) -> bool:
        """Return whether a tensor inside a part of the model may be wanted.

        Args:
            place: address of the part, such as `decoder.3`.
            besides: addresses within it, such as `cross.weights`, that do not count.
        """
        spared = {f"{place}.{each}" for each in besides}
        # A pattern may match inside any part, so it always counts: a wrong True costs only time.
        concerned = (each for each in self.wanted if "*" in each or each.startswith(f"{place}."))
        return any(each not in spared for each in concerned)

    def keep(self, address: str, value: Tensor) -> None:
        """Keep the tensor of an address."""
        self.found[address] = value

    def ends_with(self, address: str) -> bool:
        """Return whether the pass ends once the tensor of this address has been kept."""
        return False

    def unmet(self) -> list[str]:
        """Return the addresses that no pass has offered so far."""
        return sorted(
            wanted
            for wanted in self.wanted
            if not any(map(address_pattern(wanted).fullmatch, self._answers))
        )


class Enough(Exception):
    """The signal that ends a pass whose wanted tensors have all been kept."""


class Stopping(Capture):
    """A capture that raises `Enough` once all wanted tensors have been kept.

    Args:
        wanted: addresses without `*`, whose number is therefore known.
    """

    def keep(self, address: str, value: Tensor) -> None:
        """Keep the tensor of an address.

        Raises:
            Enough: after the last of the wanted addresses.
        """
        super().keep(address, value)
        # Parts keep only what is wanted, so equal sizes mean that nothing is missing.
        if len(self.found) == len(self.wanted):
            raise Enough

    def ends_with(self, address: str) -> bool:
        """Return whether this address is the last that is missing."""
        return self.wanted - self.found.keys() == {address}


def offer(capture: Capture | None, address: str, value: Tensor) -> None:
    """Keep a tensor that the pass computes anyway, if the capture wants it."""
    if capture is not None and capture.wants(address):
        capture.keep(address, value)


def address_pattern(wanted: str) -> re.Pattern[str]:
    """Return a pattern of addresses: `*` stands for one part, `**` for any number of parts."""
    # `**` first: the other way round it would be read as two single stars.
    parts = re.split(r"(\*\*|\*)", wanted)
    wild = {"*": r"[^.]*", "**": r".*"}
    return re.compile("".join(wild.get(part) or re.escape(part) for part in parts))
