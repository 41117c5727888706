"""Samples of models of token sequences in forms of their own, as JSON data.

A form says how a sample is drawn and which tokens each of its places has: pixels of a picture,
cells of a room, notes, values of a series. Attention is given by token, so that a place has the sum
of its tokens' weights.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heedful.apps.acting import coins, rooms
from heedful.apps.acting.pictures import CELL, coin_picture, room_picture
from heedful.apps.studio.record_samples import RecordSample, form_of
from heedful.data.corpus_spec import RecordSpec
from heedful.data.midi_files import FIELD as NOTES
from heedful.data.series_files import values_of
from heedful.nn.patches import cut
from heedful.text.field_tokenizer import FieldTokenizer

INTERVAL = (0.1, 0.9)
_EIGHTH = 0.3
"""Seconds of a moment of music: a hundred quarter notes a minute."""

Places = list[list[int]]
"""Indices of the tokens of each place of a drawing."""


def shown(sample: RecordSample) -> dict[str, Any]:
    """Return the record, its tokens with id and field, the kept ones and the drawing."""
    numbers = sample.fields.field_numbers(np.array(sample.ids, np.int64)).tolist()
    return {
        "record": json.dumps(sample.record, ensure_ascii=False),
        "tokens": [
            [piece_of(sample.fields, id), id, number]
            for id, number in zip(sample.ids, numbers, strict=True)
        ],
        "kept": sample.kept,
        "drawing": _drawing(sample),
    }


def _drawing(sample: RecordSample) -> dict[str, Any]:
    """Return the drawing of a sample, with the tokens of its places; a kind alone without one."""
    form = form_of(sample.fields)
    return {"kind": form, **_FORMS[form](sample)} if form in _FORMS else {"kind": form}


def piece_of(fields: FieldTokenizer, id: int) -> str:
    """Return a token in words, without the name of its field, which stands beside it."""
    text = fields.token(id)
    name, _, value = text.partition("=")
    words = _WORDS.get((form_of(fields), name))
    return words(int(value)) if words and value.isdigit() else value or text


def _cell_words(value: int) -> str:
    if value >= rooms.FIRST_THING:
        return " ".join(rooms.THINGS[value - rooms.FIRST_THING])
    return {rooms.EMPTY: "floor", rooms.WALL: "wall", rooms.AGENT: "agent"}[value]


def _moment_words(value: int) -> str:
    if value < coins.FIRST_PLACE:
        return f"return-to-go {value}"
    if value < coins.FIRST_ACTION:
        row, column = divmod(value - coins.FIRST_PLACE, coins.SIDE)
        return f"at {row + 1}, {column + 1}"
    # The moves of both worlds stand in the same order.
    return [*rooms.MOVES][value - coins.FIRST_ACTION]


def _note_words(value: int) -> str:
    return f"{_PITCHES[value % 12]}{value // 12 - 1}" if value else "rest"


_PITCHES = ("C", "C♯", "D", "E♭", "E", "F", "F♯", "G", "G♯", "A", "B♭", "B")
_WORDS = {
    ("room", "picture"): _cell_words,
    ("coins", "moments"): _moment_words,
    ("notes", NOTES): _note_words,
}
"""Words for the values of a field, by form and field."""


def _patches(
    picture: npt.NDArray[np.uint8], patch: int, places: Places, known: Sequence[bool]
) -> dict[str, Any]:
    """Return a picture [h, w] or [h, w, 3] in patches, as `patchPicture` of the pages draws it."""
    pixels = picture[:, :, None] if picture.ndim == 2 else picture
    patches = cut(torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None], patch)[0]
    return {
        "side": len(picture),
        "channels": pixels.shape[2],
        "patch": patch,
        "patches": base64.b64encode(patches.numpy().tobytes()).decode("ascii"),
        "known": list(known),
        "places": places,
    }


def _pixels(sample: RecordSample) -> dict[str, Any]:
    field = sample.fields.fields[-1]
    side, found = field.shape[0], sample.codes(field)
    assert field.size is not None
    flat = np.zeros(side * side, np.uint8)
    for place, (_, code) in enumerate(found):
        flat[place] = round(255 * code / (field.size - 1))
    places = [[at] for at, _ in found] + [[] for _ in range(side * side - len(found))]
    return _patches(flat.reshape(side, side), 1, places, [bool(each) for each in places])


def _room(sample: RecordSample) -> dict[str, Any]:
    found = sample.codes(sample.fields.fields[0])
    places = [[at] for at, _ in found] + [[] for _ in range(rooms.SIDE**2 - len(found))]
    picture = room_picture([code for _, code in found])
    record = sample.record
    said = {"said": record.get("instruction", ""), "action": record.get("action", "")}
    return {**_patches(picture, CELL, places, [bool(each) for each in places]), **said}


def _coins(sample: RecordSample) -> dict[str, Any]:
    places: Places = [[] for _ in range(coins.SIDE**2)]
    game: coins.Game | None = None
    for at, code in sample.codes(sample.fields.fields[0]):
        if coins.FIRST_PLACE <= code < coins.FIRST_ACTION:
            place = code - coins.FIRST_PLACE
            places[place].append(at)
            game = game or coins.Game(divmod(place, coins.SIDE))
        elif code >= coins.FIRST_ACTION and game is not None:
            game = game.after(code - coins.FIRST_ACTION)[0]
    game = game or coins.Game((-1, -1))
    way = [number for number, tokens in enumerate(places) if tokens]
    drawn = _patches(coin_picture(game.player, game.left, way), CELL, places, [True] * len(places))
    return {**drawn, "coins": len(coins.COINS) - len(game.left)}


def _notes(sample: RecordSample) -> dict[str, Any]:
    """Return notes [start, pitch, end] of all voices; equal pitches after each other are one."""
    field = sample.fields.fields[-1]
    voices = field.shape[1]
    running: dict[int, int] = {}
    notes: list[list[int]] = []
    places: Places = []
    for number, (at, pitch) in enumerate(sample.codes(field)):
        moment, voice = divmod(number, voices)
        sounding = running.get(voice)
        # A note that was given ends where the model begins, so that both can be told apart.
        goes_on = sounding is not None and not sample.kept <= at < sample.kept + voices
        if sounding is not None and goes_on and notes[sounding][1] == pitch:
            notes[sounding][2] = moment + 1
            places[sounding].append(at)
        elif pitch:
            running[voice] = len(notes)
            notes.append([moment, pitch, moment + 1])
            places.append([at])
        else:
            running.pop(voice, None)
    return {
        "notes": notes,
        "places": places,
        "seconds_per_step": _EIGHTH,
        "from": sample.kept / voices,
        "length": field.shape[0],
    }


def _series(sample: RecordSample) -> dict[str, Any]:
    spec = RecordSpec.parse(sample.fields.reading)
    found = sample.codes(sample.fields.fields[-1])
    values = values_of(np.array([code for _, code in found]), 1.0, spec)
    drawn: dict[str, Any] = {
        "values": np.round(values, 4).tolist(),
        "places": [[at] for at, _ in found],
        "from": sample.kept,
        "length": spec.context + spec.horizon,
    }
    if sample.futures is not None:
        futures = values_of(sample.futures, 1.0, spec)
        low, median, high = np.quantile(futures, (INTERVAL[0], 0.5, INTERVAL[1]), axis=0)
        for name, each in (("low", low), ("median", median), ("high", high)):
            drawn[name] = np.round(each, 4).tolist()
    return drawn


_FORMS = {"pixels": _pixels, "room": _room, "coins": _coins, "notes": _notes, "series": _series}
