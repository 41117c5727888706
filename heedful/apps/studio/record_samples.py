"""Samples of models of token sequences: cut into tokens, and completed by the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.apps.acting import coins, rooms
from heedful.apps.acting.rollouts import play_games
from heedful.data.corpus_spec import RecordSpec
from heedful.data.midi_files import FIELD as NOTES
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField

FUTURES = 40
"""Number of futures of a series, from which its interval is taken."""


@dataclass(frozen=True)
class RecordSample:
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


def cut_sample(fields: FieldTokenizer, text: str, keep: int | None) -> RecordSample:
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
        last = fields.fields[-1]
        # Whole rows, so that the lower half of a picture is missing.
        written = (last.count or 0) - last.shape[0] // 2 * last.step
        if form_of(fields) == "series":
            written = RecordSpec.parse(fields.reading).horizon
        keep = len(ids) - written if whole else len(ids)
    keep = max(min(keep, len(ids)), min(conditions, len(ids)))
    return RecordSample(fields, tuple(ids[:keep]), keep)


def complete(
    pipeline: GenerationPipeline, begun: RecordSample, *, temperature: float, seed: int
) -> list[RecordSample]:
    """Return what a model makes of a beginning: one record, or those of an episode in a room.

    Args:
        pipeline: the model.
        begun: the beginning.
        temperature: temperature of the draws; 0 takes the most probable token each time.
        seed: seed of the draws.

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
    return [RecordSample(begun.fields, ids, begun.kept, futures)]


def _room_episode(pipeline: GenerationPipeline, begun: RecordSample) -> list[RecordSample]:
    """Let the model act from a room on until it reaches the goal or the time is over."""
    fields, record = begun.fields, begun.record
    room = rooms.read_room(record["picture"], record["instruction"])
    samples: list[RecordSample] = []
    while len(samples) < rooms.LONGEST and not room.is_done:
        ids = fields.encode_prompt(json.dumps(room.prompt()))
        (found,) = pipeline.generate([json.dumps(room.prompt())], beam=1)
        action = json.loads(found.text)["action"]
        samples.append(RecordSample(fields, (*ids, *_without_end(fields, found.tokens)), len(ids)))
        room = room.after(action)
    return samples


def _coin_episode(pipeline: GenerationPipeline, begun: RecordSample, seed: int) -> RecordSample:
    """Let the model play from its first place on; the world answers each action."""
    start = begun.fields.starts["moments"]
    asked, place = (id - start for id in begun.ids)
    game = coins.Game(divmod(place - coins.FIRST_PLACE, coins.SIDE))
    _, (past,) = play_games(pipeline, [game], asked, seed=seed)
    return RecordSample(begun.fields, tuple(start + value for value in past), 2)


def _without_end(fields: FieldTokenizer, ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(id for id in ids if id != fields.eos)
