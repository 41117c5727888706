"""Blocks made ahead of training: by a thread, or by processes that tokenise.

Each process gets the planner once, and the places of blocks through a pipe. When the training
process is killed, the pipe is closed and the workers end, too.
"""

from __future__ import annotations

import atexit
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from heedful.data.shard_blocks import BlockPlace, Planner
from heedful.errors import RunError, UserError

T = TypeVar("T")


class BlocksAhead(Generic[T]):
    """The blocks of a run, prefetched: the next ones are made while one is used.

    Args:
        planner: planner that makes a block.
        following: function from a place to the next place.
        workers: number of processes, each making one block ahead; 0 for a thread.
    """

    def __init__(
        self,
        planner: Planner[T],
        following: Callable[[BlockPlace], BlockPlace],
        workers: int,
    ) -> None:
        self._planner = planner
        self._following = following
        self._count = workers
        self._workers: list[_Thread[T] | _Process[T]] = []
        self._asked: dict[BlockPlace, _Thread[T] | _Process[T]] = {}

    def take(self, place: BlockPlace) -> T:
        """Return the block of a place, and request the ones that follow.

        Raises:
            UserError: when the planner cannot make the block.
            RunError: when a worker process has ended.
        """
        if not self._workers:
            self._start()
        if place not in self._asked:
            # The run continued at another place of the data, so blocks made ahead are not needed.
            self._asked.clear()
            self._ask(place)
        worker = self._asked.pop(place)
        # A worker returns blocks in order, so outdated ones are taken and dropped.
        while worker.waiting[0] != place:
            worker.next()
        block = worker.next()
        # One block ahead for each worker bounds the memory of blocks that wait.
        for _ in self._workers:
            place = self._following(place)
            if place not in self._asked:
                self._ask(place)
        return block

    def close(self) -> None:
        """End the workers; the next call of `take` starts new ones."""
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._asked.clear()

    def _start(self) -> None:
        # At exit multiprocessing sends SIGTERM to daemons and waits for them. These workers block
        # the signal, so they are closed before.
        atexit.register(self.close)
        if self._count == 0:
            self._workers.append(_Thread(self._planner))
        for _ in range(self._count):
            self._workers.append(_Process(self._planner))

    def _ask(self, place: BlockPlace) -> None:
        worker = min(self._workers, key=lambda each: len(each.waiting))
        worker.ask(place)
        self._asked[place] = worker


class _Thread(Generic[T]):
    """A thread that makes blocks one after the other, in the order of the requests.

    Tokenizers release the interpreter's lock meanwhile.
    """

    def __init__(self, planner: Planner[T]) -> None:
        self.waiting: deque[BlockPlace] = deque()
        self._planner = planner
        self._pool = ThreadPoolExecutor(1, "blocks")
        self._futures: deque[Future[T]] = deque()

    def ask(self, place: BlockPlace) -> None:
        self.waiting.append(place)
        self._futures.append(self._pool.submit(self._planner.plan, place))

    def next(self) -> T:
        self.waiting.popleft()
        return self._futures.popleft().result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class _Process(Generic[T]):
    """A process that makes blocks one after the other, in the order of the requests."""

    def __init__(self, planner: Planner[T]) -> None:
        self.waiting: deque[BlockPlace] = deque()
        context = get_context("spawn")  # a fork of a process with threads may hang
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, planner), daemon=True)
        with _signals_blocked():
            self._process.start()
        other.close()

    def ask(self, place: BlockPlace) -> None:
        self.waiting.append(place)
        try:
            self._connection.send(place)
        except OSError:
            raise self._ended() from None

    def next(self) -> T:
        self.waiting.popleft()
        try:
            result, error = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(error, UserError):
            raise error
        if error is not None:
            raise RuntimeError(f"In a process that tokenises:\n{error}")
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        self._connection.close()
        self._process.kill()  # it holds nothing of value, and may be in the middle of a block
        self._process.join()

    def _ended(self) -> RunError:
        self._process.join(5)
        status = self._process.exitcode
        how = f"by signal {-status}" if status is not None and status < 0 else f"status {status}"
        return RunError(
            f"A process that tokenises has ended ({how})",
            where="data.workers",
            remedy="If memory was short, lower data.workers or data.block_mb; else try again",
        )


def _work(connection: Connection, planner: Planner[Any]) -> None:
    """Make the blocks whose places come through a pipe, until the pipe is closed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes run in parallel already
    while True:
        try:
            place = connection.recv()
        except (EOFError, OSError):
            return
        result = None
        error: UserError | str | None = None
        try:
            result = planner.plan(place)
        except UserError as mistake:
            error = mistake
        # The traceback is sent as text: an exception with arguments of its own may not survive
        # pickling.
        except Exception:
            error = traceback.format_exc()
        try:
            connection.send((result, error))
        except OSError:
            return


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A context in which a started process inherits blocked Ctrl-C and SIGTERM.

    These signals reach the whole process group, and the training process still has an update to
    finish.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
