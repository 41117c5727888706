"""Page "Block": the tensors of a sentence in a block of a model."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from heedful.apps.studio.page import (
    LastLayer,
    PromptRequest,
    StackRequest,
    TextRequest,
    call,
    read_text,
    round_digits,
)
from heedful.apps.studio.workspace import Workspace
from heedful.errors import DataError
from heedful.inspect.block_flow import FlowPart, block_flow
from heedful.inspect.readings import tensors
from heedful.inspect.residual_stream import contributions
from heedful.inspect.subject import Subject, run, sublayers
from heedful.nn.capture import Capture
from heedful.search.alignment import token_words

MOST_CONTEXTS = 16
CHANNELS = 32
"""Channels of a vector that are drawn; all of them would be too narrow to tell apart."""
WIDENED = 4 * CHANNELS
"""Channels of an inner layer that are drawn: it is about four times as wide."""
MOST_STRIPS = 40
"""Maximum number of tokens whose vectors are returned."""
PUNCTUATION = " .,;:!?\"'()“”"


class FlowRequest(StackRequest):
    """A text, and the block to follow it through."""

    layer: LastLayer = -1


class ContextsRequest(PromptRequest):
    """Sentences with one word, a line each."""

    word: Annotated[str, Field(min_length=1, max_length=40)]


@call(FlowRequest)
def flow(request: FlowRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the tensors of a block with their inputs, shapes and sizes."""
    subject, reading = read_text(request, workspace)
    result = block_flow(subject, reading, _stack(request, subject), request.layer)
    stacks = {name: len(stack.blocks) for name, stack in subject.model.stacks().items()}
    parts = [{**part.plain(), "channels": _channels(part)} for part in result.parts]
    return {"stacks": stacks, "target": reading.target, **result.plain(), "parts": parts}


def _channels(part: FlowPart) -> Any:
    """Return the first channels of each token's vector, [tokens, channels]; null without them.

    Scores and weights are whole rows, [queries, keys], with null for hidden scores.
    """
    if part.vectors is None or len(part.tokens) > MOST_STRIPS:
        return None
    if part.role in ("scores", "weights"):
        if part.vectors.shape[-1] > MOST_STRIPS:
            return None
        seen = np.isfinite(part.vectors)
        rows = round_digits(np.where(seen, part.vectors, 0))
        return [
            [value if is_seen else None for value, is_seen in zip(*row, strict=True)]
            for row in zip(rows, seen, strict=True)
        ]
    return round_digits(part.vectors[:, : WIDENED if part.role == "inner" else CHANNELS])


@call(StackRequest)
def stream(request: StackRequest, workspace: Workspace) -> dict[str, Any]:
    """Return each sub-layer's addition to the stream, and its share in the output."""
    subject, reading = read_text(request, workspace)
    result = contributions(subject, reading, _stack(request, subject))
    numbers = {
        "added": result.sizes,
        "stream": result.stream_sizes,
        "cosine": result.cosines,
        "shares": result.shares,
    }
    return {
        "rows": result.rows,
        "sublayers": result.sublayers,
        "parts": result.parts,
        **{name: round_digits(values) for name, values in numbers.items()},
    }


@call(ContextsRequest)
def contexts(request: ContextsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the vectors of a word after each block, in several sentences, as points of a plane.

    The plane of a depth is that of the two directions in which its vectors differ most.
    """
    lines = [line.strip() for line in request.text.splitlines() if line.strip()]
    if not 3 <= len(lines) <= MOST_CONTEXTS:
        raise DataError(
            f"There are {len(lines)} sentences; 3 to {MOST_CONTEXTS} can be compared",
            where="text",
            remedy="Type as many, a line each",
        )
    vectors = [_word_vectors(request, line, workspace) for line in lines]
    depths = []
    for layer in zip(*vectors, strict=True):
        stacked = torch.stack(layer).double()
        centred = stacked - stacked.mean(0)
        directions = torch.linalg.svd(centred, full_matrices=False)[2]
        unit = torch.nn.functional.normalize(stacked, dim=-1)
        depths.append(
            {
                "points": round_digits(centred @ directions[:2].T),
                "cosines": round_digits(unit @ unit.T),
            }
        )
    return {"sentences": lines, "depths": depths}


def _word_vectors(
    request: ContextsRequest, sentence: str, workspace: Workspace
) -> list[torch.Tensor]:
    """Return the vector of a word of a sentence at the embedding and after each block, [D] each.

    Raises:
        DataError: when the sentence lacks the word.
    """
    asked = TextRequest(model=request.model, text=sentence)
    subject, reading = read_text(asked, workspace)
    name = "decoder" if reading.encoder is None else "encoder"
    tokens = reading.tokens(name)
    tokenizer = subject.target if reading.encoder is None else subject.source
    places = [place for place, special in enumerate(tokens.special) if not special]
    words, word_of = token_words(tokenizer, [tokens.ids[place] for place in places], sentence)
    plain = request.word.strip().lower()
    wanted = next(
        (i for i, word in enumerate(words) if word.strip(PUNCTUATION).lower() == plain), -1
    )
    if wanted < 0:
        raise DataError(
            f"The sentence has no word {request.word.strip()!r}",
            where=sentence,
            remedy="Write it in each sentence as it is above",
        )
    rows = [place for place, word in zip(places, word_of, strict=True) if word == wanted]
    stack = subject.model.stacks()[name]
    last = [f"{number}.{[*sublayers(block)][-1]}" for number, block in enumerate(stack.blocks)]
    addresses = [f"{name}.embedding", *(f"{name}.{each}.stream" for each in last)]
    found = Capture(addresses)
    run(subject.model, tensors(subject, [reading]), found)
    return [found.found[address][0, rows].mean(0) for address in addresses]


def _stack(request: StackRequest, subject: Subject) -> str:
    """Return the stack that is asked for, or the first one: a text is read before it is written."""
    return request.stack or next(iter(subject.model.stacks()))
