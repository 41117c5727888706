"""Batches across requests: what shares one, what goes first, what is refused or dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.serve import scheduler as scheduling
from heedful.apps.serve.scheduler import (
    ComputedBatch,
    DeadlinePassed,
    QueueFull,
    Scheduler,
    WaitingText,
)
from heedful.errors import DataError, RunError

from .conftest import wait_until


@dataclass(eq=False)
class Echo:
    """Work that returns its texts in capitals, and notes its batches."""

    width: int = 1
    gate: threading.Event = field(default_factory=threading.Event)
    batches: list[list[str]] = field(default_factory=list)

    def run(self, texts: Sequence[str]) -> Sequence[str]:
        self.gate.wait(10)
        self.batches.append(list(texts))
        if "bad" in texts:
            raise DataError("bad")
        if "defect" in texts:
            raise ZeroDivisionError
        return [text.upper() for text in texts]


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(threads=1, positions=100, most_waiting=50)
    yield scheduler
    scheduler.stop()


def hold(scheduler: Scheduler) -> Echo:
    """Keep the only thread at work until `gate` is set."""
    blocker = Echo()
    scheduler.submit([WaitingText(blocker, "blocker", 1)])
    wait_until(lambda: scheduler.computing == 1)
    return blocker


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.text("abc", min_size=1, max_size=9), min_size=1), max_size=6))
def test_every_job_gets_its_own_result(requests: list[list[str]]) -> None:
    work = Echo()
    work.gate.set()
    scheduler = Scheduler(threads=2, positions=30, most_waiting=10_000)
    jobs = [[WaitingText(work, text, len(text)) for text in request] for request in requests]
    for each in jobs:
        scheduler.submit(each)
    for request, each in zip(requests, jobs, strict=True):
        assert [job.future.result(10) for job in each] == [text.upper() for text in request]
    scheduler.stop()
    for batch in work.batches:
        assert len(batch) == 1 or len(batch) * (max(map(len, batch)) + 1) <= 30


def test_waiting_jobs_of_several_requests_share_a_batch(scheduler: Scheduler) -> None:
    blocker, work, other = hold(scheduler), Echo(), Echo()
    work.gate.set()
    other.gate.set()
    jobs = [WaitingText(work, "a", 4), WaitingText(other, "x", 4), WaitingText(work, "b", 4)]
    for job in jobs:
        scheduler.submit([job])
    blocker.gate.set()
    assert [job.future.result(10) for job in jobs] == ["A", "X", "B"]
    assert work.batches == [["a", "b"]]
    assert other.batches == [["x"]]


def test_hypotheses_count_in_the_positions_of_a_batch(scheduler: Scheduler) -> None:
    blocker, work = hold(scheduler), Echo(width=2)
    work.gate.set()
    jobs = [WaitingText(work, str(number), 9) for number in range(10)]
    scheduler.submit(jobs)
    blocker.gate.set()
    for job in jobs:
        job.future.result(10)
    assert [len(batch) for batch in work.batches] == [5, 5]  # 5 x (9 + 1) x 2 = 100


def test_very_short_texts_fill_a_batch_as_if_they_were_longer(scheduler: Scheduler) -> None:
    blocker, work = hold(scheduler), Echo(width=2)
    work.gate.set()
    jobs = [WaitingText(work, str(number), 1) for number in range(12)]
    scheduler.submit(jobs)
    blocker.gate.set()
    for job in jobs:
        job.future.result(10)
    assert [len(batch) for batch in work.batches] == [6, 6]  # 6 x 8 x 2 = 96


def test_what_waits_is_shared_by_the_threads() -> None:
    scheduler = Scheduler(threads=2, positions=1000, most_waiting=50)
    blockers, work = [hold(scheduler)], Echo()
    blockers.append(Echo())
    scheduler.submit([WaitingText(blockers[1], "blocker", 1)])
    wait_until(lambda: scheduler.computing == 2)
    work.gate.set()
    jobs = [WaitingText(work, str(number), 4) for number in range(10)]
    scheduler.submit(jobs)
    blockers[0].gate.set()  # 10 wait and 1 is computed
    for job in jobs:
        job.future.result(10)
    blockers[1].gate.set()
    scheduler.stop()
    assert [len(batch) for batch in work.batches] == [6, 3, 1]


def test_clients_that_ask_again_one_by_one_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "GATHERING_SHARE", 1e6)
    monkeypatch.setattr(scheduling, "MOST_GATHERING", 5.0)
    scheduler, work = Scheduler(threads=1, positions=1000, most_waiting=50), Echo()
    blocker = hold(scheduler)
    work.gate.set()
    first = [WaitingText(work, text, 4) for text in "abc"]
    scheduler.submit(first)
    blocker.gate.set()  # its thread finds as many waiting, and more
    for job in first:
        job.future.result(10)
    again = [WaitingText(work, text, 4) for text in "def"]
    for job in again:
        time.sleep(0.02)
        scheduler.submit([job])
    for job in again:
        job.future.result(2)
    scheduler.stop()
    assert work.batches == [["a", "b", "c"], ["d", "e", "f"]]


def test_gathering_ends_after_a_moment_and_when_the_scheduler_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, work = Scheduler(threads=1, positions=1000, most_waiting=50), Echo()
    work.gate.set()
    both = [WaitingText(work, text, 4) for text in "ab"]
    scheduler.submit(both)
    both[1].future.result(10)
    alone = WaitingText(work, "c", 4)
    scheduler.submit([alone])
    assert alone.future.result(2) == "C"
    scheduler.stop()
    monkeypatch.setattr(scheduling, "GATHERING_SHARE", 1e6)
    monkeypatch.setattr(scheduling, "MOST_GATHERING", 60.0)
    scheduler = Scheduler(threads=1, positions=1000, most_waiting=50)
    jobs = [WaitingText(work, text, 4) for text in "ab"]
    scheduler.submit(jobs)
    jobs[1].future.result(10)
    begin = time.monotonic()
    scheduler.stop()
    assert time.monotonic() - begin < 10


def test_short_jobs_go_before_long_ones_but_not_for_ever(scheduler: Scheduler) -> None:
    blocker, work = hold(scheduler), Echo(width=100)  # a batch holds one job
    work.gate.set()
    long, short = WaitingText(work, "long", 150), WaitingText(work, "short", 3)
    scheduler.submit([long])
    scheduler.submit([short])
    waiting = WaitingText(work, "waiting", 150)
    waiting.arrival -= 5
    scheduler.submit([waiting])
    blocker.gate.set()
    for job in (long, short, waiting):
        job.future.result(10)
    assert work.batches == [["waiting"], ["short"], ["long"]]


def test_a_job_whose_client_has_gone_is_not_computed(scheduler: Scheduler) -> None:
    blocker, work = hold(scheduler), Echo()
    work.gate.set()
    gone, stays = WaitingText(work, "gone", 1), WaitingText(work, "stays", 1)
    scheduler.submit([gone, stays])
    scheduler.forget([gone])
    assert scheduler.waiting == 1
    blocker.gate.set()
    assert stays.future.result(10) == "STAYS"
    assert gone.future.cancelled()
    assert work.batches == [["stays"]]


def test_a_job_cancelled_by_itself_is_not_computed(scheduler: Scheduler) -> None:
    blocker, work = hold(scheduler), Echo()
    work.gate.set()
    gone, stays = WaitingText(work, "gone", 1), WaitingText(work, "stays", 1)
    scheduler.submit([gone, stays])
    gone.future.cancel()
    blocker.gate.set()
    assert stays.future.result(10) == "STAYS"
    assert work.batches == [["stays"]]


def test_a_job_past_its_deadline_is_dropped(scheduler: Scheduler) -> None:
    blocker, work = hold(scheduler), Echo()
    work.gate.set()
    late = WaitingText(work, "late", 1, deadline=time.monotonic() + 0.05)
    scheduler.submit([late])
    time.sleep(0.1)
    blocker.gate.set()
    with pytest.raises(DeadlinePassed):
        late.future.result(10)
    assert work.batches == []


def test_a_full_queue_refuses_a_request_whole(scheduler: Scheduler) -> None:
    blocker, work = hold(scheduler), Echo()
    work.gate.set()
    scheduler.submit([WaitingText(work, "a", 1) for _ in range(49)])
    with pytest.raises(QueueFull) as refused:
        scheduler.submit([WaitingText(work, "b", 1), WaitingText(work, "c", 1)])
    assert 1 <= refused.value.retry_after <= 60
    assert scheduler.waiting == 49
    blocker.gate.set()


def test_a_request_larger_than_the_queue_is_taken_when_it_is_empty(scheduler: Scheduler) -> None:
    work = Echo()
    work.gate.set()
    jobs = [WaitingText(work, "a", 1) for _ in range(80)]
    scheduler.submit(jobs)
    assert [job.future.result(10) for job in jobs] == ["A"] * 80


@pytest.mark.parametrize(("text", "error"), [("bad", DataError), ("defect", ZeroDivisionError)])
def test_an_error_reaches_its_request_and_the_next_ones_are_served(
    scheduler: Scheduler, text: str, error: type[Exception]
) -> None:
    work = Echo()
    work.gate.set()
    wrong = WaitingText(work, text, 1)
    scheduler.submit([wrong])
    with pytest.raises(error):
        wrong.future.result(10)
    right = WaitingText(work, "good", 1)
    scheduler.submit([right])
    assert right.future.result(10) == "GOOD"


@pytest.mark.parametrize(("text", "error"), [("bad", DataError), ("defect", ZeroDivisionError)])
def test_a_wrong_text_does_not_spoil_the_others_of_its_batch(
    scheduler: Scheduler, text: str, error: type[Exception]
) -> None:
    blocker, work = hold(scheduler), Echo()
    work.gate.set()
    jobs = [WaitingText(work, each, 1) for each in ("a", text, "b")]
    scheduler.submit(jobs)
    blocker.gate.set()
    assert jobs[0].future.result(10) == "A"
    assert jobs[2].future.result(10) == "B"
    with pytest.raises(error):
        jobs[1].future.result(10)


def test_what_waits_is_computed_before_it_stops() -> None:
    batches: list[ComputedBatch] = []
    scheduler = Scheduler(threads=1, positions=100, most_waiting=50, observe=batches.append)
    blocker, work = hold(scheduler), Echo()
    work.gate.set()
    job = WaitingText(work, "last", 7)
    scheduler.submit([job])
    stopping = threading.Thread(target=scheduler.stop)
    stopping.start()
    wait_until(lambda: scheduler._stopped)
    with pytest.raises(RunError, match="stopping"):
        scheduler.submit([WaitingText(work, "too late", 1)])
    blocker.gate.set()
    stopping.join(10)
    assert job.future.result(0) == "LAST"
    assert [(batch.texts, batch.tokens) for batch in batches] == [(1, 1), (1, 7)]


def test_memory_is_given_back_once_when_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "QUIET_SECONDS", 0.05)
    rests: list[int] = []
    scheduler = Scheduler(
        threads=2, positions=100, most_waiting=50, rest=lambda: rests.append(scheduler.waiting)
    )
    time.sleep(0.2)
    assert rests == []  # nothing was computed yet
    for count in (1, 2):
        work = Echo()
        job = WaitingText(work, "a", 1)
        scheduler.submit([job])
        time.sleep(0.2)
        assert len(rests) == count - 1  # it is at work
        work.gate.set()
        assert job.future.result(10) == "A"
        wait_until(lambda count=count: len(rests) == count)
        time.sleep(0.2)
        assert len(rests) == count
    scheduler.stop()
