"""Random seeds as a pure function of where a run is, so that no random state has to be carried."""

from __future__ import annotations

import hashlib


def mix(*parts: int) -> int:
    """A seed that depends on all parts and their order, in [0, 2**63).

    Args:
        parts: for instance the run's seed, the step and the micro-batch.
    """
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
