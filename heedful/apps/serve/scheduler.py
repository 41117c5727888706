"""Batches across requests: texts of many clients that wait are computed together.

A job is one text. A free thread takes the most urgent job, and jobs that can share its batch and
are nearest in length: as many as the batch has room for, but no more than the thread's share of all
jobs, which leaves work for the next thread. Short jobs overtake long ones, but only for a limited
time, so that no job starves. A job whose client has gone or whose deadline has passed is dropped
before it is computed.

Clients that were answered together send their next requests one after the other. A thread that took
the first request at once would compute a batch of one text, so it waits briefly for the others.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from heedful.errors import RunError
from heedful.pipelines.batching import SHORTEST

SECONDS_OF_A_TOKEN = 0.01
"""Seconds by which each token of a job delays its start, so that shorter jobs go first."""

MOST_OVERTAKEN = 2.0
"""Seconds after which no younger job overtakes a waiting one, however long it is."""

QUIET_SECONDS = 5.0
"""Seconds without a job after which memory is freed."""

GATHERING_SHARE = 0.05
"""Maximum wait of a thread for as many jobs as in its last batch, as a share of that batch's time.

With 64 clients and two threads, this wait and the equal shares raised the mean batch from 16 texts
to 23, and saved 13 % of the processor time of a text.
"""

MOST_GATHERING = 0.05
"""Upper bound of this wait in seconds."""

_REMEMBERED = 0.9
"""Decay of the moving average of tokens a second."""


class Workload(Protocol):
    """A model with its settings; jobs with equal workloads can share a batch."""

    @property
    def width(self) -> int:
        """The number of hypotheses of a text that are computed together."""

    def run(self, texts: Sequence[str]) -> Sequence[Any]:
        """Compute a batch: a result for each text."""


class QueueFull(Exception):
    """The queue is full.

    Args:
        retry_after: estimated seconds until the queue has room.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class DeadlinePassed(Exception):
    """A job waited longer than its deadline."""


@dataclass(frozen=True)
class ComputedBatch:
    """Size and times of a computed batch, for metrics.

    Args:
        texts: number of texts.
        tokens: number of tokens of all texts.
        seconds: seconds of computation.
        waited: seconds that the oldest job waited.
    """

    texts: int
    tokens: int
    seconds: float
    waited: float


@dataclass(eq=False)
class WaitingText:
    """A text in the queue.

    Args:
        work: model and settings.
        text: line or prompt.
        tokens: number of tokens of the text.
        deadline: time of the monotonic clock, in seconds, at which a waiting job is dropped.
    """

    work: Workload
    text: str
    tokens: int
    deadline: float = math.inf
    arrival: float = field(default_factory=time.monotonic)
    future: Future[Any] = field(default_factory=Future)

    @property
    def urgency(self) -> float:
        """The time that decides the order of jobs; the earliest goes first."""
        return self.arrival + min(self.tokens * SECONDS_OF_A_TOKEN, MOST_OVERTAKEN)


class Scheduler:
    """Threads that compute jobs in batches.

    Args:
        threads: number of threads, each of which computes one batch at a time.
        positions: maximum number of positions of a batch: texts × longest × hypotheses of a text.
            Short texts count as if they were longer (`SHORTEST`), as for files.
        most_waiting: maximum number of jobs in the queue; further jobs are refused.
        begin_thread: function called in each thread before its first batch, for example to set the
            number of cores.
        observe: function called with each computed batch.
        rest: function called after a while without jobs, for example to free memory that batches
            reuse.
    """

    def __init__(
        self,
        *,
        threads: int,
        positions: int,
        most_waiting: int,
        begin_thread: Callable[[], None] = lambda: None,
        observe: Callable[[ComputedBatch], None] = lambda batch: None,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self.positions = positions
        self.most_waiting = most_waiting
        self._begin_thread = begin_thread
        self._observe = observe
        self._rest = rest
        self._is_rested = True
        self._waiting: list[WaitingText] = []
        self._computing = 0
        self._tokens_per_second = 0.0
        self._stopped = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._serve, name=f"compute-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """The number of jobs in the queue."""
        return len(self._waiting)

    @property
    def computing(self) -> int:
        """The number of jobs being computed."""
        return self._computing

    def submit(self, jobs: Sequence[WaitingText]) -> None:
        """Queue the jobs of a request: all of them or none.

        Raises:
            QueueFull: when there is no room for all. An empty queue accepts a request of any size.
            RunError: when the scheduler has stopped.
        """
        with self._changed:
            if self._stopped:
                raise RunError("The server is stopping", remedy="Try again in a few seconds")
            if self._waiting and len(self._waiting) + len(jobs) > self.most_waiting:
                raise QueueFull(self._seconds_of_waiting())
            self._waiting.extend(jobs)
            self._changed.notify_all()  # notify() might wake a thread that waits for more jobs

    def forget(self, jobs: Sequence[WaitingText]) -> None:
        """Drop the waiting jobs of a client that has disconnected; running batches are finished."""
        with self._changed:
            gone = set(map(id, jobs))
            self._waiting = [job for job in self._waiting if id(job) not in gone]
        for job in jobs:
            job.future.cancel()

    def stop(self) -> None:
        """Compute the waiting jobs, then end the threads; later jobs are refused."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _seconds_of_waiting(self) -> int:
        tokens = sum(job.tokens for job in self._waiting)
        return min(60, max(1, math.ceil(tokens / max(self._tokens_per_second, 1.0))))

    def _serve(self) -> None:
        self._begin_thread()
        while (jobs := self._take()) is not None:
            if jobs:
                start = time.monotonic()
                self._compute(jobs)
                self._gather(len(jobs), time.monotonic() - start)

    def _gather(self, count: int, seconds: float) -> None:
        """Wait for a moment until the queue has as many jobs as the last batch.

        Args:
            count: number of jobs of the last batch.
            seconds: duration of the last batch.
        """
        end = time.monotonic() + min(GATHERING_SHARE * seconds, MOST_GATHERING)
        with self._changed:
            while len(self._waiting) < count and not self._stopped:
                left = end - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _take(self) -> list[WaitingText] | None:
        """Wait for jobs and take a batch of them; None when the scheduler has stopped."""
        with self._changed:
            while not self._waiting:
                if self._stopped:
                    return None
                quiet = None if self._is_rested or self._computing else QUIET_SECONDS
                if not self._changed.wait(quiet) and not (self._is_rested or self._computing):
                    self._is_rested = True
                    self._changed.release()  # other threads may add jobs meanwhile
                    try:
                        self._rest()
                    finally:
                        self._changed.acquire()
            self._is_rested = False
            now = time.monotonic()
            late = [job for job in self._waiting if job.deadline <= now]
            batch = self._choose([job for job in self._waiting if job.deadline > now])
            taken = set(map(id, [*late, *batch]))
            self._waiting = [job for job in self._waiting if id(job) not in taken]
            # From here on, even a cancelled job is computed.
            batch = [job for job in batch if job.future.set_running_or_notify_cancel()]
            self._computing += len(batch)
        for job in late:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(DeadlinePassed())
        return batch

    def _choose(self, jobs: Sequence[WaitingText]) -> list[WaitingText]:
        """Return a batch: the most urgent job, and jobs of its workload nearest in length.

        A batch takes no more than a thread's share of all waiting and running jobs.
        """
        if not jobs:
            return []
        first = min(jobs, key=lambda job: job.urgency)
        alike = [job for job in jobs if job.work == first.work and job is not first]
        alike.sort(key=lambda job: (abs(job.tokens - first.tokens), job.arrival))
        share = math.ceil((len(jobs) + self._computing) / len(self._threads))
        batch, longest = [first], max(first.tokens + 1, SHORTEST)
        for job in alike[: share - 1]:
            longest = max(longest, job.tokens + 1)
            if (len(batch) + 1) * longest * first.work.width > self.positions:
                break
            batch.append(job)
        return batch

    def _compute(self, jobs: Sequence[WaitingText]) -> None:
        start = time.monotonic()
        try:
            self._answer(jobs)
        finally:
            seconds = time.monotonic() - start
            tokens = sum(job.tokens for job in jobs)
            rate = tokens / max(seconds, 1e-6) * len(self._threads)
            with self._changed:
                self._computing -= len(jobs)
                past = self._tokens_per_second or rate
                self._tokens_per_second = _REMEMBERED * past + (1 - _REMEMBERED) * rate
            waited = start - min(job.arrival for job in jobs)
            self._observe(ComputedBatch(len(jobs), tokens, seconds, waited))

    def _answer(self, jobs: Sequence[WaitingText]) -> None:
        """Compute a batch; if it fails, each text is computed again by itself."""
        try:
            results = jobs[0].work.run([job.text for job in jobs])
        except Exception as error:  # a user's mistake, or a bug that one text triggers
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._answer([job])
        except BaseException as error:  # the client must get an answer, whatever the error
            for job in jobs:
                job.future.set_exception(error)
            raise
        else:
            assert len(results) == len(jobs)
            for job, result in zip(jobs, results, strict=True):
                job.future.set_result(result)
