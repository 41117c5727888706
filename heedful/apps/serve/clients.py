"""Clients that a server admits: by their keys, and within their allowances."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from starlette.requests import Request

from heedful.apps.serve.exchange import RefusedRequest
from heedful.apps.serve.keys import Keys
from heedful.apps.serve.limits import Allowance
from heedful.apps.serve.rates import Rates


@dataclass(frozen=True)
class Clients:
    """The clients of a server.

    Args:
        keys: keys of clients; None to serve anybody.
        rates: use of their allowances; None without limits.
    """

    keys: Keys | None = None
    rates: Rates | None = None

    @classmethod
    def open(cls, keys: Path | None, rates: Path | None, usual: Allowance) -> Self:
        """Read the keys of clients, and open the file of their use.

        Args:
            keys: file of keys; None to serve anybody.
            rates: file that workers share; None without limits.
            usual: allowance of a client without one of its own.

        Raises:
            ConfigError: as for `Keys.read`.
        """
        known = None if keys is None else Keys.read(keys)
        own = {} if known is None else known.allowances
        return cls(known, None if rates is None else Rates(rates, usual, own))

    def admit(self, request: Request, values: Mapping[str, Any], no_key: int) -> None:
        """Let a request pass, and note the owner of its key.

        Args:
            request: request of a client.
            values: its values.
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
        # Asking for the state of a job, or for a list, costs nothing.
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
    """Return an address, or for IPv6 its network of 2^64 addresses, of which a client has many."""
    with suppress(ValueError):
        if ipaddress.ip_address(address).version == 6:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return address


def count_characters(value: Any) -> int:
    """Return the number of characters of all texts in the values of a request, or of its files."""
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
