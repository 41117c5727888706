"""Results of an inspection: frozen dataclasses of arrays, numbers and names that become JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class Result:
    """A dataclass of results.

    Attributes:
        left_out: names of fields that are too large for JSON.
    """

    left_out: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON data: arrays and tuples as lists, results as objects."""
        fields = vars(self).items()
        return {name: as_json(value) for name, value in fields if name not in self.left_out}


def as_json(value: Any) -> Any:
    """Arrays, collections, results and what they hold as JSON data."""
    if hasattr(value, "plain"):
        return value.plain()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, frozenset):
        return as_json(sorted(value))
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return value
