"""Rotary position embedding by kernels in C."""

from __future__ import annotations

from ctypes import addressof, c_float

from heedful.nn.frequencies import frequencies, temperature
from heedful.nn.native.library import kernels
from heedful.nn.native.structures import Turns
from heedful.nn.spec import RotarySpec


class Turning:
    """What kernels turn queries and keys by, as `heedful.nn.rotary.Rotary` does.

    Args:
        head_width: E.
        spec: of the embedding.

    Raises:
        ConfigError: when the rotated width is odd or wider than a head.
    """

    def __init__(self, head_width: int, spec: RotarySpec) -> None:
        known = frequencies(head_width, spec)
        self._frequencies = (c_float * len(known))(*known)
        self._temperature = temperature(spec)
        self._neighbours = spec.layout == "pairs"

    def at(self, positions: int, rows: int) -> Turns:
        """What turns rows at their positions.

        Args:
            positions: where these begin, int64 [rows].
            rows: how many.
        """
        pairs = len(self._frequencies)
        cosine, sine = ((c_float * (rows * pairs))() for _ in range(2))
        kernels().heedful_waves(
            *(positions, rows, self._frequencies, pairs, self._temperature, cosine, sine)
        )
        turns = Turns(addressof(cosine), addressof(sine), pairs, self._neighbours)
        turns.held = cosine, sine
        return turns
