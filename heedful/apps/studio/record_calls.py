"""Calls of the studio about models of token sequences: completion, attention, spoken examples."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from heedful.apps.studio.page import MOST_TOKENS, LastLayer, ModelRequest, call, round_digits
from heedful.apps.studio.record_samples import complete as completed
from heedful.apps.studio.record_samples import cut_sample
from heedful.apps.studio.sample_forms import piece_of, shown
from heedful.apps.studio.spoken_words import WORDS, say
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config
from heedful.errors import DataError, ModelError, suggest
from heedful.inspect.attention_maps import attention, attentions, choose_layer, num_heads
from heedful.inspect.readings import ModelInput, read, tensors
from heedful.inspect.subject import Subject, inference
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.field_tokenizer import FieldTokenizer

CANDIDATES = 5
"""Number of tokens whose probabilities are shown at a place of a record."""
LONGEST_RECORD = 20_000
"""Maximum number of characters of a record."""


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


class WordRequest(Config):
    """A word of the synthesizer."""

    word: Annotated[str, Field(max_length=40)]


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
        "begun": shown(begun),
        "samples": [shown(each) for each in written],
    }


@call(WeightsRequest)
def weights(request: WeightsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return what a head attends to when the model predicts a token, and the likeliest tokens."""
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
    candidates = _candidates(subject, reading, request.token)
    return {
        "shares": round_digits(found[1:]),
        "begin": float(found[0]),
        "candidates": candidates,
    }


def _candidates(subject: Subject, reading: ModelInput, token: int) -> list[dict[str, Any]]:
    """Return the likeliest tokens of a place and its own, among those of the place's field."""
    fields: Any = subject.source
    ids = np.array(reading.tokens("decoder").ids[1:], np.int64)
    if token >= len(ids):
        return []
    field = fields.fields[int(fields.field_numbers(ids[token : token + 1])[0])]
    start = fields.starts[field.name]
    size = field.size or fields.size - start
    model: Any = subject.model
    with inference(model):
        states = model(*tensors(subject, [reading]))[:, token]
        logits = model.logits(states)[0, start : start + size]
    chances = logits.double().softmax(-1)
    own = int(ids[token]) - start
    best = chances.argsort(descending=True, stable=True)[:CANDIDATES].tolist()
    chosen = best if own in best else [*best, own]
    return [
        {
            "label": piece_of(fields, start + code),
            "probability": chance,
            "own": code == own,
        }
        for code, chance in zip(chosen, round_digits(chances[chosen]), strict=True)
    ]


@call(WordRequest)
def spoken(request: WordRequest, workspace: Workspace) -> dict[str, str]:
    """Return a spoken word as a WAV file in base64."""
    if request.word not in WORDS:
        raise DataError(f"Nobody says {request.word!r}", remedy=suggest(request.word, WORDS))
    return {"wav": base64.b64encode(say(request.word)).decode("ascii")}


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
