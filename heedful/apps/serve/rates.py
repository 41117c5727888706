"""Requests and characters that each client may send in a minute, counted for all workers.

A client is the owner of a key, or an address without keys. Its allowance refills evenly: whoever
has used it up may send the next request after a sixtieth of it has come back each second (the
generic cell rate algorithm).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from heedful.apps.serve.exchange import TOO_OFTEN, RefusedRequest
from heedful.apps.serve.limits import Allowance

MINUTE = 60.0

_TABLE = (
    "CREATE TABLE IF NOT EXISTS clients (name TEXT PRIMARY KEY, requests REAL, characters REAL)"
)
_READ = "SELECT requests, characters FROM clients WHERE name = ?"
_WRITE = "INSERT OR REPLACE INTO clients VALUES (?, ?, ?)"
_FORGET = "DELETE FROM clients WHERE max(requests, characters) < ?"


class Rates:
    """The use that clients have made of their allowances, in a file that workers share.

    Args:
        file: path of the database.
        usual: allowance of a client without one of its own.
        own: allowances of owners of keys.
    """

    def __init__(
        self, file: Path, usual: Allowance, own: Mapping[str, Allowance] | None = None
    ) -> None:
        self.file = file
        self.usual = usual
        self.own = own or {}
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
        # Each time is the one at which the client has its whole allowance again.
        with closing(self._open()) as database:
            database.execute("BEGIN IMMEDIATE")  # another worker waits until this one has written
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
        # The counts of a minute need not outlive a crash of the system.
        database.execute("PRAGMA journal_mode = MEMORY")
        database.execute("PRAGMA synchronous = OFF")
        return database
