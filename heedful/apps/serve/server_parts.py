"""The parts of the application of a server, and the base class of its interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from heedful.apps.serve.clients import Clients
from heedful.apps.serve.exchange import Endpoint, RefusedRequest
from heedful.apps.serve.file_store import FileStore
from heedful.apps.serve.gate import AccessLog
from heedful.apps.serve.jobs import Jobs
from heedful.apps.serve.metrics import Metrics
from heedful.apps.serve.server_settings import GateSettings, ServerSettings
from heedful.apps.serve.service import Service


@dataclass(frozen=True)
class ServerParts:
    """The parts of an application.

    Args:
        service: models and queue.
        metrics: metrics of this process.
        gate: limits of requests.
        clients: check of clients, which admits anybody by default.
        log: log of requests; None without one.
        files: store of translated files; None to translate no files.
        jobs: store of translations that outlast a request; None for no such translations.
        suggestions: file of suggested translations; None to take none.
    """

    service: Service
    metrics: Metrics
    gate: GateSettings
    clients: Clients = field(default_factory=Clients)
    log: AccessLog | None = None
    files: FileStore | None = None
    jobs: Jobs | None = None
    suggestions: Path | None = None

    @classmethod
    def open(cls, settings: ServerSettings, service: Service, metrics: Metrics) -> Self:
        """Open the files of a worker.

        Raises:
            ConfigError: when a file cannot be used.
        """
        log = settings.access_log
        return cls(
            service,
            metrics,
            settings.gate,
            clients=Clients.open(settings.keys, settings.rates, settings.allowance),
            log=None if log is None else AccessLog.open(log),
            files=None if settings.files is None else FileStore(settings.files),
            jobs=None if settings.jobs is None else Jobs(settings.jobs),
            suggestions=settings.suggestions,
        )

    @property
    def needs_key(self) -> bool:
        """True if clients need a key."""
        return self.clients.keys is not None


class Interface:
    """An HTTP interface: methods marked by `answers`, and a form of errors.

    Args:
        parts: parts of the server.
    """

    no_key = 403
    """HTTP status for a missing or unknown key."""

    def __init__(self, parts: ServerParts) -> None:
        self.parts = parts
        self.service = parts.service

    @staticmethod
    def error_body(refusal: RefusedRequest) -> Mapping[str, Any]:
        """Return an error with the name of the invalid value."""
        return {"error": refusal.message, "reason": refusal.reason, "where": refusal.where}

    def endpoints(self) -> list[Endpoint[Any]]:
        """Return the endpoints of the class's own methods, in their order."""
        common: dict[str, Any] = {"error": self.error_body, "no_key": self.no_key}
        return [
            Endpoint(answer=getattr(self, name), **common, **fields)
            for name, method in vars(type(self)).items()
            for fields in getattr(method, "endpoints", ())
        ]
