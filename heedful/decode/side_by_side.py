"""Batches translated side by side, each by its own share of a processor's threads.

A decoding step is hundreds of small operations, and threads that share each of them wait for each
other at the end of each. Two threads do twice as much with a batch of their own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

Batch = TypeVar("Batch")
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


def side_by_side(
    batches: Sequence[Batch],
    work: Callable[[Batch], Result],
    count: int,
    within: Callable[[], AbstractContextManager[object]],
) -> Iterator[Result]:
    """What comes of each batch, in their order.

    Args:
        batches: what to work on.
        work: on one of them.
        count: how many at once; 1 works in this thread.
        within: a context that holds for one thread alone, such as autocast, for each further one.
    """
    if count == 1:
        yield from map(work, batches)
        return
    threads, interval = torch.get_num_threads(), sys.getswitchinterval()

    ended = threading.Event()

    def run(batch: Batch) -> Result:
        if ended.is_set():
            raise CancelledError
        torch.set_num_threads(threads // count)  # those of this thread
        try:
            with within():
                return work(batch)
        except BaseException:
            ended.set()  # what was not begun is not begun any more
            raise

    sys.setswitchinterval(_SWITCH)
    pool = ThreadPoolExecutor(count, thread_name_prefix="batch")
    try:
        for future in [pool.submit(run, batch) for batch in batches]:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
        sys.setswitchinterval(interval)
