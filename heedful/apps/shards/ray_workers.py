"""Shards translated by actors of Ray Data, on one machine or many.

Ray Data gives shards to a pool of actors, restarts the actors of lost machines and gives their
shards to others. It may even repeat a finished shard whose result was lost; `ShardWorker` then
finds its record. So a shard is published exactly once, although Ray runs it at least once.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heedful.apps.shards.shard_records import ShardRecord
from heedful.apps.shards.shard_translation import ShardJob, ShardOutcome, ShardWorker
from heedful.errors import RunError, UserError

_STORE_BYTES = 128 * 2**20
"""Bytes of Ray's object store on this machine, through which only names and counts pass."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class RayPool:
    """Size and resources of the pool of actors.

    Args:
        address: address of a cluster, or `auto` for the cluster of this machine; if unset, Ray is
            started on this machine alone.
        actors: number of actors; as many as the cores allow if unset.
        threads: cores of each actor.
        gpus: GPUs of each actor; a fraction where several share one.
    """

    address: str | None = None
    actors: int | None = None
    threads: int = 1
    gpus: float = 0.0


def translate_on_ray(
    job: ShardJob, shards: Sequence[Path], pool: RayPool
) -> Iterator[ShardOutcome]:
    """Translate shards on a cluster.

    Args:
        job: job of the run.
        shards: paths of the shards to translate.
        pool: size of the pool of actors.

    Yields:
        The outcome of each shard, in the order in which shards are finished.

    Raises:
        UserError: when the cluster is too small for the pool.
        RunError: when there is no cluster, or Ray gives up.
    """
    with _connected(pool):
        import ray
        from ray.data import ActorPoolStrategy, DataContext

        logging.getLogger("ray.data").setLevel(
            logging.ERROR
        )  # the import of Ray Data sets it to INFO
        size = min(_pool_size(pool, ray.cluster_resources()), len(shards))
        context = DataContext.get_current()
        context.enable_progress_bars = False
        paths = ray.data.from_items(
            [{"path": str(shard)} for shard in shards], override_num_blocks=len(shards)
        )
        outcomes = paths.map_batches(
            _ShardActor,
            fn_constructor_args=(job,),
            batch_size=1,
            # One shard at a time per actor: a shard queued at a busy actor could run on a free
            # actor.
            compute=ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
            num_cpus=pool.threads,
            num_gpus=pool.gpus or None,
        )
        try:
            for row in outcomes.iter_rows():
                yield _outcome(row["outcome"])
        except (ray.exceptions.RayError, OSError) as error:
            raise RunError(
                f"Ray gave up: {_last_line(error)}",
                remedy="Repeat the command; finished shards are kept",
            ) from error


class _ShardActor:
    """A worker in a process of Ray.

    Args:
        job: job of the run.
    """

    def __init__(self, job: ShardJob) -> None:
        os.environ["OMP_NUM_THREADS"] = str(
            job.threads
        )  # variables are read when kernels or torch are loaded
        if job.cwd.is_dir():  # keeps the meaning of relative paths of the command line
            os.chdir(job.cwd)
        self._worker: ShardWorker | None = None
        self._reason = ""
        try:
            self._worker = ShardWorker(job)
        except UserError as error:  # Ray would restart the actor for ever and hide the reason
            self._reason = f"{error} (on the machine {os.uname().nodename})"

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Translate the shards at the paths of a batch; return outcomes as JSON."""
        outcomes = [self._outcome(Path(path)) for path in batch["path"]]
        return {"outcome": [json.dumps(asdict(outcome)) for outcome in outcomes]}

    def _outcome(self, shard: Path) -> ShardOutcome:
        if self._worker is None:
            return ShardOutcome(shard.name, reason=self._reason, is_fatal=True)
        return self._worker.translate(shard)


@contextmanager
def _connected(pool: RayPool) -> Iterator[None]:
    """Start Ray or join a cluster, without usage reports, dashboard and log lines."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    host = _host(pool.address)
    if host in _LOOPBACK:
        # Ray reads this variable once and then uses the loopback address, as on Windows and macOS.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    options: dict[str, Any] = {"address": pool.address}
    if pool.address is None:
        cores = (pool.actors or max(1, (os.cpu_count() or 1) // pool.threads)) * pool.threads
        options = {
            "address": "local",
            "num_cpus": cores,
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
        }
    is_debugging = bool(os.environ.get("HEEDFUL_DEBUG"))
    if not is_debugging:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    with ExitStack() as stack:
        # Ray prints its daemons' messages to standard output, which is for JSON.
        quiet = sys.stderr if is_debugging else stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(redirect_stdout(quiet))
        try:
            with nullcontext() if is_debugging else _silenced():
                ray.init(**options, log_to_driver=is_debugging, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _unreachable(error, pool.address) from error
        stack.callback(ray.shutdown)
        yield


@contextmanager
def _silenced() -> Iterator[None]:
    """Discard standard error of native code, where Ray reports its usage settings."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _host(address: str | None) -> str | None:
    """Return the host of a reachable cluster; the loopback address if Ray is to start here.

    Raises:
        RunError: when nothing answers at the address; Ray itself would wait for minutes.
    """
    if address in (None, "auto"):
        return None if address else "127.0.0.1"
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT_SECONDS):
            return host
    except (OSError, ValueError) as error:
        raise _unreachable(error, address) from None


def _unreachable(error: Exception, address: str | None) -> RunError:
    return RunError(
        f"Ray cannot be reached: {_last_line(error)}",
        where=f"--address {address}" if address else None,
        remedy="Give the HOST:PORT that `ray start --head` printed, or leave --address out to use "
        "this machine alone",
    )


def _pool_size(pool: RayPool, resources: dict[str, float]) -> int:
    """Return the number of actors, which must fit the cluster: Ray would wait for ever."""
    most = int(resources.get("CPU", 0.0) // pool.threads)
    if pool.gpus:
        most = min(most, int(resources.get("GPU", 0.0) / pool.gpus))
    size = pool.actors or most
    if not 1 <= size <= most:
        raise UserError(
            f"The cluster has {resources.get('CPU', 0.0):g} cores and "
            f"{resources.get('GPU', 0.0):g} GPUs: enough for {most} actors, and not for {size}"
            if size
            else "The cluster has no room for one actor",
            remedy="Lower --actors, --threads or --actor-gpus, or add machines",
        )
    return size


def _outcome(text: str) -> ShardOutcome:
    fields = json.loads(text)
    record = fields["record"]
    return ShardOutcome(
        **fields
        | {
            "record": None if record is None else ShardRecord(**record),
            "warnings": tuple(fields["warnings"]),
        }
    )


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1].rstrip(".")
