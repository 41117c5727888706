"""The parts of which the application of a server is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from heedful.apps.serve.clients import Clients
from heedful.apps.serve.file_store import FileStore
from heedful.apps.serve.gate import AccessLog
from heedful.apps.serve.jobs import Jobs
from heedful.apps.serve.limits import GateSettings
from heedful.apps.serve.metrics import Metrics
from heedful.apps.serve.server_settings import ServerSettings
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
        jobs: translations that outlast a request; None without them.
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


def open_parts(settings: ServerSettings, service: Service, metrics: Metrics) -> ServerParts:
    """Open the files of a worker.

    Raises:
        ConfigError: when one cannot be used.
    """
    log = settings.access_log
    return ServerParts(
        service=service,
        metrics=metrics,
        gate=settings.gate,
        clients=Clients.open(settings.keys, settings.rates, settings.allowance),
        log=None if log is None else AccessLog.open(log),
        files=None if settings.files is None else FileStore(settings.files),
        jobs=None if settings.jobs is None else Jobs(settings.jobs),
        suggestions=settings.suggestions,
    )
