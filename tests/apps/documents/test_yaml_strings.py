"""YAML: strings change, all else stays. The reference is PyYAML, as a whole."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.documents.formats import translate_document
from heedful.errors import ConfigError, DataError

from .translators import Dictionary, echoed, sentences, shouted

LOCALE = r"""# of a shop
en:
  title: &title Hello you # said first
  again: *title
  wrapped: "One\nTwo \
    three %{count}
    folds \u00e9"
  quoted: 'it''s
    here

    now'
  literal: |
    Line one
      Line two

  folded: >-
    One goes
    on
      apart
    and on
  flow: {a: [one thing, "two"], b: yes, c: ~}
  date: "%Y-%m-%d"
  symbol: :year
  time: '%H o clock and %M'
  long: some text
    that goes on
"""
TEXTS = st.text(st.sampled_from("abZé .-:#'\"\\,[]{}!&*%@`|>?\n~0"), max_size=12)
VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    ),
    max_leaves=6,
)
LAYOUTS = st.fixed_dictionaries(
    {
        "default_style": st.sampled_from([None, "'", '"', "|", ">"]),
        "default_flow_style": st.booleans(),
        "width": st.sampled_from([10, 80]),
    }
)


def words(value: Any) -> Any:
    """A document with its texts as words, as white space between them may change."""
    if isinstance(value, str):
        return value.casefold().split()
    if isinstance(value, list):
        return [words(each) for each in value]
    return {k: words(v) for k, v in value.items()} if isinstance(value, dict) else value


def test_strings_are_found() -> None:
    assert sentences(LOCALE, "yaml") == [
        "Hello you",
        "One",
        "Two three %{count} folds é",
        "it's here",
        "now",
        "Line one",
        "Line two",
        "One goes on",
        "apart",
        "and on",
        "one thing",
        "two",
        "some text that goes on",
    ]


def test_strings_change_and_all_else_stays() -> None:
    found = shouted(LOCALE, "yaml")
    assert words(yaml.safe_load(found)) == words(yaml.safe_load(LOCALE))
    for kept in (
        "# of a shop",
        "&title HELLO YOU # said first",
        "*title",
        "%{count}\n    ",
        ":year",
    ):
        assert kept in found
    assert "'%H o clock and %M'" in found
    data = yaml.safe_load(found)["en"]
    assert data["folded"] == "ONE GOES ON\n  APART\nAND ON"
    assert data["flow"] == {"a": ["ONE THING", "TWO"], "b": True, "c": None}


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("a: good day", "- x: y # z"),
        ("a: good day", "yes"),
        ("a: good day", '%{x} "y" \\n'),
        ("[good day, 1]", "x, y]"),
        ("a: 'good day'", "it's"),
        ('a: "good day"', 'a "b" \\ \x07c'),
        ("- |\n  good day\n", "# x"),
        ("a: good day", "2026-01-01"),
    ],
)
def test_a_translation_is_quoted_where_needed(source: str, translation: str) -> None:
    known = {"good day": (translation, (None,) * len(translation.split()))}
    found = translate_document(source.encode(), Dictionary(known), format="yaml").decode()
    read = yaml.safe_load(found)
    value = next(iter(read.values())) if isinstance(read, dict) else read[0]
    assert value.rstrip("\n") == translation.replace("\x07", " ")


@given(VALUES, LAYOUTS)
def test_any_document(value: Any, layout: dict[str, Any]) -> None:
    text = yaml.safe_dump(value, allow_unicode=True, **layout)
    assert echoed(text.encode(), "yaml") == text.encode()
    assert words(yaml.safe_load(shouted(text, "yaml"))) == words(value)


def test_keys_choose() -> None:
    assert sentences("a: {b: One, c: Two}\nb: [Three]\n", "yaml", keys=["a.b", "b.*"]) == [
        "One",
        "Three",
    ]
    with pytest.raises(DataError, match=r"No string is at x\. There are strings at a"):
        echoed(b"a: b", "yaml", keys=["x"])


def test_damage_is_named() -> None:
    with pytest.raises(DataError, match="Line 2, column 5 is no YAML"):
        echoed(b"a: b\nc: d: e", "yaml")
    with pytest.raises(DataError, match=r"line 2: YAML cannot hold the character U\+0001"):
        echoed(b"a: b\nc: \x01", "yaml")


@pytest.mark.parametrize(
    ("text", "kind"), [(b"a: One", "yaml"), (b"---\ntitle: One\n---\n\nTwo\n", "markdown")]
)
def test_without_the_library(text: bytes, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "yaml" else find(name)
    )
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"needs the package PyYAML"):
        echoed(text, kind)
