"""ICU messages: arguments and branches, by messages whose structure is known as they are made."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.apps.documents.icu_message import (
    MessageError,
    MessageText,
    encode_message,
    read_message,
)
from heedful.apps.documents.passage import Surroundings

Structure = tuple[object, ...]
PLACE = Surroundings(None, False)
WORDS = st.text(st.sampled_from("ab é.\n|<>"), min_size=1, max_size=6)


def argument(inner: st.SearchStrategy[tuple[str, Structure]]) -> st.SearchStrategy[object]:
    """A plural or select around some texts: as written, and (selector's text, structure) pairs."""

    def written(
        kind: str, offset: str, space: str, branches: list[tuple[str, Structure]]
    ) -> object:
        texts = space.join(
            f"={n} {{{text}}}" if n < len(branches) - 1 else f"other{space}{{{text}}}"
            for n, (text, _) in enumerate(branches)
        )
        raw = f"{{{space}n{space},{space}{kind},{offset} {texts}{space}}}"
        return raw, tuple(structure for _, structure in branches)

    return st.builds(
        written,
        st.sampled_from(["plural", "selectordinal"]),
        st.sampled_from(["", " offset:1"]),
        st.sampled_from(["", " ", "\n  "]),
        st.lists(inner, min_size=1, max_size=3),
    )


def message(parts: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[str, Structure]]:
    """Words and parts in turn: as written, and the structure."""
    return st.lists(st.tuples(WORDS, parts), max_size=3).map(
        lambda pairs: (
            "".join(word + part[0] for word, part in pairs),  # type: ignore[index]
            tuple(part for _, part in pairs),
        )
    )


SIMPLE = st.sampled_from(
    [
        ("{name}", ()),
        ("{0, number, percent}", ()),
        ("{d, date, {yyyy}}", ()),
        ("''", ()),
        ("'{ {x} '", ()),
        ("{{count}}", ()),
    ]
)
MESSAGES = st.recursive(
    message(SIMPLE), lambda inner: message(SIMPLE | argument(inner)), max_leaves=6
)


def found(text: str, message: MessageText) -> Structure:
    return tuple(
        (text[part.start : part.end], tuple(found(text, branch) for branch in part.branches))
        for part in message.parts
    )


@settings(max_examples=50)
@given(MESSAGES)
@example(("{n, plural, one {{count} unread} other {{{count}} of #}}", ()))
def test_the_structure_is_that_of_the_writer(case: tuple[str, Structure]) -> None:
    text, structure = case
    read = read_message(text)
    if "plural," not in text and "selectordinal," not in text.replace(" ,", ","):
        assert read is None
    elif structure:
        assert read is not None
        assert found(text, read) == structure


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{n, plural, one {a}", "no branch of a plural at character 20"),
        ("{n, plural, one {a", "not closed"),
        ("{n, plural, }", "no branch"),
        ("{n, select, a {b}} c}", "a brace too many at character 21"),
        ("{n, plural, other {x}} {", "no argument after the brace at character 24"),
        ("{n, plural, other {" * 40 + "}}" * 40, "levels"),
    ],
)
def test_damage_is_named(text: str, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        read_message(text)


def test_an_ending_of_an_ordinal_belongs_to_its_number() -> None:
    text = "{n, selectordinal, one {#st} other {# th #th}}"
    read = read_message(text)
    assert read is not None
    branches = read.parts[0].branches
    assert [text[p.start : p.end] for b in branches for p in b.parts] == ["#st", "#", "#th"]


@given(st.text(st.sampled_from("ab '{}<|"), max_size=12))
def test_what_is_written_is_text(text: str) -> None:
    whole = f"{{n, plural, other {{{encode_message(text, PLACE)}}}}}"
    read = read_message(whole)
    assert read is not None
    (branch,) = read.parts[0].branches
    shown, done = "", branch.start
    for part in branch.parts:
        raw = whole[part.start : part.end]
        assert part.kind in ("quoted", "apostrophe")
        shown += whole[done : part.start]
        shown += "'" if raw == "''" else raw[1:-1].replace("''", "'")
        done = part.end
    assert shown + whole[done : branch.end] == text
