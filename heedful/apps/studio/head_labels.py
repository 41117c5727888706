"""Labels of heads, from measurements of their attention on some sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.apps.studio.page import attentions_of, check_length, subject_of
from heedful.config import Config
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.apps.studio.workspace import Workspace
    from heedful.inspect.attention_maps import AttentionPart
    from heedful.inspect.head_measures import HeadMeasures, Measures
    from heedful.inspect.readings import ModelInput
    from heedful.inspect.subject import Subject

MOST_SENTENCES = 200
LONGEST_CORPUS = 20_000
"""Most characters of the sentences that heads are measured on."""
LEANING = 0.15
"""Least evidence for a tendency to a pattern in a head without a label."""


class LabelsRequest(Config):
    """Sentences to measure a part's heads on, one in each line; a tab precedes a second text."""

    model: str
    corpus: str = Field("", description="sentences; those of the model's card or run if empty")
    part: Annotated[str, Field(max_length=20)] = ""


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
        return _read(subject, texts, seconds)

    def measured() -> dict[str, Any]:
        readings = workspace.recent.get(("corpus", *key), read)
        return _plain(_measure(subject, readings, part))

    return workspace.recent.get(("labels", part, *key), measured)


def _read(subject: Subject, texts: Sequence[str], seconds: list[str] | None) -> list[ModelInput]:
    from heedful.inspect.readings import read_all
    from heedful.search.search_settings import SearchSettings

    search = SearchSettings(beam=1) if subject.model.spec.reads == "pairs" else None
    return read_all(subject, texts, seconds, search=search)


def _measure(subject: Subject, readings: list[ModelInput], part: AttentionPart) -> Measures:
    from heedful.inspect.head_measures import measure
    from heedful.inspect.word_alignment import align_words

    if part != "cross":
        return measure(subject, readings, part)
    aligned = align_words(subject, readings)
    return measure(subject, readings, part, links=[pair.links for pair in aligned.pairs])


def _plain(measures: Measures) -> dict[str, Any]:
    from heedful.inspect.head_measures import FEWEST_ROWS, FEWEST_SENTENCES

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
    """Return the label of a head, or its tendency to a pattern; None without either."""
    from heedful.inspect.head_measures import MEANING

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
    """Return the nonempty lines of a text, split at the tab if all have one."""
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
