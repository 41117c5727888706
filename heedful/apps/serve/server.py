"""Processes of a server: a parent, which keeps the workers alive, and the workers.

SIGHUP replaces the workers one after the other, each when its successor has loaded the models, so
that models are updated without losing a request. A dead worker is replaced. SIGTERM and Ctrl-C stop
the server: waiting connections are accepted, later ones are refused, and open requests are
answered. Signals go to the parent alone, which controls its workers.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import connection, parent_process
from pathlib import Path

from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.supervisors.multiprocess import Multiprocess

from heedful.apps.serve.connection import Connection
from heedful.apps.serve.drain import empty_queue
from heedful.apps.serve.server_settings import ServerSettings
from heedful.errors import RunError, UserError, show_warning

HEALTH_SECONDS = 120
"""Seconds without a sign of life after which a worker is replaced; also the limit of loading."""

_FOLDER_OF_COUNTS = "PROMETHEUS_MULTIPROC_DIR"


def build(settings: ServerSettings, failure: Path) -> object:
    """Load the models and build the application of a worker process; uvicorn calls it.

    A user error is printed without traceback, and stops the server.

    Args:
        settings: settings of the server.
        failure: file for the exit status of a user error.
    """
    from heedful.apps.serve.worker_app import build_worker

    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C of a terminal goes to a whole process group
        threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.showwarning = show_warning  # the command's own is not that of a process it starts
    try:
        return build_worker(settings)
    except UserError as error:
        print(f"heedful serve: {error}", file=sys.stderr)
        # The exit status of a process that failed is uvicorn's, which stops the others by it.
        failure.write_text(str(error.exit_status), encoding="utf-8")
        sys.exit(STARTUP_FAILURE)


class Supervisor(Multiprocess):
    """The parent of the workers.

    Args:
        config: uvicorn's configuration.
        listening: listening socket, which workers share.
        ready: function called once, when all workers serve.
        shared: folder in which workers share weights; None for one worker.
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
        """Replace the workers, then remove weights that no new worker uses."""
        start = time.time()
        super().restart_all()
        for file in [] if self._shared is None else self._shared.iterdir():
            if file.stat().st_mtime < start:  # a process that maps the file can still read it
                file.unlink(missing_ok=True)

    def keep_subprocess_alive(self) -> None:
        """Replace dead workers; call `ready` once when all serve."""
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

    def terminate_all(self) -> None:
        """Stop the workers after they have accepted all waiting connections."""
        for listening in self.sockets:
            empty_queue(listening)
        super().terminate_all()
        for listening in self.sockets:
            listening.close()

    def join_all(self) -> None:
        """Wait for the workers to end; a second Ctrl-C ends them with requests unanswered."""
        while running := [each for each in self.processes if each.process.is_alive()]:
            running[0].process.join(0.2)
            if signal.SIGINT in self.signal_queue:
                self.signal_queue.clear()
                for process in running:
                    assert process.pid is not None
                    os.kill(process.pid, signal.SIGINT)

    def _leave_ends(self) -> None:
        """Close the parent's copies of the workers' ends of pipes.

        Otherwise the parent would wait for a dead worker's answer until the time limit.
        """
        for process in self.processes:
            process.child_conn.close()


def _end_with_parent() -> None:
    """Stop this worker when its parent has died, which would otherwise hold the port for ever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def serve(settings: ServerSettings, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal stops it.

    Args:
        settings: settings of the server.
        listening: listening socket, from `heedful.apps.sockets.listen`.
        ready: function called once when requests are answered.

    Raises:
        UserError: when a worker could not start, after the worker has printed the reason; its exit
            status is that of the reason.
    """
    with tempfile.TemporaryDirectory(prefix="heedful-serve-") as name:
        counts, shared, files, jobs, failure = (
            Path(name, part) for part in ("counts", "weights", "files", "jobs", "failure")
        )
        files.mkdir()
        jobs.mkdir()
        if settings.workers > 1:
            counts.mkdir()
            os.environ[_FOLDER_OF_COUNTS] = str(counts)
            shared.mkdir()
        own = replace(
            settings,
            files=files,
            jobs=settings.jobs or jobs,
            shared=shared if settings.workers > 1 else None,
            rates=Path(name, "rates.db"),
        )
        config = Config(
            partial(build, own, failure),
            factory=True,
            workers=settings.workers,
            loop="heedful.apps.serve.connection:SharingLoop" if settings.workers > 1 else "auto",
            http=Connection,
            ws="none",
            proxy_headers=False,  # see `ForwardedHeaders`
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
            # Mistakes that only the models themselves show, such as one that is no translator.
            is_mistake = failure.exists() and int(failure.read_text()) == UserError.exit_status
            kind = UserError if is_mistake else RunError
            raise kind("The server could not start", remedy="The lines above give the reason")
