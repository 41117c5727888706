"""Page "Transformers everywhere": anything that is cut into tokens, in models of the same block."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import nn

from heedful.apps.studio.music_events import (
    PITCHES,
    STEPS_PER_SECOND,
    VOCABULARY_SIZE,
    MusicNote,
    encode_notes,
)
from heedful.apps.studio.page import (
    MOST_TOKENS,
    NoSettings,
    PromptRequest,
    call,
    check_length,
    subject_of,
)
from heedful.apps.studio.pages.image_page import (
    EXAMPLES,
    MOST_DRAWN,
    ImageRequest,
    image_pipeline,
    patches_of,
    picture_of,
)
from heedful.apps.studio.record_calls import complete, spoken, weights
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config, read_toml
from heedful.errors import DataError, suggest
from heedful.inspect.readings import ModelInput, read, see, tensors
from heedful.inspect.subject import Subject, capture, stack_of, sublayers

# Calls of this page that stand in a module of their own.
__all__ = ["complete", "spoken", "weights"]

TUNES_FILE = Path(__file__).parents[1] / "tunes.toml"
LONGEST = 400
"""Maximum number of characters of a text, so that all tokens fit into the chart."""
MUSIC_WIDTH = 64
_SEED = 1
_NAMES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
_NOTE = re.compile(r"(?:(-)|([A-G])(#?)(\d))(?::(\d+(?:\.\d+)?))?")

Words = Annotated[str, Field(min_length=1)]


class Tune(Config):
    """A tune with several voices; see `tunes.toml`."""

    name: Words
    title: Words
    origin: Words
    about: Words
    seconds_per_beat: float = Field(gt=0)
    voices: tuple[Words, ...]

    @model_validator(mode="after")
    def _notes_can_be_read(self) -> Self:
        for voice in self.voices:
            _read_voice(voice, self.steps_per_beat)
        return self

    @property
    def steps_per_beat(self) -> float:
        """The number of time steps in a beat."""
        return self.seconds_per_beat * STEPS_PER_SECOND

    def parts(self) -> list[list[MusicNote]]:
        """Return the notes of each voice."""
        return [_read_voice(voice, self.steps_per_beat) for voice in self.voices]

    def notes(self) -> list[MusicNote]:
        """Return the notes of all voices, in the order of their onsets."""
        return sorted(note for voice in self.parts() for note in voice)


class Tunes(Config):
    """The tunes of the package."""

    tunes: tuple[Tune, ...]


class MusicRequest(Config):
    """The name of a tune."""

    tune: Annotated[str, Field(max_length=40)] = "round"


@functools.cache
def read_tunes() -> dict[str, Tune]:
    """Read the tunes of the package, by name."""
    parsed = Tunes.parse(read_toml(TUNES_FILE), where=str(TUNES_FILE))
    return {tune.name: tune for tune in parsed.tunes}


@call(PromptRequest)
def text(request: PromptRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the tokens of a text, their ids, and the input vectors of the first block."""
    check_length(request.text, LONGEST, where="text", remedy="Shorten it; other pages take more")
    subject = subject_of(request.model, workspace)
    # Only the source is shown, so an empty translation saves a search.
    reading = read(subject, request.text, "" if subject.model.spec.reads == "pairs" else None)
    stack = "decoder" if reading.encoder is None else "encoder"
    tokens = reading.tokens(stack)
    if len(tokens) > MOST_TOKENS:
        raise DataError(
            f"{len(tokens):,} tokens are more than the {MOST_TOKENS} that can be drawn",
            where="text",
            remedy="Shorten it",
        )
    tokenizer = subject.source
    return {
        "pieces": list(tokens.pieces),
        "ids": list(tokens.ids),
        "special": list(tokens.special),
        "vocabulary": tokenizer.size,
        **_entering(subject, reading, stack),
    }


@call(ImageRequest)
def image(request: ImageRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the patches of an image in reading order, and the input vectors of the first block."""
    pipeline = image_pipeline(request.model, workspace)
    spec = pipeline.spec
    picture = picture_of(request, pipeline)
    subject = Subject(pipeline.engine)
    reading = see(subject, pipeline.prepare([picture])[0].numpy())
    return {
        **patches_of(pipeline, picture),
        "first": spec.num_states - (spec.image_size // spec.patch_size) ** 2,
        "canvas": min(spec.image_size, MOST_DRAWN // 2),
        "examples": list(EXAMPLES),
        "label": pipeline.classify([picture])[0][0].label,
        **_entering(subject, reading, "encoder"),
    }


@call(MusicRequest)
def music(request: MusicRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the notes of a tune, its events, and untrained vectors for them."""
    tunes = read_tunes()
    tune = tunes.get(request.tune)
    if tune is None:
        raise DataError(f"There is no tune {request.tune!r}", remedy=suggest(request.tune, tunes))
    notes = tune.notes()
    events = encode_notes(notes)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(_SEED)
        table = nn.Embedding(VOCABULARY_SIZE, MUSIC_WIDTH)
        vectors = table(torch.tensor([event.id for event in events]))
    times: list[int] = []
    now = 0
    for event in events:
        times.append(now)
        now += event.value if event.kind == "time_shift" else 0
    steps = tune.steps_per_beat
    return {
        "title": tune.title,
        "origin": tune.origin,
        "about": tune.about,
        "notes": [[note.start, note.pitch, note.end] for note in notes],
        "events": [[event.kind, event.value, event.id] for event in events],
        "times": times,
        "seconds_per_step": 1 / STEPS_PER_SECOND,
        "vocabulary": VOCABULARY_SIZE,
        "recurrence": recurrence(notes, steps),
        "vectors": _rounded(vectors.numpy()),
        "width": MUSIC_WIDTH,
        "parts": None,
        "layers": None,
    }


@call()
def tunes(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return the names and titles of the tunes."""
    return {"tunes": [[tune.name, tune.title] for tune in read_tunes().values()]}


def recurrence(notes: Sequence[MusicNote], steps_per_beat: float) -> list[list[float]]:
    """Return the share of notes that recur after each number of beats, in any octave.

    Args:
        notes: notes of the tune.
        steps_per_beat: number of time steps in a beat.

    Returns:
        A pair of beats and share for each whole number of beats, up to half of the tune.
    """
    starts = {(note.start, note.pitch % 12) for note in notes}
    last = max(start for start, _ in starts)
    pairs: list[list[float]] = []
    for beats in range(1, int(last / steps_per_beat / 2) + 1):
        distance = round(beats * steps_per_beat)
        could = [each for each in starts if each[0] + distance <= last]
        again = sum((start + distance, pitch) in starts for start, pitch in could)
        pairs.append([beats, again / len(could)])
    return pairs


def _read_voice(voice: str, steps_per_beat: float) -> list[MusicNote]:
    """Return the notes of a voice, one after the other."""
    notes: list[MusicNote] = []
    beats = 0.0
    for word in voice.split():
        if word == "|":
            continue
        match = _NOTE.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is no note")
        rest, name, sharp, octave, length = match.groups()
        end = beats + float(length or 1)
        if not rest:
            pitch = 12 * (int(octave) + 1) + _NAMES[name] + bool(sharp)
            assert pitch < PITCHES
            notes.append(
                MusicNote(round(beats * steps_per_beat), pitch, round(end * steps_per_beat))
            )
        beats = end
    return notes


def _entering(subject: Subject, reading: ModelInput, stack: str) -> dict[str, Any]:
    """Return the input vectors [L, D] of a stack's first block, and their components."""
    address = f"{stack}.embedding"
    vectors = capture(subject.model, tensors(subject, [reading]), [address])[address][0]
    blocks = stack_of(subject.model, stack).blocks
    return {
        "vectors": _rounded(vectors),
        "width": vectors.shape[1],
        "layers": len(blocks),
        "parts": [part.label for name, part in sublayers(blocks[0]).items() if name != "cross"],
    }


def _rounded(vectors: np.ndarray) -> list[list[float]]:
    values: list[list[float]] = np.round(vectors.astype(float), 3).tolist()
    return values
