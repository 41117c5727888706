"""Fields of token sequences: what goes in comes out, and wrong records are named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ConfigError, DataError, ModelError
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField, read_fields
from heedful.text.tokenizer_pair import TokenizerPair, read_tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

CAPTIONS = train_tokenizer(TokenizerSpec(kind="characters"), ["abc de"], print)
COLOURS = ("blue", "red")


def named(text: str) -> TokenField:
    field = TokenField.read(text)
    if field.content != "names":
        return field
    return field.model_copy(update={"names": COLOURS, "size": len(COLOURS)})


def tokenizer(*texts: str) -> FieldTokenizer:
    fields = [named(text) for text in texts]
    captions = {field.name: CAPTIONS for field in fields if field.content == "text"}
    return FieldTokenizer(fields, captions)


numbers = st.integers(0, 6)
SHAPES: dict[str, st.SearchStrategy[Any]] = {
    "1": numbers,
    "4": st.lists(numbers, min_size=4, max_size=4),
    "2x3": st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=2),
    "any": st.lists(numbers, min_size=1, max_size=9),
    "anyx2": st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=1, max_size=5),
}


@st.composite
def records(draw: st.DrawFn) -> tuple[FieldTokenizer, dict[str, Any]]:
    """Fields of any contents and shapes, and a record of them."""
    fields, record = [], {}
    for number in range(draw(st.integers(1, 3))):
        name, kind = f"f{number}", draw(st.sampled_from(["numbers", "names", "text"]))
        if kind == "numbers":
            shape = draw(st.sampled_from(sorted(SHAPES)))
            fields.append(f"{name}:7:{shape}")
            record[name] = draw(SHAPES[shape])
        elif kind == "names":
            fields.append(f"{name}:names:any")
            record[name] = draw(st.lists(st.sampled_from(COLOURS), min_size=1, max_size=4))
        else:
            fields.append(f"{name}:text:{draw(st.sampled_from(['9', 'any']))}")
            record[name] = draw(st.text("abcde", min_size=1, max_size=8))
    return tokenizer(*fields), record


@given(records())
def test_a_record_comes_back(case: tuple[FieldTokenizer, dict[str, Any]]) -> None:
    fields, record = case
    ids = fields.encode(json.dumps(record))
    assert json.loads(fields.decode([fields.bos, *ids, fields.eos])) == record
    assert all(len(("<pad>", "<bos>", "<eos>")) <= id < fields.size for id in ids)


@given(records(), st.data())
def test_a_record_comes_back_from_its_two_sides(
    case: tuple[FieldTokenizer, dict[str, Any]], data: st.DataObject
) -> None:
    """Both sides read the whole record, keep their own fields, and make it up together."""
    fields, record = case
    chosen = data.draw(st.sets(st.sampled_from(sorted(record)), min_size=1))
    sides = [fields.only(names) for names in (chosen, record.keys() - chosen) if names]
    parts = [json.loads(side.decode(side.encode(json.dumps(record)))) for side in sides]
    assert [set(part) for part in parts] == [chosen, record.keys() - chosen][: len(sides)]
    assert {name: value for part in parts for name, value in part.items()} == record
    # Ids of a side begin anew, so that no table has rows for fields of the other side.
    assert sum(side.size - 3 for side in sides) <= fields.size - 3 <= sum(s.size for s in sides)
    whole = TokenizerPair(sides[0], sides[-1])
    assert {side.to_json() for side in sides} == {whole.source.to_json(), whole.target.to_json()}


@given(records())
def test_the_tokenizer_comes_back_from_its_file(
    case: tuple[FieldTokenizer, dict[str, Any]],
) -> None:
    fields, record = case
    again = FieldTokenizer.from_json(fields.to_json())
    assert again.to_json() == fields.to_json()
    assert again.encode_record(record).tolist() == fields.encode_record(record).tolist()


@given(records())
def test_every_record_follows_the_places(case: tuple[FieldTokenizer, dict[str, Any]]) -> None:
    """At each place of a sequence its next id is among those that are allowed."""
    fields, record = case
    place = 0
    for id in [*fields.encode_record(record).tolist(), fields.eos]:
        state = fields.states[place]
        assert any(first <= id < last for first, last in state.allowed), (place, fields.token(id))
        place = min(place + (state.end in (None, id)), len(fields.states) - 1)
    assert place == len(fields.states) - 1


@given(records(), st.data())
def test_a_beginning_is_a_beginning(
    case: tuple[FieldTokenizer, dict[str, Any]], data: st.DataObject
) -> None:
    """The ids of the first fields are the first ids of the record."""
    fields, record = case
    count = data.draw(st.integers(0, len(record)))
    begun = dict(list(record.items())[:count])
    ids = fields.encode_prompt(json.dumps(begun))
    assert fields.encode_record(record).tolist()[: len(ids)] == ids


def test_an_image_begins_with_rows_or_with_values() -> None:
    fields = tokenizer("pixels:7:3x2")
    whole = fields.encode_record([[0, 1], [2, 3], [4, 5]]).tolist()
    assert fields.encode_prompt("[[0, 1], [2, 3]]") == whole[:4]
    assert fields.encode_prompt("[0, 1, 2]") == whole[:3]
    with pytest.raises(DataError, match="is 2 × 2, not 3 × 2"):
        fields.encode_record([[0, 1], [2, 3]])
    for wrong in ("[[0, 1, 2]]", "[[0, 1], [2, 3], [4, 5], [6, 0]]"):
        with pytest.raises(DataError, match="not 3 × 2"):
            fields.encode_prompt(wrong)


def test_conditions_are_not_learned() -> None:
    fields = tokenizer("kind:names:1:given", "pixels:4:2x2")
    ids = fields.encode_record({"kind": "red", "pixels": [[0, 1], [2, 3]]})
    assert fields.learned[ids].tolist() == [False, True, True, True, True]
    # The end follows from the shape; after any number of values it does not.
    assert not fields.learned[fields.eos]
    assert tokenizer("notes:4").learned[fields.eos]


def test_a_condition_is_complete() -> None:
    """A text that is given ends where it ends; one that is learned may go on."""
    for shape in ("9", "any"):
        fields = tokenizer(f"caption:text:{shape}:given", "pixels:4:2")
        whole = fields.encode_record({"caption": "abc", "pixels": [1, 2]}).tolist()
        assert fields.encode_prompt('{"caption": "abc"}') == whole[:-2]
        learned = tokenizer(f"caption:text:{shape}", "pixels:4:2")
        assert learned.encode_prompt('{"caption": "abc"}') == whole[: len(CAPTIONS.encode("abc"))]


def test_axes_are_those_of_the_fields() -> None:
    fields = tokenizer("kind:names:1", "pixels:4:2x3", "notes:4:anyx2")
    assert fields.axes(1 + 1 + 6 + 5 + 1) == ((1,), (1,), (2, 3), (3, 2), (1,))
    assert tokenizer("notes:4", "kind:names:1").axes(9) is None


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"kind": "red"}, "The field 'pixels' is missing"),
        ({"kind": "green", "pixels": [[0, 1], [2, 3]]}, "no value 'green'"),
        ({"kind": "red", "pixels": [[0, 1, 2], [2, 3, 3]]}, "is 2 × 3, not 2 × 2"),
        ({"kind": "red", "pixels": [0, 1, 2]}, "has 3 values, not 2 × 2"),
        ({"kind": "red", "pixels": [[0, 1], [2, 4]]}, "a value 4; its values are 0 to 3"),
        ({"kind": "red", "pixels": [[0, 1], [2, -1]]}, "a value -1"),
        ({"kind": "red", "pixels": [[0, 1], [2, 0.5]]}, "whole numbers"),
        ({"kind": "red", "pixels": [[0, 1], [2]]}, "whole numbers of one shape"),
        ({"kind": "red", "pixels": [[True, True], [True, True]]}, "whole numbers"),
        ([0, 1, 2, 3], "A list says nothing of fields"),
        ("no record", "This is no record"),
        (7, "This is no record"),
    ],
)
def test_wrong_records_are_named(record: Any, told: str) -> None:
    fields = tokenizer("kind:names:1", "pixels:4:2x2")
    text = record if isinstance(record, str) else json.dumps(record)
    with pytest.raises(DataError, match=told):
        fields.encode(text)


def test_prompts_name_fields_of_the_model() -> None:
    fields = tokenizer("kind:names:1", "pixels:4:2x2")
    with pytest.raises(DataError, match="no field 'colour'"):
        fields.encode_prompt('{"colour": "red"}')
    with pytest.raises(DataError, match="'kind' is missing"):
        fields.encode_prompt('{"pixels": [1]}')
    # A file may have more than a model reads.
    assert fields.encode('{"kind": "red", "pixels": [[0, 1], [2, 3]], "colour": "red"}')


@pytest.mark.parametrize(
    "text",
    ["pixels", "pixels:0", "pixels:-3", "pixels:4:2x", "pixels:4:0x2", "9:4", "a:4:2:2", "a:any",
     "a:4:2xany", "a:text:2x2", "given"],
)  # fmt: skip
def test_wrong_fields_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tokens\.fields|a text has one axis"):
        read_fields((text,))


def test_fields_are_different_and_one_is_learned() -> None:
    with pytest.raises(ConfigError, match="Two fields"):
        read_fields(("a:4", "a:5"))
    with pytest.raises(ConfigError, match="nothing to learn"):
        read_fields(("a:4:given",))


@pytest.mark.parametrize(
    "change",
    [
        {"fields": []},
        {"fields": [{"name": "a", "content": "numbers"}]},
        {"fields": [{"name": "a", "content": "text"}]},
        {"texts": []},
        {"reading": 3},
        {"schema_version": 99},
    ],
)
def test_damaged_files_are_named(tmp_path: Any, change: dict[str, Any]) -> None:
    pair = TokenizerPair(fields := tokenizer("a:4"), fields)
    pair.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        read_tokenizer(path)


@given(rows=SHAPES["anyx2"], size=st.integers(0, 10))
def test_a_record_that_ends_within_a_row_has_the_rows_before(
    rows: list[list[int]], size: int
) -> None:
    """What is written until no position is left is a record: it is read, and it is continued."""
    fields = tokenizer("f:7:anyx2")
    ids = fields.encode(json.dumps({"f": rows}))[:size]
    found = fields.decode_record(ids)
    assert found == ({"f": rows[: size // 2]} if ids else {})
    assert fields.encode(json.dumps(found or {"f": []})) == ids[: len(ids) // 2 * 2]


def test_a_beginning_may_have_fewer_rows() -> None:
    pixels = tokenizer("pixels:7:3x2")
    begun = pixels.encode_record({"pixels": [[1, 2], [3, 4]]}, partial=True)
    assert begun.tolist() == pixels.encode_record({"pixels": [1, 2, 3, 4]}, partial=True).tolist()
    for rows, told in (([[1, 2]], "is 1 × 2, not 3 × 2"), ([[1, 2]] * 4, "is 4 × 2, not 3 × 2")):
        with pytest.raises(DataError, match=told):
            pixels.encode_record({"pixels": rows}, partial=len(rows) > 3)
