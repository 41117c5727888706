"""Batches translated side by side, each by its own share of a processor's threads.

A decoding step is hundreds of small operations, and threads that share each of them wait for each
other at the end of each. Two threads do twice as much with a batch of their own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import TypeVar

import torch

Result = TypeVar("Result")

MOST_AT_ONCE = 4
"""Batches at once: each needs memory of its own."""

_SWITCH = 5e-5
"""Seconds after which a thread that comes back from a long operation takes Python's lock from one
that makes many short ones; by default it waits a hundred times as long, which is a whole step."""


def batches_at_once(device: torch.device, batches: int) -> int:
    """How many batches are worth translating at once.

    On an accelerator one; nor are there more threads made for who runs in a thread already.

    Args:
        device: where the model is.
        batches: how many there are.
    """
    if device.type != "cpu" or threading.current_thread() is not threading.main_thread():
        return 1
    return max(1, min(MOST_AT_ONCE, torch.get_num_threads(), batches))


def in_threads(
    stream: Callable[[], Iterator[Result]],
    count: int,
    within: Callable[[], AbstractContextManager[object]],
) -> Iterator[Result]:
    """What comes of several streams at once, as it comes.

    Args:
        stream: makes one of them, in the thread that reads it; they share what is to be done.
        count: how many; 1 works in this thread.
        within: a context that holds for one thread alone, such as autocast, for each further one.
    """
    if count == 1:
        yield from stream()
        return
    threads, interval = torch.get_num_threads(), sys.getswitchinterval()
    come: SimpleQueue[tuple[Result] | BaseException | None] = SimpleQueue()
    ended = threading.Event()

    def run() -> None:
        torch.set_num_threads(threads // count)  # those of this thread
        try:
            with within():
                for result in stream():
                    come.put((result,))
                    if ended.is_set():
                        break
            come.put(None)
        except BaseException as error:
            ended.set()
            come.put(error)

    sys.setswitchinterval(_SWITCH)
    pool = ThreadPoolExecutor(count, thread_name_prefix="batch")
    try:
        for _ in range(count):
            pool.submit(run)
        for _ in range(count):
            while (one := come.get()) is not None:
                if isinstance(one, BaseException):
                    raise one
                yield one[0]
    finally:
        ended.set()  # what was not begun is not begun any more
        pool.shutdown()
        torch.set_num_threads(threads)
        sys.setswitchinterval(interval)
