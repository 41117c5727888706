"""Processes that serve: a parent that keeps workers alive, and what each worker does.

SIGHUP replaces the workers one after the other, each by a new one that has loaded its models: so
models are renewed without losing a request. A worker that dies is replaced. SIGTERM and Ctrl-C stop
the server when what was asked has been answered.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.supervisors.multiprocess import Multiprocess

from heedful.apps.serve.connection import Connection
from heedful.apps.serve.server_settings import ServerSettings
from heedful.errors import RunError, UserError

HEALTH_SECONDS = 120
"""A worker that gives no sign of life for so long is replaced; loading may take as long, too."""

_FOLDER_OF_COUNTS = "PROMETHEUS_MULTIPROC_DIR"


class Worker:
    """Makes the application of a worker process.

    Args:
        settings: of the server.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings

    def __call__(self) -> object:
        """Load the models and build the application; uvicorn calls it.

        A person's mistake is said in words, and stops the server.
        """
        from heedful.apps.serve.worker_app import build_worker

        try:
            return build_worker(self.settings)
        except UserError as error:
            print(f"heedful serve: {error}", file=sys.stderr)
            sys.exit(STARTUP_FAILURE)


class Supervisor(Multiprocess):
    """The parent of the workers.

    Args:
        config: of uvicorn.
        listening: the socket that workers share.
        ready: called once when all workers serve.
        shared: folder in which they share weights; None for one worker.
    """

    def __init__(
        self,
        config: Config,
        listening: socket.socket,
        ready: Callable[[], None],
        shared: Path | None,
    ) -> None:
        super().__init__(config, [listening])
        self._ready: Callable[[], None] | None = ready
        self._shared = shared

    @property
    def has_failed(self) -> bool:
        """True if a worker could not start."""
        return any(process.exitcode == STARTUP_FAILURE for process in self.processes)

    def init_processes(self) -> None:
        """Start the workers."""
        super().init_processes()
        self._leave_ends()

    def restart_all(self) -> None:
        """Replace the workers, then remove weights that the new ones do not use."""
        start = time.time()
        super().restart_all()
        for file in [] if self._shared is None else self._shared.iterdir():
            if file.stat().st_mtime < start:  # who still maps it keeps it
                file.unlink(missing_ok=True)

    def keep_subprocess_alive(self) -> None:
        """Replace dead workers; say once that all serve."""
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        self._leave_ends()
        gone = before - {process.pid for process in self.processes}
        if gone and _FOLDER_OF_COUNTS in os.environ:
            from prometheus_client.multiprocess import mark_process_dead

            for pid in gone:
                mark_process_dead(pid)  # type: ignore[no-untyped-call]
        if self._ready is not None and all(p.is_ready(timeout=1) for p in self.processes):
            self._ready()
            self._ready = None

    def _leave_ends(self) -> None:
        """Close the parent's copies of the workers' ends of pipes.

        Otherwise it would wait for an answer of a worker that has died until its time is over.
        """
        for process in self.processes:
            process.child_conn.close()


def serve(settings: ServerSettings, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal stops it.

    Args:
        settings: of the server.
        listening: from `heedful.listening.listen`.
        ready: called once when requests are answered.

    Raises:
        RunError: when a worker could not start; it has said why.
    """
    with tempfile.TemporaryDirectory(prefix="heedful-serve-") as name:
        counts, shared, files = (Path(name, part) for part in ("counts", "weights", "files"))
        files.mkdir()
        if settings.workers > 1:
            counts.mkdir()
            os.environ[_FOLDER_OF_COUNTS] = str(counts)
            shared.mkdir()
        own = replace(settings, files=files, shared=shared if settings.workers > 1 else None)
        config = Config(
            Worker(own),
            factory=True,
            workers=settings.workers,
            loop="heedful.apps.serve.connection:SharingLoop" if settings.workers > 1 else "auto",
            http=Connection,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(settings.limits.seconds) + 5,
            timeout_worker_healthcheck=HEALTH_SECONDS,
        )
        supervisor = Supervisor(config, listening, ready, own.shared)
        supervisor.run()
        os.environ.pop(_FOLDER_OF_COUNTS, None)
    if supervisor.has_failed:
        raise RunError("The server could not start", remedy="The lines above say why")
