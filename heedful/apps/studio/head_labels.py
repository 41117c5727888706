"""Labels of heads, from measurements of their attention on some sentences."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from heedful.apps.studio.page import (
    ModelRequest,
    StackName,
    attentions_of,
    call,
    check_length,
    subject_of,
)
from heedful.apps.studio.workspace import Workspace
from heedful.errors import DataError
from heedful.inspect.head_measures import (
    FEWEST_ROWS,
    FEWEST_SENTENCES,
    MEANING,
    HeadMeasures,
    Measures,
    measure,
)
from heedful.inspect.readings import ModelInput, read_all
from heedful.inspect.subject import Subject
from heedful.inspect.word_alignment import align_words
from heedful.search.search_settings import SearchSettings

MOST_SENTENCES = 200
LONGEST_CORPUS = 20_000
"""Maximum number of characters of the sentences that heads are measured on."""
LEANING = 0.15
"""Minimum evidence for a tendency to a pattern in a head without a label."""


class LabelsRequest(ModelRequest):
    """Sentences for measuring the heads of a part, one a line; a tab separates a second text."""

    corpus: str = Field("", description="sentences; those of the model's card or run if empty")
    part: StackName = ""


@call(LabelsRequest)
def labels(request: LabelsRequest, workspace: Workspace) -> dict[str, Any]:
    """Return labels of heads with a pattern on some sentences, with the evidence."""
    place = workspace.place(request.model)
    corpus = request.corpus
    if not corpus.strip():
        corpus = "\n".join(place.sentences())
    check_length(corpus, LONGEST_CORPUS, where="sentences")
    subject = subject_of(request.model, workspace)
    part, _, _ = attentions_of(subject, request.part)
    texts, seconds = _pairs(corpus, subject)
    key = (request.model, place.load().version, corpus)

    def read() -> list[ModelInput]:
        search = SearchSettings(beam=1) if subject.model.spec.reads == "pairs" else None
        return read_all(subject, texts, seconds, search=search)

    def measured() -> dict[str, Any]:
        readings = workspace.recent.get(("corpus", *key), read)
        links = None
        if part == "cross":
            links = [pair.links for pair in align_words(subject, readings).pairs]
        return _plain(measure(subject, readings, part, links=links))

    return workspace.recent.get(("labels", part, *key), measured)


def _plain(measures: Measures) -> dict[str, Any]:
    enough = measures.sentences >= FEWEST_SENTENCES and measures.rows >= FEWEST_ROWS
    named = [_label(head) for head in measures.heads] if enough else []
    return {
        "part": measures.part,
        "sentences": measures.sentences,
        "rows": measures.rows,
        "enough": enough,
        "fewest": [FEWEST_SENTENCES, FEWEST_ROWS],
        "count": len(measures.heads),
        "labels": [each for each in named if each is not None],
    }


def _label(head: HeadMeasures) -> dict[str, Any] | None:
    """Return the label of a head or its tendency to a pattern; None if it has neither."""
    place = {"layer": head.layer, "head": head.head}
    if head.label is not None:
        return {**place, "clear": True, **head.label.plain()}
    kind = max(head.shares, key=lambda each: head.shares[each].evidence, default=None)
    if kind is None or head.shares[kind].evidence < LEANING:
        return None
    share = head.shares[kind]
    why = (
        f"{100 * share.share:.0f} % of its attention is {MEANING[kind]}; even attention would give "
        f"{100 * share.baseline:.0f} %"
    )
    return {**place, "clear": False, "kind": kind, "evidence": share.evidence, "why": why}


def _pairs(corpus: str, subject: Subject) -> tuple[list[str], list[str] | None]:
    """Return the nonempty lines of a text, split at the tab if all lines have a tab."""
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
    if tabs == {False} or subject.model.spec.stacks().keys() == {"decoder"}:
        return lines, None
    if tabs == {True, False}:
        raise DataError(
            "Some lines have a second text after a tab, others have none",
            where="sentences",
            remedy="Give all of them one, or none",
        )
    parts = [line.partition("\t") for line in lines]
    return [before for before, _, _ in parts], [after for _, _, after in parts]
