"""Batches of sentences of like length, which threads take in turn and memory may split."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import TypeVar

import torch

from heedful.errors import RunError
from heedful.memory import ran_out, release

Result = TypeVar("Result")

SHORTEST = 8
"""Tokens that a shorter sentence counts as.

A step costs much the same for one word as for a few, and its logits take memory all the same.
"""


def plan_batches(
    lengths: Sequence[int], *, width: int, batch_tokens: int, batch_size: int | None
) -> list[list[int]]:
    """Cut sentences into batches, longest first; results do not depend on how they are cut.

    Args:
        lengths: tokens of each sentence.
        width: hypotheses searched for a sentence at once.
        batch_tokens: most positions of a batch: sentences × longest × width, padding counted; a
            sentence that is longer forms a batch of its own.
        batch_size: sentences in a batch; `batch_tokens` is then ignored.

    Returns:
        Numbers of the sentences of each batch.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        longest = max(lengths[order[start]], SHORTEST)
        size = batch_size or max(1, batch_tokens // (longest * width))
        batches.append(order[start : start + size])
        start += size
    return batches


class BatchQueue:
    """Batches that several threads take one by one.

    A batch that is given back because memory ran out is taken again in halves, and the batches
    after it, which are about as large, in as many parts.

    Args:
        batches: numbers of the items of each.
        warn: called with a sentence when a batch was split; Python's warnings if unset.
        place: names an item in errors.
    """

    def __init__(
        self,
        batches: Iterable[Sequence[int]],
        warn: Callable[[str], None] | None = None,
        place: Callable[[int], str] = lambda number: f"item {number + 1}",
    ) -> None:
        self._waiting = deque((list(batch), 1) for batch in batches)  # and parts it was cut into
        self._parts = 1
        self._warn = warn
        self._place = place
        self._lock = threading.Lock()

    def take(self) -> tuple[list[int], int] | None:
        """Take the next batch and the number of parts it was cut into; None when all are taken."""
        with self._lock:
            if not self._waiting:
                return None
            numbers, parts = self._waiting.popleft()
            if parts < self._parts:
                size = -(-len(numbers) * parts // self._parts)
                rest = [numbers[i : i + size] for i in range(size, len(numbers), size)]
                self._waiting.extendleft((part, self._parts) for part in reversed(rest))
                numbers, parts = numbers[:size], self._parts
            return numbers, parts

    def give_back(self, numbers: list[int], parts: int) -> None:
        """Return a batch that memory did not suffice for.

        Raises:
            RunError: when it is a single item.
        """
        release()
        if len(numbers) == 1:
            raise RunError(
                "There is not enough memory for one text by itself",
                where=self._place(numbers[0]),
                remedy="Give it in parts, or take a smaller beam or model",
            )
        with self._lock:
            self._waiting.appendleft((numbers, parts))
            self._parts = max(self._parts, 2 * parts)
        text = (
            f"Out of memory with {len(numbers)} items at once: the batch was split, and later ones "
            "will be; results stay the same. Lower the batch (--batch-tokens, --batch-size) to "
            "avoid it"
        )
        if self._warn is None:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        else:
            self._warn(text)


def run_batches(
    queue: BatchQueue, work: Callable[[list[int]], Result]
) -> Iterator[tuple[list[int], Result]]:
    """Compute batches until the queue is empty; those that memory runs out for, in parts.

    Args:
        queue: other threads may take from it too.
        work: computes the items of a batch.

    Raises:
        RunError: when there is not enough memory for one item.
    """
    while (batch := queue.take()) is not None:
        result = _attempt(work, batch[0])
        if result:
            yield batch[0], result[0]
        else:
            queue.give_back(*batch)


def split_on_oom(
    batches: Iterable[Sequence[int]],
    work: Callable[[list[int]], Result],
    warn: Callable[[str], None] | None = None,
    place: Callable[[int], str] = lambda number: f"item {number + 1}",
) -> Iterator[tuple[list[int], Result]]:
    """Compute batches in order, in this thread; arguments as for `BatchQueue` and `run_batches`."""
    return run_batches(BatchQueue(batches, warn, place), work)


def _attempt(work: Callable[[list[int]], Result], numbers: list[int]) -> tuple[Result] | None:
    """Return the result in a tuple; None when memory ran out.

    The error ends here, as it holds the tensors of the failed pass.
    """
    try:
        return (work(numbers),)
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        return None


MOST_AT_ONCE = 4
"""Batches at once: each needs memory of its own."""

_SWITCH = 5e-5
"""Seconds after which a thread that comes back from a long operation takes Python's lock from one
that makes many short ones; by default it waits a hundred times as long, which is a whole step."""


def batches_at_once(device: torch.device, batches: int) -> int:
    """The number of batches that are worth translating at once.

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
    """Read several streams at once; yield their results in the order of arrival.

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
