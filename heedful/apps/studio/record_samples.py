"""Samples of models of token sequences: cut into tokens, completed, and in a form of their own.

A form says how a sample is drawn and which tokens each of its places has: pixels of a picture,
cells of a room, notes, values of a series. Attention is given by token, so that a place has the sum
of its tokens' weights.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heedful.apps.acting import coins, rooms
from heedful.apps.acting.pictures import CELL, coin_picture, room_picture
from heedful.apps.acting.rollouts import play_games
from heedful.data.corpus_spec import RecordSpec
from heedful.data.midi_files import FIELD as NOTES
from heedful.data.series_files import values_of
from heedful.nn.patches import cut
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField

FUTURES = 40
"""Number of futures of a series, from which its interval is taken."""
INTERVAL = (0.1, 0.9)
_EIGHTH = 0.3
"""Seconds of a moment of music: a hundred quarter notes a minute."""

Places = list[list[int]]
"""Indices of the tokens of each place of a drawing."""


@dataclass(frozen=True)
class Sample:
    """A record of a model.

    Args:
        fields: the model's fields.
        ids: ids of the tokens, without the begin token.
        kept: number of tokens that were given; the model wrote the others.
        futures: values of all continuations [N, L], where several were drawn.
    """

    fields: FieldTokenizer
    ids: tuple[int, ...]
    kept: int
    futures: npt.NDArray[np.int64] | None = None

    @property
    def record(self) -> dict[str, Any]:
        """The fields of the record."""
        return self.fields.decode_record(self.ids)

    def plain(self) -> dict[str, Any]:
        """Return tokens, kept ones and the drawing as JSON data."""
        numbers = self.fields.field_numbers(np.array(self.ids, np.int64)).tolist()
        return {
            "record": json.dumps(self.record, ensure_ascii=False),
            "tokens": [
                [_piece(self.fields, id), id, number]
                for id, number in zip(self.ids, numbers, strict=True)
            ],
            "kept": self.kept,
            "drawing": drawing_of(self),
        }

    def codes(self, field: TokenField) -> list[tuple[int, int]]:
        """Return the index and the code of each token of a field."""
        number = self.fields.fields.index(field)
        numbers = self.fields.field_numbers(np.array(self.ids, np.int64))
        start = self.fields.starts[field.name]
        return [(int(at), self.ids[at] - start) for at in np.flatnonzero(numbers == number)]


def form_of(fields: FieldTokenizer) -> str:
    """Return how records of these fields are drawn."""
    names = [field.name for field in fields.fields]
    last = fields.fields[-1]
    if fields.reading.get("reader") == "series":
        return "series"
    if names == ["picture", "instruction", "action"]:
        return "room"
    if names == ["moments"] and last.size == coins.VALUES and last.shape[1:] == (3,):
        return "coins"
    if last.name == NOTES and len(last.shape) == 2:
        return "notes"
    square = len(last.shape) == 2 and last.shape[0] == last.shape[1] and last.content == "numbers"
    return "pixels" if square else "tokens"


def cut_sample(fields: FieldTokenizer, text: str, keep: int | None) -> Sample:
    """Cut a record, or its beginning, into tokens.

    Args:
        fields: the model's fields.
        text: the record, a line of JSON.
        keep: number of tokens that are kept; of a whole record half of the last field if None.

    Raises:
        DataError: when it is no record of these fields.
    """
    ids = fields.encode_prompt(text)
    conditions = sum(field.count or 0 for field in fields.fields if field.given)
    if keep is None:
        whole = fields.longest is not None and len(ids) == fields.longest - 2
        last = fields.fields[-1].count or 0
        spec = RecordSpec.parse(fields.reading)
        half = spec.horizon if form_of(fields) == "series" else last - last // 2
        keep = len(ids) - half if whole else len(ids)
    keep = max(min(keep, len(ids)), min(conditions, len(ids)))
    return Sample(fields, tuple(ids[:keep]), keep)


def complete(
    pipeline: GenerationPipeline, begun: Sample, *, temperature: float, seed: int
) -> list[Sample]:
    """Return what a model makes of a beginning: one record, or those of an episode in a room.

    Args:
        pipeline: the model.
        begun: the beginning.
        temperature: of the draws; 0 takes the most probable token each time.
        seed: of the draws.

    Raises:
        UserError: when the beginning cannot be continued.
    """
    form = form_of(begun.fields)
    if form == "room":
        return _room_episode(pipeline, begun)
    if form == "coins" and len(begun.ids) == 2:
        return [_coin_episode(pipeline, begun, seed)]
    draws: dict[str, Any] = {"beam": 1}
    if temperature > 0:
        draws = {"sampling": True, "temperature": temperature, "seed": seed}
        draws |= {"n_best": FUTURES} if form == "series" else {}
    prompt = json.dumps(begun.record)
    (found,) = pipeline.generate([prompt], **draws)
    ids = (*begun.ids, *_without_end(begun.fields, found.tokens))
    futures = None
    if form == "series" and len(found.n_best) > 1:
        start = begun.fields.starts[begun.fields.fields[-1].name]
        futures = np.array([_without_end(begun.fields, each.tokens) for each in found.n_best])
        futures = futures - start
    return [Sample(begun.fields, ids, begun.kept, futures)]


def drawing_of(sample: Sample) -> dict[str, Any]:
    """Return the drawing of a sample as JSON data, with the tokens of its places."""
    form = form_of(sample.fields)
    return {"kind": form, **_FORMS[form](sample)} if form in _FORMS else {"kind": form}


def _room_episode(pipeline: GenerationPipeline, begun: Sample) -> list[Sample]:
    """Let the model act from a room on until it reaches the goal or the time is over."""
    fields, record = begun.fields, begun.record
    room = rooms.read_room(record["picture"], record["instruction"])
    samples: list[Sample] = []
    while len(samples) < rooms.LONGEST and not room.is_done:
        ids = fields.encode_prompt(json.dumps(room.prompt()))
        (found,) = pipeline.generate([json.dumps(room.prompt())], beam=1)
        action = json.loads(found.text)["action"]
        samples.append(Sample(fields, (*ids, *_without_end(fields, found.tokens)), len(ids)))
        room = room.after(action)
    return samples


def _coin_episode(pipeline: GenerationPipeline, begun: Sample, seed: int) -> Sample:
    """Let the model play from its first place on; the world answers each action."""
    start = begun.fields.starts["moments"]
    asked, place = (id - start for id in begun.ids)
    game = coins.Game(divmod(place - coins.FIRST_PLACE, coins.SIDE))
    _, (past,) = play_games(pipeline, [game], asked, seed=seed)
    return Sample(begun.fields, tuple(start + value for value in past), 2)


def _without_end(fields: FieldTokenizer, ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(id for id in ids if id != fields.eos)


def _piece(fields: FieldTokenizer, id: int) -> str:
    """Return a token without the name of its field, which stands beside it."""
    return fields.token(id).partition("=")[2] or fields.token(id)


# Forms


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


def _pixels(sample: Sample) -> dict[str, Any]:
    field = sample.fields.fields[-1]
    side, found = field.shape[0], sample.codes(field)
    assert field.size is not None
    flat = np.zeros(side * side, np.uint8)
    for place, (_, code) in enumerate(found):
        flat[place] = round(255 * code / (field.size - 1))
    places = [[at] for at, _ in found] + [[] for _ in range(side * side - len(found))]
    return _patches(flat.reshape(side, side), 1, places, [bool(each) for each in places])


def _room(sample: Sample) -> dict[str, Any]:
    found = sample.codes(sample.fields.fields[0])
    places = [[at] for at, _ in found] + [[] for _ in range(rooms.SIDE**2 - len(found))]
    picture = room_picture([code for _, code in found])
    record = sample.record
    said = {"said": record.get("instruction", ""), "action": record.get("action", "")}
    return {**_patches(picture, CELL, places, [bool(each) for each in places]), **said}


def _coins(sample: Sample) -> dict[str, Any]:
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


def _notes(sample: Sample) -> dict[str, Any]:
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


def _series(sample: Sample) -> dict[str, Any]:
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
