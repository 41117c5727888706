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
    LastLayer,
    ModelRequest,
    NoSettings,
    PromptRequest,
    call,
    check_length,
    round_digits,
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
from heedful.apps.studio.record_samples import complete as completed
from heedful.apps.studio.record_samples import cut_sample
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config, read_toml
from heedful.errors import DataError, ModelError, suggest
from heedful.inspect.attention_maps import attention, attentions, choose_layer, num_heads
from heedful.inspect.readings import ModelInput, read, see, tensors
from heedful.inspect.subject import Subject, capture, stack_of, sublayers
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.field_tokenizer import FieldTokenizer

TUNES_FILE = Path(__file__).parents[1] / "tunes.toml"
LONGEST = 400
"""Maximum number of characters of a text, so that all tokens fit into the chart."""
LONGEST_RECORD = 20_000
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


class RecordRequest(ModelRequest):
    """A model of token sequences, and a record or its beginning."""

    record: Annotated[str, Field(max_length=LONGEST_RECORD)]


class CompleteRequest(RecordRequest):
    """A record, and how the model goes on with its beginning."""

    keep: int | None = Field(
        None, ge=0, description="number of tokens that are kept; half of the last field if unset"
    )
    temperature: float = Field(
        1.0, ge=0, le=2, description="temperature of the draws; 0 takes the most probable token"
    )
    seed: int = Field(1, ge=0, le=1_000_000, description="seed of the draws")


class WeightsRequest(RecordRequest):
    """A whole record, one of its tokens, and a head."""

    token: int = Field(ge=0, le=100_000, description="index of the token that is predicted")
    layer: LastLayer = -1
    head: int = Field(-1, ge=-1, le=10_000, description="index of the head; −1 is the mean of all")


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


@call(CompleteRequest)
def complete(request: CompleteRequest, workspace: Workspace) -> dict[str, Any]:
    """Return a record in tokens and in its own form, as given and as the model completes it."""
    pipeline = _record_pipeline(request.model, workspace)
    fields: Any = pipeline.tokenizer
    begun = cut_sample(fields, request.record, request.keep)
    if fields.longest is None or fields.longest > MOST_TOKENS:
        raise DataError(
            f"Records of up to {fields.longest or 'any number of'} tokens cannot be drawn",
            where=request.model,
            remedy=f"Choose a model of records of one length, up to {MOST_TOKENS} tokens",
        )
    written = completed(pipeline, begun, temperature=request.temperature, seed=request.seed)
    layers = attentions(pipeline.model, "decoder")
    card = workspace.place(request.model).card()
    return {
        "fields": [
            {"name": each.name, "content": each.content, "given": each.given, "form": each.write()}
            for each in fields.fields
        ],
        "vocabulary": fields.size,
        "whole": len(fields.encode_prompt(request.record)),
        "conditions": sum(field.count or 0 for field in fields.fields if field.given),
        "step": fields.fields[-1].step,
        "layers": len(layers),
        "heads": num_heads(layers),
        "limits": [] if card is None else list(card.limits),
        "begun": begun.plain(),
        "samples": [each.plain() for each in written],
    }


@call(WeightsRequest)
def weights(request: WeightsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return what a head attends to when the model predicts a token, by token."""
    pipeline = _record_pipeline(request.model, workspace)
    subject = Subject(pipeline.model, workspace.place(request.model).load().tokenizers)
    reading = read(subject, request.record)
    layers = attentions(subject.model, "decoder")
    found = attention(
        subject,
        reading,
        "decoder",
        layers=[choose_layer(request.layer, len(layers))],
        heads=None if request.head < 0 else [request.head],
        # A token is predicted at the one before it, and the first one at the begin token.
        rows=[request.token],
    ).mean()[0]
    return {"shares": round_digits(found[1:]), "begin": float(found[0])}


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


def _record_pipeline(name: str, workspace: Workspace) -> GenerationPipeline:
    """Return the model of token sequences of a name.

    Raises:
        UserError: when the name is unknown.
        ModelError: when the model reads something else.
    """
    loaded = workspace.place(name).load()
    model: Any = loaded.model
    tokenizer = loaded.tokenizers and loaded.tokenizers.target
    if not isinstance(tokenizer, FieldTokenizer) or model.spec.reads == "pairs":
        raise ModelError(
            f"This model continues no records; its kind is {model.spec.kind!r}",
            where=name,
            remedy="Choose one that was trained with --task tokens and without an encoder",
        )
    return GenerationPipeline(model, tokenizer)


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
