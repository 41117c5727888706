"""Page "Attention": which words look at which, in a layer of a model, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.config import Config
from heedful.errors import DataError
from heedful.studio.page import Call, Page
from heedful.studio.pictures import PICTURE
from heedful.studio.readings import TextRequest, check_length, read_text, subject_of

if TYPE_CHECKING:
    import numpy as np

    from heedful.inspect.maps import Part
    from heedful.inspect.reading import Tokens
    from heedful.inspect.subject import Subject
    from heedful.studio.workspace import Workspace

MOST_WEIGHTS = 1 << 22
"""Weights in an answer: 16 MiB. All heads of a layer for 256 tokens and 64 heads."""
MOST_SENTENCES = 200
LONGEST_CORPUS = 20_000
"""Characters of the sentences that heads are measured on."""

Number = Annotated[int, Field(ge=0, le=10_000)]


class ShowRequest(TextRequest):
    """Which attention to show of a text."""

    part: Annotated[str, Field(max_length=20)] = Field(
        "", description="encoder, decoder or cross; empty: cross where there is any"
    )
    layer: Annotated[int, Field(ge=-1, le=10_000)] = Field(-1, description="from 0; -1: the last")
    heads: Annotated[tuple[Number, ...], Field(max_length=1000)] | None = Field(
        None, description="from 0; all that fit in an answer if unset"
    )


class LabelsRequest(Config):
    """Sentences to measure a part's heads on: a line each; a tab before a second text."""

    model: str
    corpus: str
    part: Annotated[str, Field(max_length=20)] = ""


def show(asked: ShowRequest, workspace: Workspace) -> dict[str, Any]:
    """Weights of a layer's heads with the pieces they are between, and what the model has."""
    from heedful.inspect.maps import attention, heads_of, parts_of, sides, weight_addresses

    subject, reading = read_text(asked, workspace)
    part, layers = _part(subject, asked.part)
    layer = layers - 1 if asked.layer < 0 else asked.layer
    rows, columns = sides(reading, part)
    heads: Sequence[int] | None = asked.heads
    if heads is None:
        fitting = max(1, MOST_WEIGHTS // (len(rows) * len(columns)))
        heads = range(min(fitting, heads_of(subject.model, part)))
    found = attention(subject, reading, part, layers=[layer], heads=heads)
    return {
        "kind": subject.model.spec.kind,
        "target": reading.target,
        "parts": [
            {
                "part": each,
                "layers": len(weight_addresses(subject.model, each)),
                "heads": heads_of(subject.model, each),
            }
            for each in parts_of(subject.model)
        ],
        "part": part,
        "layer": layer,
        "heads": list(found.heads),
        "rows": _plain(rows),
        "columns": _plain(columns),
        "weights": packed(found.weights[0]),
    }


def labels(asked: LabelsRequest, workspace: Workspace) -> dict[str, Any]:
    """Names of heads whose habit is clear on some sentences, with the evidence."""
    from heedful.decode.settings import SearchSettings
    from heedful.inspect.measures import FEWEST_ROWS, FEWEST_SENTENCES, measure
    from heedful.inspect.reading import read_all

    check_length(asked.corpus, LONGEST_CORPUS, where="sentences")
    subject = subject_of(asked.model, workspace)
    part, _ = _part(subject, asked.part)
    texts, seconds = _pairs(asked.corpus, subject)
    translates = subject.model.spec.kind == "translator"
    search = SearchSettings(beam=1) if translates else None
    found = measure(subject, read_all(subject, texts, seconds, search=search), part)
    return {
        "part": part,
        "sentences": found.sentences,
        "rows": found.rows,
        "enough": found.sentences >= FEWEST_SENTENCES and found.rows >= FEWEST_ROWS,
        "fewest": [FEWEST_SENTENCES, FEWEST_ROWS],
        "count": len(found.heads),
        "labels": [
            {"layer": head.layer, "head": head.head, **head.label.__dict__}
            for head in found.heads
            if head.label is not None
        ],
    }


def packed(weights: np.ndarray) -> dict[str, Any]:
    """An array as its shape and its float32 numbers, little end first, in base64."""
    import base64

    import numpy as np

    data = np.ascontiguousarray(weights, dtype="<f4").tobytes()
    return {"shape": list(weights.shape), "float32": base64.b64encode(data).decode("ascii")}


def _part(subject: Subject, name: str) -> tuple[Part, int]:
    """The part that is asked for, and its number of layers."""
    from heedful.inspect.maps import parts_of, weight_addresses

    part: Any = name or parts_of(subject.model)[-1]
    return part, len(weight_addresses(subject.model, part))


def _plain(tokens: Tokens) -> dict[str, Any]:
    return {"pieces": list(tokens.pieces), "special": list(tokens.special)}


def _pairs(corpus: str, subject: Subject) -> tuple[list[str], list[str] | None]:
    """The lines of a text that hold something; where all have a tab, what is before and after."""
    lines = [line for line in corpus.splitlines() if line.strip()]
    if not lines:
        raise DataError("There is no sentence to measure heads on", where="sentences")
    if len(lines) > MOST_SENTENCES:
        raise DataError(
            f"Heads are measured here on at most {MOST_SENTENCES} sentences, not {len(lines):,}",
            where="sentences",
            remedy="For more: heedful.inspect.measure in a notebook",
        )
    tabs = {"\t" in line for line in lines}
    if tabs == {False} or subject.model.spec.kind == "causal_lm":
        return lines, None
    if tabs == {True, False}:
        raise DataError(
            "Some lines have a second text after a tab, others have none",
            where="sentences",
            remedy="Give all of them one, or none",
        )
    parts = [line.partition("\t") for line in lines]
    return [before for before, _, _ in parts], [after for _, _, after in parts]


PAGE = Page(
    name="attention",
    title="Attention",
    summary="Which words look at which, in a model of yours.",
    about=(
        "Every word gathers what it needs from the words it looks at; a line is the stronger, the "
        "more of its attention goes there. Each head has a colour and looks in its own way. "
        "The weights are computed anew from the model's own queries and keys, for the text as "
        "the model reads it, piece by piece."
    ),
    calls={
        "show": Call(ShowRequest, show),
        "labels": Call(LabelsRequest, labels),
        "picture": PICTURE,
    },
)
