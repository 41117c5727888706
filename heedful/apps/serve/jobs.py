"""Translations of documents that outlast a request, in a folder that the workers share.

A job is a folder with the order, the document, the progress, and finally the result or an error. A
worker claims a waiting job by a lock. If the worker ends, the system releases the lock, and another
worker begins the job again.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shutil
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from anyio import to_thread

from heedful.apps.serve.document_translation import translate_documents
from heedful.apps.serve.exchange import Body, RefusedRequest, refusal_of
from heedful.apps.serve.scheduler import QueueFull
from heedful.apps.serve.service import Service
from heedful.durable import try_lock, whole, whole_folder

IDLE_SECONDS = 1.0
"""Seconds after which an idle worker looks for jobs that other workers have added."""

RUNNERS = 2
"""Number of jobs that a worker computes at a time, so that a short job need not wait for a long
one."""

_ID = re.compile(r"[\w-]{32}")
_ORDER, _SOURCE, _PROGRESS = "order.json", "source", "progress.json"
_RESULT, _ERROR, _LOCK = "result", "error.json", "lock"


class Order(Body):
    """The stored request for the translation of a document.

    Args:
        name: name of the document.
        format: format of the document.
        route: names of the models, in order.
        language: language of the document.
        owner: owner of the key of the request; None without keys.
    """

    name: str
    format: str
    route: tuple[str, ...]
    language: str
    owner: str | None = None


@dataclass(frozen=True)
class Jobs:
    """The jobs in a folder.

    Args:
        folder: folder that only this server reads and writes.
        seconds: time for which a finished job is kept.
        most: maximum number of unfinished jobs of an owner, or of all clients without keys.
        most_bytes: maximum size of all jobs in bytes.
        added: event that is set when a client has added a job in this process.
    """

    folder: Path
    seconds: float = 86_400.0
    most: int = 20
    most_bytes: int = 1 << 30
    added: asyncio.Event = field(default_factory=asyncio.Event)

    def create(self, order: Order, content: bytes) -> str:
        """Add a job, and return its id.

        Raises:
            RefusedRequest: when there are too many jobs.
        """
        size = len(content)
        unfinished = 0
        for folder in self._folders():
            if _is_finished(folder) and _finished_at(folder) < time.time() - self.seconds:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            with suppress(OSError):  # another process deletes it
                size += sum(file.stat().st_size for file in folder.iterdir())
                unfinished += not _is_finished(folder) and _order(folder).owner == order.owner
        if unfinished >= self.most or size > self.most_bytes:
            what = f"{self.most} jobs wait" if unfinished >= self.most else "Jobs fill the disk"
            raise RefusedRequest(
                429, f"{what}: fetch and delete finished ones first", "jobs", retry_after=60
            )
        id = secrets.token_urlsafe(24)
        with whole_folder(self.folder / id) as folder:
            (folder / _SOURCE).write_bytes(content)
            (folder / _ORDER).write_text(order.model_dump_json(), encoding="utf-8")
        return id

    def find(self, id: str, owner: str | None) -> Path:
        """Return the folder of a job.

        Raises:
            RefusedRequest: when the owner has no such job.
        """
        folder = self.folder / id
        with suppress(OSError):
            if _ID.fullmatch(id) and _order(folder).owner == owner:
                return folder
        raise RefusedRequest(404, "There is no such job, or it has expired", "missing")

    def state(self, folder: Path) -> dict[str, Any]:
        """Return the state of a job for its client."""
        state: dict[str, Any] = {"id": folder.name, "name": _order(folder).name}
        state |= {"status": "waiting", "done": 0, "total": None, "error": None}
        for file, status in ((_PROGRESS, "running"), (_ERROR, "failed")):
            with suppress(FileNotFoundError):
                state |= {"status": status, **json.loads((folder / file).read_bytes())}
        return state | ({"status": "done"} if (folder / _RESULT).exists() else {})

    def result(self, folder: Path) -> bytes | None:
        """Return the translated document; None if it is not finished."""
        with suppress(FileNotFoundError):
            return (folder / _RESULT).read_bytes()
        return None

    def claim(self) -> Claim | None:
        """Claim the oldest waiting job; None if there is none."""
        waiting = [folder for folder in self._folders() if not _is_finished(folder)]
        for folder in sorted(waiting, key=_ordered_at):
            with suppress(OSError):
                lock = (folder / _LOCK).open("wb")
                if try_lock(lock.fileno()) and not _is_finished(folder):
                    return Claim(folder, lock)
                lock.close()
        return None

    def _folders(self) -> Iterator[Path]:
        return (folder for folder in self.folder.iterdir() if _ID.fullmatch(folder.name))


@dataclass(frozen=True)
class Claim:
    """A job that this worker computes.

    Args:
        folder: folder of the job.
        lock: locked file.
    """

    folder: Path
    lock: BinaryIO

    async def run(self, service: Service) -> None:
        """Compute the job, unless its client deletes it in the meantime."""
        try:
            await self._translate(service)
        except (FileNotFoundError, QueueFull):  # deleted, or retried later
            return
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                traceback.print_exception(error)
            words = "Internal error of the server" if refusal is None else refusal.message
            with suppress(FileNotFoundError):
                self._write(_ERROR, json.dumps({"error": words}).encode())
        finally:
            self.lock.close()

    async def _translate(self, service: Service) -> None:
        order = _order(self.folder)

        def advance(done: int, total: int) -> None:
            self._write(_PROGRESS, json.dumps({"done": done, "total": total}).encode())

        ((result,),) = await translate_documents(
            service,
            [(self.folder / _SOURCE).read_bytes()],
            order.format,
            order.route,
            settings=service.search.model_copy(update={"n_best": 1}),
            language=order.language,
            name=order.name,
            advance=advance,
        )
        await to_thread.run_sync(self._write, _RESULT, result.data)

    def _write(self, name: str, content: bytes) -> None:
        with whole(self.folder / name) as file:
            file.write(content)


async def run_jobs(jobs: Jobs, service: Service) -> None:
    """Compute waiting jobs one after the other until this task is cancelled.

    Args:
        jobs: jobs of all workers.
        service: service of this worker.
    """
    while True:
        claim = await to_thread.run_sync(jobs.claim)
        if claim is not None:
            await claim.run(service)
            continue
        jobs.added.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS):
                await jobs.added.wait()


def _order(folder: Path) -> Order:
    return Order.model_validate_json((folder / _ORDER).read_bytes())


def _is_finished(folder: Path) -> bool:
    return (folder / _RESULT).exists() or (folder / _ERROR).exists()


def _finished_at(folder: Path) -> float:
    times = [file.stat().st_mtime for file in folder.glob("*") if file.name in (_RESULT, _ERROR)]
    return max(times, default=time.time())


def _ordered_at(folder: Path) -> float:
    with suppress(OSError):
        return (folder / _ORDER).stat().st_mtime
    return 0.0
