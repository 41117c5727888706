"""JSON: values change, all else stays."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import DataError

from .translators import echoed, sentences, shout, shouted

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
NOTES = """{
  "title" : "Hello \\"you\\"\\u0021",
  "n": [1.50, true, null],
  "items": [ {"text":"One\\nTwo {name} %s", "id":"keep"}, {"text": "Three", "a.b": "Dotted"} ]
}"""


def transformed(value: Any) -> Any:
    if isinstance(value, str):
        return shout(value)
    if isinstance(value, list):
        return [transformed(each) for each in value]
    if isinstance(value, dict):
        return {key: transformed(each) for key, each in value.items()}
    return value


@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_an_echo_changes_no_byte(value: Any, ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    data = text.encode("utf-8", "surrogatepass" if ascii else "replace")
    assert echoed(data, "json") == data


@given(VALUES)
def test_values_change_and_keys_do_not(value: Any) -> None:
    text = json.dumps(value)
    found = json.loads(shouted(text, "json"))
    if is_plain(json.loads(text)):
        assert normal(found) == normal(transformed(json.loads(text)))
    assert normal(found).casefold() == normal(json.loads(text)).casefold()


def is_plain(value: Any) -> bool:
    """No string has what may be a placeholder, a tag or an entity, which nobody shouts."""
    if isinstance(value, str):
        return not re.search(r"[%{@$\[<&]|__|:\w|http", value)
    if isinstance(value, dict):
        return all(is_plain(each) for each in value.values())
    return not isinstance(value, list) or all(is_plain(each) for each in value)


def normal(value: Any) -> str:
    """White space between words may become a single space, and so may control characters."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, list):
        return repr([normal(each) for each in value])
    if isinstance(value, dict):
        return repr({key: normal(each) for key, each in value.items()})
    return repr(value)


def test_lines_and_placeholders() -> None:
    assert sentences(NOTES, "json") == [
        'Hello "you"!',
        "One",
        "Two {name} %s",
        "keep",
        "Three",
        "Dotted",
    ]
    found = shouted(NOTES, "json")
    assert '"TWO {name} %s"' not in found
    assert "ONE\\nTWO {name} %s" in found
    assert '"HELLO \\"YOU\\"\\u0021"' in found


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["text"], ["One", "Two {name} %s", "Three"]),
        (["items.0.text"], ["One", "Two {name} %s"]),
        (["items.*.id", "title"], ["keep"]),
        (["**.text"], ["One", "Two {name} %s", "Three"]),
        (["items.1.*"], ["Three", "Dotted"]),
        (["a\\.b"], ["Dotted"]),
    ],
)
def test_keys_choose(keys: list[str], expected: list[str]) -> None:
    found = sentences(NOTES, "json", keys=keys)
    assert [text for text in found if "Hello" not in text] == expected


def test_lines_of_json() -> None:
    text = '{"a": "One"}\n\n{"a": "Two"}\r\n'
    assert shouted(text, "json") == '{"a": "ONE"}\n\n{"a": "TWO"}\r\n'


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ('{"a": "b",\n "c" "d"}', {}, "Line 2, column 6 is no JSON"),
        ('{"a": 1} {"b": 2}', {}, "Extra data"),
        ("", {}, "no JSON"),
        ('{"a": 1,\n "b": "A c\\ud800at"}', {}, r"line 2: A string has half a .* \(U\+D800\)"),
        ("[" * 100_000, {}, "nested too deeply"),
        (NOTES, {"keys": ["titel"]}, "No string is at titel. There are strings at title, items"),
        ("[1]", {"keys": ["a"]}, "no strings at all"),
    ],
)
def test_damage_and_wrong_keys_are_named(text: str, settings: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        echoed(text.encode(), "json", **settings)


def test_characters_that_the_encoding_lacks_are_escaped() -> None:
    from heedful.apps.documents.document_settings import DocumentSettings
    from heedful.apps.documents.formats import translate_document

    from .translators import Dictionary

    known = {"money": ("5 € \U0001f600", (0, 0, 0))}
    settings = DocumentSettings(encoding="ascii")
    found = translate_document(b'["money"]', Dictionary(known), format="json", settings=settings)
    assert json.loads(found.decode("ascii")) == ["5 € \U0001f600"]
