"""Windows over long texts."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.pipelines.encoder_input import overlapping


@given(count=st.integers(0, 60), room=st.integers(1, 20), stride=st.none() | st.integers(1, 25))
@settings(max_examples=300)
def test_every_piece_is_the_own_of_the_window_that_shows_most_around_it(count, room, stride):
    windows = overlapping(count, room, stride)
    owners = [number for number, w in enumerate(windows) for _ in range(w.own_start, w.own_end)]
    assert len(owners) == count  # each once …
    assert [w.own_start for w in windows[1:]] == [w.own_end for w in windows[:-1]]  # … in order
    for piece, owner in enumerate(owners):
        context = [min(piece - w.start, w.end - 1 - piece) for w in windows]
        assert context[owner] == max(context)
    assert all(w.end - w.start == min(count, room) for w in windows)
    steps = [b.start - a.start for a, b in itertools.pairwise(windows)]
    longest = min(room, stride or max(1, room // 2))
    assert all(0 < step <= longest for step in steps)
    assert all(step == longest for step in steps[:-1])


def test_what_fits_is_one_window():
    (window,) = overlapping(7, None)
    assert (window.start, window.end, window.own_start, window.own_end) == (0, 7, 0, 7)
    assert overlapping(7, 7) == [window]
    assert len(overlapping(8, 7)) == 2
