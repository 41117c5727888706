"""`heedful heads`: what every head of a model looks at, over a corpus."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.judged_corpus import CORPUS, Corpus
from heedful.cli.output import PLAIN, Output, Report, print_json
from heedful.cli.running import terminal
from heedful.cli.tables import say, show_table

if TYPE_CHECKING:
    from heedful.inspect import HeadMeasures, Measures, Reading, Subject

Part = Literal["encoder", "decoder", "cross"]


def heads(
    model: Annotated[Path, Parameter(help="A directory of a model, of a run, or of Hugging Face.")],
    /,
    *,
    part: Annotated[Part | None, Parameter(help="Whose attention; all there is if unset.")] = None,
    corpus: Corpus = CORPUS,
    output: Output = PLAIN,
) -> None:
    """What every head of a model looks at, over a corpus.

    For each head the mean entropy and distance of its attention, and the share of it on the token
    before, the token after, the first token, the token itself, special tokens, repeated and rare
    pieces; of a translator's attention to the source also the share on words that are aligned. A
    head gets a name only where the evidence is strong: see the guide. A few hundred sentences are
    enough. Without --target a translator reads its own translations.

    For example:

        heedful heads run --source valid.en --target valid.de --limit 300
        heedful heads bert --data texts.txt --json
    """
    report = Report("heads", output, {"model": str(model), "part": part, **corpus.plain()})
    subject = corpus.load(model)
    readings = corpus.readings(subject)
    from heedful.inspect import parts_of

    chosen: tuple[Part, ...] = parts_of(subject.model) if part is None else (part,)
    found = []
    with closing(terminal()) as events:
        for number, each in enumerate(chosen):
            events.progress(number, len(chosen), "reading for each kind of attention")
            found.append(_measured(subject, readings, each))
        events.progress(len(chosen), len(chosen), "reading for each kind of attention")
    labelled = 0
    for measures in found:
        labelled += sum(head.label is not None for head in measures.heads)
        if output.json:
            for head in measures.heads:
                print_json({"part": measures.part, **head.plain()})
        else:
            _show(measures)
    count = sum(len(measures.heads) for measures in found)
    say(f"{labelled} of {count} heads have a name.")
    facts = {"sentences": len(readings), "heads": count, "labelled": labelled}
    report.finish({**facts, "parts": [each.plain() for each in found]}, summary=False)


def _measured(subject: Subject, readings: list[Reading], part: Part) -> Measures:
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
