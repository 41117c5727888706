"""Limits of requests: of their content, and of their transport."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of the content of a request.

    Args:
        texts: maximum number of texts in a request.
        characters: maximum number of characters of all texts of a request.
        seconds: time after which a request is cancelled.
        beam: maximum number of hypotheses of a text, samples and alternatives included.
        tokens: maximum number of tokens of a continuation.
    """

    texts: int = 1000
    characters: int = 100_000
    seconds: float = 60.0
    beam: int = 16
    tokens: int = 2048


@dataclass(frozen=True)
class Allowance:
    """The use that a client may make of the server in a minute.

    Args:
        requests: number of requests; None for any.
        characters: number of characters of their texts; None for any.
    """

    requests: int | None = None
    characters: int | None = None


@dataclass(frozen=True)
class GateSettings:
    """Limits of the transport of a request.

    Args:
        host: address that the server listens on.
        body: maximum size of a body in bytes.
        file: maximum size of a body with a file in bytes.
        seconds: time in which a body must arrive, if it is small.
        origins: origins of other sites whose scripts may send requests; * for all.
        proxies: addresses and networks whose `X-Forwarded-*` headers are believed; * for all.
    """

    host: str = "127.0.0.1"
    body: int = 2 << 20
    file: int = 20 << 20
    seconds: float = 20.0
    origins: Collection[str] = ()
    proxies: Collection[str] = ()
