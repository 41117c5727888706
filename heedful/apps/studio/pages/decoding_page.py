"""Page "Decoding": generation token by token, or by a beam search."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from heedful.apps.studio.page import (
    PromptRequest,
    call,
    check_length,
    layer_of,
    mixer_kinds,
    subject_of,
)
from heedful.apps.studio.workspace import Workspace
from heedful.errors import ConfigError
from heedful.inspect.attention_maps import (
    AttentionMap,
    AttentionPart,
    attention,
    attentions,
    choose,
    num_heads,
    parts_of,
)
from heedful.inspect.decoding_steps import NextToken, SearchRecord, follow_search, next_token
from heedful.inspect.subject import Subject
from heedful.search.sampling import distribution, draw, random_numbers
from heedful.search.search_settings import SearchSettings
from heedful.search.search_trace import Step

LONGEST = 1000
"""Maximum number of characters of a text, which limits the waiting time."""
MOST_CHOSEN = 200
"""Maximum number of tokens that are chosen one by one."""

_SHOWN: tuple[AttentionPart, ...] = ("decoder", "cross")

Chosen = Annotated[tuple[int, ...], Field(max_length=MOST_CHOSEN)]


class BegunRequest(PromptRequest):
    """A text, and the tokens of the output so far."""

    chosen: Chosen = ()


class StepRequest(BegunRequest):
    """The attention and the candidates of the next step to show."""

    layer: int | None = Field(
        None, ge=0, description="decoder layer whose attention to show; the mean of all if unset"
    )
    head: int | None = Field(None, ge=0, description="index of the head; mean of all if unset")
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 1
    count: Annotated[int, Field(ge=1, le=100)] = 12


class BeamRequest(PromptRequest):
    """A text, and settings of a beam search."""

    beam: Annotated[int, Field(ge=1, le=8)] = 4
    n_best: Annotated[int, Field(ge=1, le=8)] = 1
    length_penalty: Annotated[float, Field(ge=0, le=5)] = 0.6
    max_length: Annotated[int, Field(ge=1, le=60)] = 30


@call(StepRequest)
def step(request: StepRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the next step: visible positions, attention, candidates and cache size.

    Weights are null where the model, or the chosen layer, has no such attention.
    """
    subject = _subject(request, workspace)
    key = (*_key(request, workspace), request.chosen)
    result = workspace.recent.get(
        ("next", *key), lambda: next_token(subject, request.text, request.chosen)
    )

    has = parts_of(subject.model)
    modules = {part: attentions(subject.model, part) for part in _SHOWN if part in has}
    layers = {part: [layer_of(each) for each in modules[part]] for part in modules}
    numbers = sorted({each for part in layers.values() for each in part})
    if request.layer not in (None, *numbers):
        raise ConfigError(
            f"Layer {request.layer} has no attention to show",
            where="layer",
            remedy=f"Those that have: {', '.join(map(str, numbers)) or 'none'}",
        )

    def rows(part: AttentionPart) -> list[list[float]] | None:
        if part not in layers or request.layer not in (None, *layers[part]):
            return None
        whole = workspace.recent.get(
            ("steps", part, *key), lambda: attention(subject, result.reading, part)
        )
        return _rows(whole, layers[part], request)

    decoder = result.reading.tokens("decoder")
    encoder = result.reading.encoder
    return {
        "text": result.text,
        "read": list(decoder.pieces),
        "given": len(decoder) - len(request.chosen) + result.ended,
        "ended": result.ended,
        "score": math.fsum(result.chosen_scores),
        "visible": list(result.visible),
        "weights": rows("decoder"),
        "source": None if encoder is None else list(encoder.pieces),
        "cross": None if encoder is None else rows("cross"),
        "layers": numbers,
        "heads": max((num_heads(each) for each in modules.values()), default=0),
        "mixers": mixer_kinds([subject.model.spec.stacks()["decoder"]]),
        "kept": [{"slots": each.slots, "bytes": each.bytes} for each in result.cache_sizes],
        "shape": list(result.cache_sizes[-1].shape),
        "memory": result.memory_bytes,
        **_candidates(result, request),
    }


@call(BegunRequest)
def greedy(request: BegunRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the tokens of greedy search, up to the end or the page's limit."""
    subject = _subject(request, workspace)
    record = follow_search(subject, request.text, SearchSettings(beam=1), chosen=request.chosen)
    tokens = [*record.hypotheses[0].tokens]
    if record.ended:
        tokens.append(record.end)
    return {"chosen": tokens[:MOST_CHOSEN]}


@call(BeamRequest)
def beam(request: BeamRequest, workspace: Workspace) -> dict[str, Any]:
    """Return every continuation that a beam search scored."""
    subject = _subject(request, workspace)
    search = request.model_dump(include={"beam", "length_penalty", "max_length"})
    settings = SearchSettings(n_best=min(request.n_best, request.beam), **search)
    record = workspace.recent.get(
        ("beam", *_key(request, workspace), settings),
        lambda: follow_search(subject, request.text, settings),
    )
    return {
        "steps": [_plain(record, each) for each in record.steps],
        "paths": [list(path) for path in record.paths],
        "hypotheses": [
            {
                "text": text,
                "score": each.score,
                "normalized": each.normalized_score,
                "finished": each.finished,
            }
            for each, text in zip(record.hypotheses, record.texts, strict=True)
        ],
    }


def _subject(request: PromptRequest, workspace: Workspace) -> Subject:
    check_length(request.text, LONGEST, where="text")
    return subject_of(request.model, workspace)


def _key(request: PromptRequest, workspace: Workspace) -> tuple[Any, ...]:
    return (request.model, workspace.place(request.model).load().version, request.text)


def _rows(whole: AttentionMap, layers: list[int], request: StepRequest) -> list[list[float]]:
    """Return the attention of all steps so far, of one head or as a mean over several."""
    chosen = range(len(layers)) if request.layer is None else [layers.index(request.layer)]
    heads = choose(None if request.head is None else [request.head], len(whole.heads), "head")
    weights = whole.weights[np.ix_(chosen, heads)]
    rows: list[list[float]] = replace(whole, weights=weights).mean().tolist()
    return rows


def _candidates(result: NextToken, request: StepRequest) -> dict[str, Any]:
    """Return the most probable tokens, and their probabilities under settings of sampling."""
    drawing = {"temperature", "top_k", "top_p", "min_p", "seed"}
    settings = SearchSettings(sampling=True, **request.model_dump(include=drawing))
    scores = torch.from_numpy(result.scores)[None, None]
    own = distribution(scores, SearchSettings(sampling=True))[0, 0]
    drawn = distribution(scores, settings)[0, 0]
    # Samples like `search` for its first sentence, so that the page agrees with its output.
    number = random_numbers(request.seed, torch.zeros(1, dtype=torch.int64), 1, len(request.chosen))
    best = result.scores.argsort(kind="stable")[::-1][: request.count].tolist()
    return {
        "candidates": [
            {
                "id": id,
                "piece": result.names[id],
                "probability": math.exp(result.scores[id]),
                "drawn": float(drawn[id]),
            }
            for id in best
            if result.scores[id] > -math.inf
        ],
        "drawn": int(draw(scores, number, settings)),
        "possible": int((own > 0).sum()),
        "drawable": int((drawn > 0).sum()),
        "entropy": float(torch.special.entr(own).sum()),  # entropy in nats
        "drawn_entropy": float(torch.special.entr(drawn).sum()),
    }


def _plain(record: SearchRecord, step: Step) -> dict[str, Any]:
    return {
        "bound": _finite(step.bound),
        "worst": _finite(step.worst),
        "looked": [
            {
                "token": each.token,
                "piece": record.names[each.token],
                "parent": each.parent,
                "beam": each.beam,
                "fate": each.fate,
                "probability": math.exp(each.token_score),
                "score": each.score,
                "normalized": each.normalized_score,
                "text": record.text_of(each.tokens),
            }
            for each in step.ranked
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
