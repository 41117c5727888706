"""What is made ahead is what would be made when it is asked for."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import DataError
from heedful.train.batch_source import DataPosition, EpochBatches, Prefetched

SIZE = 5


def after(place: DataPosition) -> DataPosition:
    epoch, batch = place
    return DataPosition(epoch, batch + 1) if batch + 1 < SIZE else DataPosition(epoch + 1, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, SIZE - 1)), max_size=12))
def test_any_order_of_places_gives_what_is_there(jumps):
    """A run goes on from place to place, and jumps when it goes back to a checkpoint."""
    source = Prefetched(lambda place: (tuple(place), after(place)), lambda place: False)
    try:
        for jump in jumps:
            place = DataPosition(*jump)
            for _ in range(3):
                made, following = source.take(place)
                assert made == tuple(place)
                assert following == after(place)
                place = following
    finally:
        source.close()


def test_the_next_is_made_meanwhile_and_by_one_thread_at_a_time():
    made, begun, busy = [], threading.Event(), threading.Lock()

    def make(place: DataPosition) -> tuple[int, DataPosition]:
        assert busy.acquire(blocking=False)
        made.append((place, threading.current_thread() is threading.main_thread()))
        if place.batch == 1:
            begun.set()
        busy.release()
        return place.batch, after(place)

    source = Prefetched(make, lambda place: place.batch == 3)
    value, place = source.take(DataPosition(0, 0))
    assert value == 0
    assert begun.wait(10)  # though nobody has asked for it
    assert source.take(place)[0] == 1
    assert source.take(DataPosition(0, 2))[0] == 2
    source.close()
    assert [(each.batch, main) for each, main in made] == [(0, True), (1, False), (2, False)]


def test_what_goes_wrong_ahead_is_raised_when_it_is_asked_for():
    def make(place: DataPosition) -> tuple[int, DataPosition]:
        if place.batch == 1:
            raise ValueError("gone")
        return place.batch, after(place)

    source = Prefetched(make, lambda place: False)
    _, place = source.take(DataPosition(0, 0))
    with pytest.raises(ValueError, match="gone"):
        source.take(place)
    assert source.take(DataPosition(0, 2))[0] == 2
    source.close()


def test_weights_that_leave_nothing_are_an_error() -> None:
    source = EpochBatches(lambda epoch: [], lambda item, epoch: item, str)
    with pytest.raises(DataError, match=r"no example of any corpus.*--weights"):
        source.batch(0, 0)
