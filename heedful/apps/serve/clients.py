"""Clients that a server admits: by their keys, and within their allowances.

A client is the owner of a key or, on a server without keys, an address. The allowance per minute
refills evenly, by a sixtieth each second (the generic cell rate algorithm).
"""

from __future__ import annotations

import ipaddress
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from starlette.requests import Request

from heedful.apps.serve.exchange import TOO_OFTEN, RefusedRequest
from heedful.apps.serve.keys import Keys
from heedful.apps.serve.server_settings import Allowance

MINUTE = 60.0

_TABLE = (
    "CREATE TABLE IF NOT EXISTS clients (name TEXT PRIMARY KEY, requests REAL, characters REAL)"
)
_READ = "SELECT requests, characters FROM clients WHERE name = ?"
_WRITE = "INSERT OR REPLACE INTO clients VALUES (?, ?, ?)"
_FORGET = "DELETE FROM clients WHERE max(requests, characters) < ?"


@dataclass(frozen=True)
class Rates:
    """The used part of the clients' allowances, stored in a file that workers share.

    Args:
        file: path of the database.
        usual: allowance of a client without an individual one.
        own: individual allowances, by the owner of a key.
    """

    file: Path
    usual: Allowance
    own: Mapping[str, Allowance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with closing(self._open()) as database:
            database.execute(_TABLE)

    def charge(self, client: str, characters: int) -> None:
        """Count a request, unless it is refused.

        Args:
            client: name of a key's owner, or address.
            characters: characters of the request's texts.

        Raises:
            RefusedRequest: when the allowance of the client is used up.
        """
        own = self.own.get(client, Allowance())
        requests = own.requests or self.usual.requests
        most = own.characters or self.usual.characters
        if not (requests or most):
            return
        if most and characters > most:
            raise RefusedRequest(
                400, f"{characters:,} characters; at most {most:,} a minute are allowed", "invalid"
            )
        now = time.time()
        # Each stored time is when the client will have its whole allowance again.
        with closing(self._open()) as database:
            database.execute("BEGIN IMMEDIATE")  # other workers wait until this worker has written
            times = database.execute(_READ, (client,)).fetchone() or (now, now)
            costs = (MINUTE / requests if requests else 0, characters * MINUTE / (most or 1))
            first, second = (max(now, t) + c for t, c in zip(times, costs, strict=True))
            waits = (first - now - MINUTE if requests else 0, second - now - MINUTE if most else 0)
            if max(waits) <= 0:
                database.execute(_FORGET, (now,))
                database.execute(_WRITE, (client, first, second if most else now))
            database.execute("COMMIT")
        if max(waits) > 0:
            which = f"{requests:,} requests" if waits[0] > 0 else f"{most:,} characters"
            raise RefusedRequest(
                429, f"at most {which} a minute", TOO_OFTEN, retry_after=int(max(waits)) + 1
            )

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.file, isolation_level=None)
        # Counts of a minute may be lost in a crash of the system.
        database.execute("PRAGMA journal_mode = MEMORY")
        database.execute("PRAGMA synchronous = OFF")
        return database


@dataclass(frozen=True)
class Clients:
    """The clients of a server.

    Args:
        keys: keys of clients; None to serve anybody.
        rates: used part of the allowances; None without limits.
    """

    keys: Keys | None = None
    rates: Rates | None = None

    @classmethod
    def open(cls, keys: Path | None, rates: Path | None, usual: Allowance) -> Self:
        """Read the keys of clients, and open the file of allowances.

        Args:
            keys: file of keys; None to serve anybody.
            rates: file that workers share; None without limits.
            usual: allowance of a client without an individual one.

        Raises:
            ConfigError: as for `Keys.read`.
        """
        known = None if keys is None else Keys.read(keys)
        own = {} if known is None else known.allowances
        return cls(known, None if rates is None else Rates(rates, usual, own))

    def admit(self, request: Request, values: Mapping[str, Any], no_key: int) -> None:
        """Admit a request, and record the owner of its key.

        Args:
            request: request of a client.
            values: values of the request.
            no_key: HTTP status for a missing or unknown key.

        Raises:
            RefusedRequest: without a known key, or when an allowance is used up.
        """
        client = client_network(request.client.host if request.client else "")
        if self.keys is not None:
            owner = self.keys.owner(given_key(request, values))
            if owner is None:
                raise RefusedRequest(no_key, "This server requires a valid API key", "key")
            request.state.owner = client = owner
        # Requests for the state of a job or for a list are not counted.
        if self.rates is not None and request.method == "POST":
            self.rates.charge(client, count_characters(values))


def given_key(request: Request, values: Mapping[str, Any]) -> str | None:
    """Return the key of a request, from Authorization, X-API-Key or the value `api_key`."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return bearer.strip()
    key = request.headers.get("x-api-key") or values.get("api_key")
    return key if isinstance(key, str) else None


def client_network(address: str) -> str:
    """Return an address; for IPv6 its network, since a client has 2^64 addresses."""
    with suppress(ValueError):
        if ipaddress.ip_address(address).version == 6:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return address


def count_characters(value: Any) -> int:
    """Return the number of characters of all texts in a request, and the bytes of its files."""
    count, rest = 0, [value]
    while rest:
        part = rest.pop()
        if isinstance(part, str):
            count += len(part)
        elif isinstance(part, Mapping):
            rest.extend(part.values())
        elif isinstance(part, list):
            rest.extend(part)
        else:
            count += getattr(part, "size", None) or 0  # an uploaded file
    return count
