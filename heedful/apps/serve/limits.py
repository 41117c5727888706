"""Limits of requests: of what they ask, and of how they come."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The most that a request may ask.

    Args:
        texts: of a request.
        characters: of all texts of a request.
        seconds: that a request may take; it is given up then.
        beam: hypotheses of a text, samples and alternatives too.
        tokens: that a continuation may have.
    """

    texts: int = 1000
    characters: int = 100_000
    seconds: float = 60.0
    beam: int = 16
    tokens: int = 2048


@dataclass(frozen=True)
class GateSettings:
    """Limits of requests.

    Args:
        host: the address that the server listens on.
        body: most bytes of a body.
        seconds: that a body may take to come.
        origins: of pages of other sites whose scripts may ask; * is all.
    """

    host: str = "127.0.0.1"
    body: int = 2 << 20
    seconds: float = 20.0
    origins: Collection[str] = ()
