"""Edits of a text, and where parts of the result come from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.quality.respelling import Respelling


def test_edits_are_made_and_undone():
    edited = Respelling.of("I met Tom in Rome.", [(13, 17, "Roma"), (6, 9, "王小明"), (0, 1, "I")])
    assert edited.result == "I met 王小明 in Roma."
    assert edited.edits == ((6, 9, "王小明"), (13, 17, "Roma"))
    assert edited.origin((6, 9)) == (6, 9)
    assert edited.origin((7, 8)) == (6, 9)  # an edit counts as a whole
    assert edited.origin((0, 5)) == (0, 5)
    assert edited.origin((2, 8)) == (2, 9)
    shorter = Respelling.of("a long one", [(2, 6, "x")])
    assert shorter.result == "a x one"
    assert shorter.origin((4, 7)) == (7, 10)


@given(st.text(max_size=12), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3))), st.data())
def test_what_is_not_edited_comes_from_itself(text, places, data):
    edits, done = [], 0
    for place, length in sorted(places):
        if done <= place and place + length <= len(text):
            edits.append((place, place + length, data.draw(st.text(max_size=3))))
            done = place + length + 1
    edited = Respelling.of(text, edits)
    expected, done = "", 0
    for start, end, new in edits:
        for i in range(done, start):
            assert edited.origin((len(expected) + i - done, len(expected) + i - done + 1)) == (
                i,
                i + 1,
            )
        expected += text[done:start] + new
        done = end
    assert edited.result == expected + text[done:]
