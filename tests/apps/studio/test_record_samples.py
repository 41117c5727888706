"""Records as samples of a page: cut into tokens, and drawn in a form of their own."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.acting import coins, rooms
from heedful.apps.acting.pictures import CELL, room_picture
from heedful.apps.studio.record_samples import RecordSample, cut_sample, form_of
from heedful.apps.studio.sample_forms import shown
from heedful.data.corpus_spec import RecordSpec
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

seeds = st.integers(0, 10_000)
PIXELS = FieldTokenizer(
    [
        TokenField.read("label:names:1:given").model_copy(
            update={"names": ("one", "two"), "size": 2}
        ),
        TokenField.read("pixels:8:5x5"),
    ]
)
NOTES = FieldTokenizer([TokenField.read("notes:128:12x3")])
MOMENTS = FieldTokenizer([TokenField.read(f"moments:{coins.VALUES}:12x3")])
SERIES = FieldTokenizer(
    [TokenField.read("values:64:30")],
    reading=RecordSpec(reader="series", bins=64, bin_limit=4.0, context=20, horizon=10).plain(),
)


def rooms_tokenizer() -> FieldTokenizer:
    fields = ["picture:15:6x6:given", "instruction:text:6:given", "action:names:1"]
    known = [TokenField.read(field) for field in fields]
    known[2] = known[2].model_copy(update={"names": tuple(rooms.MOVES), "size": 4})
    texts = [rooms.draw_room(Random(n), held_out=False).instruction for n in range(60)]
    text = train_tokenizer(TokenizerSpec(vocabulary_size=60), texts)
    return FieldTokenizer(known, {"instruction": text})


ROOMS = rooms_tokenizer()


def drawn(tokenizer: FieldTokenizer, draw: np.random.Generator) -> dict[str, Any]:
    """A record of these fields."""
    if tokenizer is ROOMS:
        room = rooms.draw_room(Random(int(draw.integers(1000))), held_out=False)
        return {**room.prompt(), "action": "up"}
    if tokenizer is MOMENTS:
        (record,) = coins.draw_records(Random(int(draw.integers(1000))), 1, returns=True)
        return record
    record = {}
    for field in tokenizer.fields:
        values = draw.integers(0, field.size or 2, field.shape)
        if tokenizer is NOTES:  # few pitches, so that notes are long, and silence
            values = draw.choice([0, 60, 62], field.shape)
        record[field.name] = values.tolist()
    return record | ({"label": "two"} if tokenizer is PIXELS else {})


@pytest.mark.parametrize(
    ("tokenizer", "form"),
    [
        (PIXELS, "pixels"),
        (NOTES, "notes"),
        (MOMENTS, "coins"),
        (SERIES, "series"),
        (ROOMS, "room"),
    ],
)
@given(seed=seeds, share=st.floats(0, 1))
def test_a_token_stands_in_one_place_at_most(
    tokenizer: FieldTokenizer, form: str, seed: int, share: float
) -> None:
    assert form_of(tokenizer) == form
    record = drawn(tokenizer, np.random.default_rng(seed))
    ids = tokenizer.encode_record(record).tolist()
    begun = cut_sample(tokenizer, json.dumps(record), round(share * len(ids)))
    assert list(begun.ids) == ids[: begun.kept]
    whole = shown(RecordSample(tokenizer, tuple(ids), begun.kept))
    assert json.loads(whole["record"]) == record
    assert [id for _, id, _ in whole["tokens"]] == ids
    for found in (whole, shown(begun)):
        places = found["drawing"]["places"]
        tokens = [token for place in places for token in place]
        assert len(tokens) == len(set(tokens))
        assert set(tokens) <= set(range(len(found["tokens"])))


def test_conditions_are_always_kept() -> None:
    record = drawn(PIXELS, np.random.default_rng(1))
    assert cut_sample(PIXELS, json.dumps(record), 0).kept == 1
    assert cut_sample(PIXELS, json.dumps(record), None).kept == 1 + 10
    assert cut_sample(PIXELS, '{"label": "one"}', None).record == {"label": "one"}


def test_pixels_are_levels_in_reading_order() -> None:
    record = {"label": "one", "pixels": [[row, 0, 0, 0, 7] for row in range(5)]}
    found = shown(cut_sample(PIXELS, json.dumps(record), 11))["drawing"]
    flat = np.frombuffer(base64.b64decode(found["patches"]), np.uint8)
    assert flat.tolist() == [0, 0, 0, 0, 255, 36, 0, 0, 0, 255] + [0] * 15
    assert found["known"] == [True] * 10 + [False] * 15
    assert found["places"][6] == [7]  # after the label


def test_equal_pitches_are_one_note_until_the_model_writes() -> None:
    moments = [[60, 62, 0]] * 4 + [[60, 64, 67]] * 8
    sample = RecordSample(NOTES, tuple(NOTES.encode_record({"notes": moments}).tolist()), 6)
    found = shown(sample)["drawing"]
    notes = sorted(map(tuple, found["notes"]))
    assert notes == [(0, 60, 2), (0, 62, 2), (2, 60, 12), (2, 62, 4), (4, 64, 12), (4, 67, 12)]
    first = found["notes"].index([0, 60, 2])
    assert found["places"][first] == [0, 3]
    assert found["from"] == 2


@given(seeds)
def test_notes_sound_as_the_record_says(seed: int) -> None:
    record = drawn(NOTES, np.random.default_rng(seed))
    sample = RecordSample(NOTES, tuple(NOTES.encode_record(record).tolist()), 0)
    sounding = sorted(
        (step, pitch)
        for start, pitch, end in shown(sample)["drawing"]["notes"]
        for step in range(start, end)
    )
    expected = [(n, p) for n, moment in enumerate(record["notes"]) for p in moment if p]
    assert sounding == sorted(expected)


@given(seeds)
def test_coins_are_those_that_the_way_takes(seed: int) -> None:
    (record,) = coins.draw_records(Random(seed), 1, returns=True)
    sample = RecordSample(MOMENTS, tuple(MOMENTS.encode_record(record).tolist()), 2)
    assert shown(sample)["drawing"]["coins"] == record["moments"][0][0]


def test_an_interval_of_a_series_holds_its_median() -> None:
    draw = np.random.default_rng(3)
    ids = SERIES.encode_record({"values": draw.integers(0, 64, 30).tolist()}).tolist()
    futures = draw.integers(0, 64, (40, 10))
    found = shown(RecordSample(SERIES, tuple(ids), 20, futures))["drawing"]
    low, median, high = (np.array(found[name]) for name in ("low", "median", "high"))
    assert len(low) == 10
    assert (low < median).all()
    assert (median < high).all()
    assert found["length"] == len(found["values"]) == 30
    middles = (np.quantile(futures, 0.5, axis=0) + 0.5) * 8 / 64 - 4
    np.testing.assert_allclose(median, middles, atol=1e-3)


@given(seeds, st.booleans())
def test_a_room_is_read_as_it_was_drawn(seed: int, held_out: bool) -> None:
    room = rooms.draw_room(Random(seed), held_out=held_out)
    assert rooms.read_room(room.picture(), room.instruction) == room


def test_cells_of_a_room_look_different() -> None:
    picture = room_picture(range(15))
    assert picture.shape == (rooms.SIDE * CELL, rooms.SIDE * CELL, 3)
    tiles = {
        picture[r : r + CELL, c : c + CELL].tobytes()
        for r in range(0, len(picture), CELL)
        for c in range(0, len(picture), CELL)
    }
    assert len(tiles) == 15 + 1  # the values, and cells that nothing is known of


def test_tokens_are_said_in_words() -> None:
    moments = shown(cut_sample(MOMENTS, '{"moments": [4, 20, 34]}', None))["tokens"]
    assert [word for word, _, _ in moments] == ["return-to-go 4", "at 3, 3", "down"]
    assert tuple(rooms.MOVES.values()) == coins.MOVES
    notes = shown(cut_sample(NOTES, '{"notes": [60, 0, 70]}', None))["tokens"]
    assert [word for word, _, _ in notes] == ["C4", "rest", "B♭4"]
    room = json.dumps({"picture": [[0, 1, 2, 3, 14, 5]] * 6, "instruction": "go to the red ball"})
    words = [word for word, _, _ in shown(cut_sample(ROOMS, room, None))["tokens"]]
    assert words[:6] == ["floor", "wall", "agent", "red ball", "yellow key", "red key"]
