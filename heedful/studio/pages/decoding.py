"""Page "Decoding": a model writes, token by token, or searches with a beam."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.config import Config
from heedful.studio.page import Call, Page
from heedful.studio.readings import check_length, subject_of

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.decode.trace import Looked, Step
    from heedful.inspect.decoding import NextToken, Search
    from heedful.inspect.maps import Part
    from heedful.inspect.subject import Subject
    from heedful.studio.workspace import Workspace

LONGEST = 1000
"""Characters that are read while somebody waits."""
MOST_CHOSEN = 200
"""Tokens that are chosen one by one."""

Chosen = Annotated[tuple[int, ...], Field(max_length=MOST_CHOSEN)]


class BegunRequest(Config):
    """A text, and the tokens that were written so far."""

    model: str
    text: str
    chosen: Chosen = ()


class StepRequest(BegunRequest):
    """What to show of the next step."""

    layer: Annotated[int, Field(ge=0)] | None = Field(None, description="the mean of all if unset")
    head: Annotated[int, Field(ge=0)] | None = Field(None, description="the mean of all if unset")
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 1
    count: Annotated[int, Field(ge=1, le=100)] = 12


class BeamRequest(Config):
    """A text, and how to search for what follows."""

    model: str
    text: str
    beam: Annotated[int, Field(ge=1, le=8)] = 4
    n_best: Annotated[int, Field(ge=1, le=8)] = 1
    length_penalty: Annotated[float, Field(ge=0, le=5)] = 0.6
    max_length: Annotated[int, Field(ge=1, le=60)] = 30


def step(asked: StepRequest, workspace: Workspace) -> dict[str, Any]:
    """The next token: what the step sees, the candidates, what is kept."""
    from heedful.inspect.decoding import next_token
    from heedful.inspect.maps import heads_of, weight_addresses

    check_length(asked.text, LONGEST, where="text")
    subject = subject_of(asked.model, workspace)
    found = next_token(subject, asked.text, asked.chosen)
    decoder = found.reading.decoder
    assert decoder is not None
    part: Part = "decoder" if found.reading.encoder is None else "cross"
    encoder = found.reading.encoder
    return {
        "text": found.text,
        "read": list(decoder.pieces),
        "given": len(decoder) - len(asked.chosen) + found.ended,
        "ended": found.ended,
        "score": math.fsum(found.chosen_scores),
        "visible": list(found.visible),
        "weights": _row(subject, found, "decoder", asked),
        "source": None if encoder is None else list(encoder.pieces),
        "cross": None if encoder is None else _row(subject, found, "cross", asked),
        "layers": len(weight_addresses(subject.model, part)),
        "heads": heads_of(subject.model, part),
        "kept": [{"slots": each.slots, "bytes": each.bytes} for each in found.kept],
        "shape": list(found.kept[-1].shape),
        "memory": found.memory_bytes,
        **_candidates(found, asked),
    }


def greedy(asked: BegunRequest, workspace: Workspace) -> dict[str, Any]:
    """What the most probable tokens lead to, to the end or so far as is shown."""
    from heedful.decode.settings import SearchSettings
    from heedful.inspect.decoding import follow_search

    check_length(asked.text, LONGEST, where="text")
    subject = subject_of(asked.model, workspace)
    found = follow_search(subject, asked.text, SearchSettings(beam=1), chosen=asked.chosen)
    tokens = [*found.hypotheses[0].tokens]
    if found.ended:
        tokens.append(found.end)
    return {"chosen": tokens[:MOST_CHOSEN]}


def beam(asked: BeamRequest, workspace: Workspace) -> dict[str, Any]:
    """Every continuation that a search looked at."""
    from heedful.decode.settings import SearchSettings
    from heedful.inspect.decoding import follow_search

    check_length(asked.text, LONGEST, where="text")
    subject = subject_of(asked.model, workspace)
    settings = SearchSettings(
        beam=asked.beam,
        n_best=min(asked.n_best, asked.beam),
        length_penalty=asked.length_penalty,
        max_length=asked.max_length,
    )
    found = follow_search(subject, asked.text, settings)
    return {
        "steps": [_plain(found, each) for each in found.steps],
        "paths": [list(path) for path in found.paths],
        "hypotheses": [
            {
                "text": text,
                "score": each.score,
                "normalized": each.normalized_score,
                "finished": each.finished,
            }
            for each, text in zip(found.hypotheses, found.texts, strict=True)
        ],
    }


def _row(subject: Subject, found: NextToken, part: Part, asked: StepRequest) -> list[float]:
    """Attention of this step, of one head or the mean of several."""
    from heedful.inspect.maps import attention

    assert found.reading.decoder is not None
    weights = attention(
        subject,
        found.reading,
        part,
        layers=None if asked.layer is None else [asked.layer],
        heads=None if asked.head is None else [asked.head],
        rows=[len(found.reading.decoder) - 1],
    )
    row: list[float] = weights.mean()[0].tolist()
    return row


def _candidates(found: NextToken, asked: StepRequest) -> dict[str, Any]:
    """The most probable tokens, and how settings of sampling change what is drawn."""
    import torch

    from heedful.decode.sampling import distribution, draw, random_numbers
    from heedful.decode.settings import SearchSettings

    settings = SearchSettings(
        sampling=True,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        seed=asked.seed,
    )
    scores = torch.from_numpy(found.scores)[None, None]
    own = distribution(scores, SearchSettings(sampling=True))[0, 0]
    drawn = distribution(scores, settings)[0, 0]
    # As `search` draws for its first sentence, so that going on so is what it would write.
    number = random_numbers(asked.seed, torch.zeros(1, dtype=torch.int64), 1, len(asked.chosen))
    best = found.scores.argsort(kind="stable")[::-1][: asked.count].tolist()
    return {
        "candidates": [
            {
                "id": id,
                "piece": found.names[id],
                "probability": math.exp(found.scores[id]),
                "drawn": float(drawn[id]),
            }
            for id in best
            if found.scores[id] > -math.inf
        ],
        "drawn": int(draw(scores, number, settings)),
        "possible": int((own > 0).sum()),
        "drawable": int((drawn > 0).sum()),
        "entropy": _entropy(own),
        "drawn_entropy": _entropy(drawn),
    }


def _entropy(probabilities: Tensor) -> float:
    """In nats."""
    import torch

    return float(torch.special.entr(probabilities).sum())


def _plain(found: Search, step: Step) -> dict[str, Any]:
    return {
        "bound": _finite(step.bound),
        "worst": _finite(step.worst),
        "looked": [_looked(found, each) for each in step.looked],
    }


def _looked(found: Search, each: Looked) -> dict[str, Any]:
    return {
        "piece": found.names[each.token],
        "parent": each.parent,
        "beam": each.beam,
        "fate": each.fate,
        "probability": math.exp(each.token_score),
        "score": each.score,
        "normalized": each.normalized_score,
        "text": found.text_of(each.tokens),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


PAGE = Page(
    name="decoding",
    title="Decoding",
    summary="A model writes: the next token, what is drawn, and the beam as a tree.",
    about=(
        "A model writes one token at a time: each step sees what was written before, looks at the "
        "source if there is one, and gives every token a probability. Choose the next one "
        "yourself, see how temperature and filters change what would be drawn, and watch a beam "
        "search keep several hypotheses alive. Scores are natural logarithms of probabilities."
    ),
    calls={
        "step": Call(StepRequest, step),
        "greedy": Call(BegunRequest, greedy),
        "beam": Call(BeamRequest, beam),
    },
)
