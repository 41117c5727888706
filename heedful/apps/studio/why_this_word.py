"""Reasons for a word that a model writes: attribution, contrast, lens and translations anew."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from heedful.apps.pruning.ablation import ablated
from heedful.apps.studio.page import ModelRequest, call, check_length, round_digits, subject_of
from heedful.apps.studio.workspace import Workspace
from heedful.errors import DataError
from heedful.inspect.attribution import Way, attribute, head_effects
from heedful.inspect.decoding_steps import NextToken, follow_search, next_token
from heedful.inspect.residual_stream import EMBEDDING, NORMS, contributions, layer_logits
from heedful.inspect.subject import Subject
from heedful.search.search_settings import SearchSettings

LONGEST = 600
"""Maximum number of characters of a text, which is computed anew without each of its tokens."""
CANDIDATES = 6
MOST_HEADS = 8

Addresses = Annotated[tuple[Annotated[str, Field(max_length=80)], ...], Field(max_length=64)]
Tokens = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=200)]
Places = Annotated[tuple[Annotated[int, Field(ge=0, le=1000)], ...], Field(max_length=200)]


class WrittenWordRequest(ModelRequest):
    """A source or prompt, the output up to a word, the word, and a token to compare it with.

    The word is given as text, by `before` and `word`, or as ids, by `tokens` and `token`.
    """

    line: str
    before: str = ""
    word: str = Field("", description="word that is explained; the end of the line if empty")
    tokens: Tokens = Field((), description="ids of the output so far, with `token`")
    token: int | None = Field(
        None, ge=0, description="id that is explained; the first one of `word` if unset"
    )
    against: int | None = Field(None, ge=0, description="token to compare with; none if unset")


class AttributionRequest(WrittenWordRequest):
    """A word, and the way to attribute it to other words."""

    way: Way = "silence"


class AgainRequest(ModelRequest):
    """A source or prompt to write from again, with silent tokens and without heads."""

    line: str
    silent: Places = Field((), description="indices of its tokens that nothing attends to")
    heads: Addresses = Field((), description="addresses of heads that are off")
    beam: Annotated[int, Field(ge=1, le=8)] = 4


@call(AttributionRequest)
def why(request: AttributionRequest, workspace: Workspace) -> dict[str, Any]:
    """Return what each token of the source or prompt and of the output so far adds to a word."""
    subject, result, token, written = _predicted(request, workspace)
    found = attribute(subject, result.reading, token, against=request.against, way=request.way)
    order = result.scores.argsort(kind="stable")[::-1]
    sides = {}
    for name, scores in found.scores.items():
        tokens = result.reading.tokens(name)
        special = list(tokens.special)
        sides[name] = {
            "pieces": list(tokens.pieces), "special": special, "scores": round_digits(scores)
        }  # fmt: skip
    # The tokens of a prompt, unlike those of a source, share the decoder with what is written.
    first = next(iter(sides.values()))["pieces"]
    return {
        "token": token,
        "piece": result.names[token],
        "given": len(first) - (0 if len(sides) > 1 else written),
        "value": found.value,
        "baseline": found.baseline,
        "sides": sides,
        "candidates": [
            {
                "id": _in_vocabulary(int(each), subject, result),
                "piece": result.names[each],
                "probability": math.exp(score),
            }
            for each in order[:CANDIDATES]
            if (score := float(result.scores[each])) > -math.inf
        ],
    }


@call(WrittenWordRequest)
def inside(request: WrittenWordRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the lens by layer, and what sub-layers and heads add to a word."""
    subject, result, token, _ = _predicted(request, workspace)
    shown = [token, *([] if request.against is None else [request.against])]
    layers = [_layer(logits()[-1].numpy(), shown, result.names)
              for logits in layer_logits(subject, result.reading)]  # fmt: skip
    rows = len(result.reading.tokens("decoder"))
    by_token = [
        contributions(subject, result.reading, "decoder", tokens=[each] * rows) for each in shown
    ]
    scores = [each.scores[:, -1] for each in by_token if each.scores is not None]
    parts = scores[0] - scores[1] if len(scores) > 1 else scores[0]
    effects = head_effects(subject, result.reading, token, against=request.against)
    strongest = sorted(effects.items(), key=lambda pair: -abs(pair[1]))[:MOST_HEADS]
    return {
        "layers": layers,
        "parts": [
            {"name": name, "score": float(score)}
            for name, score in zip(by_token[0].parts, parts, strict=True)
            if name not in (EMBEDDING, NORMS) or score
        ],
        "heads": [{"address": name, "effect": value} for name, value in strongest],
    }


@call(AgainRequest)
def again(request: AgainRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the translation or continuation with silent tokens and without heads."""
    check_length(request.line, LONGEST, where="line")
    subject = subject_of(request.model, workspace)
    settings = SearchSettings(beam=request.beam)
    if not request.heads:
        record = follow_search(subject, request.line, settings, silent=request.silent)
    else:
        # A copy, since heads that are off are off for all that use the same model.
        alone = replace(subject, model=copy.deepcopy(subject.model))
        with ablated(alone.model, request.heads):
            record = follow_search(alone, request.line, settings, silent=request.silent)
    return {"text": record.texts[0], "score": record.hypotheses[0].score}


def _predicted(
    request: WrittenWordRequest, workspace: Workspace
) -> tuple[Subject, NextToken, int, int]:
    """Return the model, its prediction, the token of the word, and how many stand before it.

    Raises:
        DataError: when the word adds no token, or is given both as text and as ids.
    """
    for text in (request.line, request.before, request.word):
        check_length(text, LONGEST, where="line")
    subject = subject_of(request.model, workspace)
    if request.token is None:
        begin, token = _tokens_of(request, subject)
    elif request.before or request.word:
        raise DataError("The word is given as text and as a token", where="token")
    else:
        begin, token = [*request.tokens], request.token
    version = workspace.place(request.model).load().version
    key = ("next", request.model, version, request.line, tuple(begin))
    result = workspace.recent.get(key, lambda: next_token(subject, request.line, begin))
    return subject, result, _in_vocabulary(token, subject, result), len(begin)


def _tokens_of(request: WrittenWordRequest, subject: Subject) -> tuple[list[int], int]:
    """Return the tokens before a word, and the first token of the word."""
    target = subject.target
    begin = target.encode(" ".join(request.before.split()))
    if not request.word.strip():
        return begin, target.eos
    whole = target.encode(" ".join(f"{request.before} {request.word}".split()))
    common = _common(begin, whole)
    if common == len(whole):
        raise DataError("The word adds no token to what stands before it", where="word")
    return whole[:common], whole[common]


def _in_vocabulary(token: int, subject: Subject, result: NextToken) -> int:
    """Return the model's own id of a token: a language model's search ends by an id after it."""
    return subject.target.eos if token == result.end else token


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _layer(logits: np.ndarray, shown: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Return the best token of a layer's logits [V], and the probabilities of some tokens."""
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    probabilities = shifted / shifted.sum()
    best = int(probabilities[: len(names)].argmax())
    return {
        "best": names[best],
        "probability": float(probabilities[best]),
        "shown": [float(probabilities[each]) for each in shown],
    }
