"""`heedful heads`: measure the attention of every head over a corpus."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.corpus_flags import CORPUS, Corpus
from heedful.cli.flags import ModelPath, terminal
from heedful.cli.output import PLAIN, Output, Report, print_json, say, show_table

if TYPE_CHECKING:
    from heedful.inspect import HeadMeasures, Measures, Reading, Subject

Part = Literal["encoder", "decoder", "cross"]


def heads(
    model: ModelPath,
    /,
    *,
    part: Annotated[Part | None, Parameter(help="Stack or cross-attention; all if unset.")] = None,
    corpus: Corpus = CORPUS,
    output: Output = PLAIN,
) -> None:
    """Measure the attention of every head over a corpus.

    For each head: the mean entropy and distance of its attention, and its share on the token
    before, the token after, the first token, the token itself, special tokens, repeated and rare
    pieces; for cross-attention also the share on aligned words. A head is named only if the
    evidence is strong: see the guide. A few hundred sentences are enough. Without --target, a
    translator reads its own translations.

    For example:

        heedful heads run --source valid.en --target valid.de --limit 300
        heedful heads bert --data texts.txt --json
    """
    report = Report("heads", output, {"model": str(model), "part": part, **corpus.plain()})
    subject = corpus.load(model)
    readings = corpus.readings(subject)
    from heedful.inspect import parts_of

    parts: tuple[Part, ...] = parts_of(subject.model) if part is None else (part,)
    results = []
    with closing(terminal()) as events:
        for number, each in enumerate(parts):
            events.progress(number, len(parts), "measured")
            results.append(_measure_part(subject, readings, each))
        events.progress(len(parts), len(parts), "measured")
    labelled = 0
    for measures in results:
        labelled += sum(head.label is not None for head in measures.heads)
        if output.json:
            for head in measures.heads:
                print_json({"part": measures.part, **head.plain()})
        else:
            _show(measures)
    count = sum(len(measures.heads) for measures in results)
    say(f"{labelled} of {count} heads have a name.")
    facts = {"sentences": len(readings), "heads": count, "labelled": labelled}
    report.finish({**facts, "parts": [each.plain() for each in results]}, summary=False)


def _measure_part(subject: Subject, readings: list[Reading], part: Part) -> Measures:
    from heedful.inspect import align_words, measure

    if part != "cross":
        return measure(subject, readings, part)
    aligned = align_words(subject, readings)
    return measure(subject, readings, part, links=[pair.links for pair in aligned.pairs])


def _show(measures: Measures) -> None:
    kinds = list(dict.fromkeys(kind for head in measures.heads for kind in head.shares))
    far = () if measures.part == "cross" else ("distance",)
    show_table(
        f"{measures.part}: {measures.rows:,} rows of {measures.sentences:,} sentences; shares of "
        "attention",
        ("layer", "head", "name", "evidence", "entropy", *far, *kinds),
        [_row(head, kinds) for head in measures.heads],
        numbers=2 + len(far) + len(kinds),
    )


def _row(head: HeadMeasures, kinds: list[str]) -> tuple[str, ...]:
    label = head.label
    name, evidence = ("", "") if label is None else (label.kind, f"{label.evidence:.2f}")
    values: list[Any] = [head.entropy]
    if head.distance is not None:
        values.append(head.distance)
    shares = [f"{head.shares[kind].share:.2f}" if kind in head.shares else "" for kind in kinds]
    figures = [f"{value:.2f}" for value in values]
    return (str(head.layer), str(head.head), name, evidence, *figures, *shares)
