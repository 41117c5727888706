"""`heedful align`: which word of a translation came from which word of its source."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.failures import refuse_missing_folder
from heedful.cli.files import output_to, read_lines
from heedful.cli.judged_corpus import CORPUS, Corpus
from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.running import terminal
from heedful.cli.tables import say
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.inspect import Alignments, HeadChoice, Reading, Subject

Symmetry = Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]


def align(
    model: Annotated[Path, Parameter(help="A translator: a directory of a model or of a run.")],
    /,
    *,
    reverse: Annotated[
        Path | None,
        Parameter(help="A translator of the opposite direction; links of both become one."),
    ] = None,
    symmetrize: Annotated[Symmetry, Parameter(help="How they become one.")] = "grow-diag-final",
    gold: Annotated[
        Path | None,
        Parameter(help="Links made by people, as lines 0-0 1?2; gives the alignment error rate."),
    ] = None,
    output_file: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="A file for the links.")
    ] = None,
    corpus: Corpus = CORPUS,
    output: Output = PLAIN,
) -> None:
    """Which word of a translation came from which word of its source.

    A line for each pair of texts, in the format of Pharaoh: 0-0 1-2 links the first word of the
    source with the first of the target, the second with the third. Words are what stands between
    spaces. The layer and heads that align best are found on the first 500 pairs, by how well their
    links predict words, or by agreement with --reverse; gold links only judge the result. Without
    --target the model's own translations are aligned.

    For example:

        heedful align run --source valid.en --target valid.de -o valid.links
        heedful align run --source test.en --target test.de --reverse de-en --gold test.gold
    """
    asked: dict[str, Any] = {"model": str(model), "symmetrize": symmetrize}
    asked |= {name: None if p is None else str(p) for name, p in _named(reverse, gold, output_file)}
    report = Report("align", output, {**asked, **corpus.plain()})
    if output_file is not None:
        refuse_missing_folder(output_file)
    subject = corpus.load(model)
    sources, targets = corpus.pairs(subject)
    from heedful.inspect import align_words, read_all

    with closing(terminal()) as events:
        events.note("Reading the pairs of texts")
        readings = read_all(subject, sources, targets)
        other = None if reverse is None else _turned(corpus.load(reverse), readings)
        events.note("Looking for the heads that align")
        found = align_words(subject, readings, reverse=other, method=symmetrize)
    error = None if gold is None else _error_rate(found, gold, corpus.limit)
    with output_to(output_file) as stream:
        for pair in found.pairs:
            plain = json.dumps(pair.plain(), ensure_ascii=False)
            stream.write((plain if output.json else pair.pharaoh) + "\n")
    links = sum(len(pair.links) for pair in found.pairs)
    say(f"{links:,} links in {len(found.pairs):,} pairs, by {_sentence(found.forward)}.")
    if error is not None:
        say(f"Alignment error rate: {error:.1%}.")
    chosen = {"forward": found.forward.plain()}
    if found.backward is not None:
        chosen["backward"] = found.backward.plain()
    report.finish(
        {"pairs": len(found.pairs), "links": links, "error_rate": error, **chosen}, summary=False
    )


def _named(
    reverse: Path | None, gold: Path | None, output_file: Path | None
) -> list[tuple[str, Path | None]]:
    return [("reverse", reverse), ("gold", gold), ("output", output_file)]


def _turned(other: Subject, readings: list[Reading]) -> tuple[Subject, list[Reading]]:
    from heedful.inspect import read_all

    texts = [reading.target or "" for reading in readings]
    return other, read_all(other, texts, [reading.text for reading in readings])


def _error_rate(found: Alignments, gold: Path, limit: int | None) -> float:
    from heedful.inspect import alignment_error_rate, parse_pharaoh

    lines = read_lines(gold)[:limit]
    if len(lines) != len(found.pairs):
        raise DataError(
            f"There are {len(lines):,} lines of links for {len(found.pairs):,} pairs",
            where=str(gold),
            remedy="Give files that correspond line by line",
        )
    parsed = [parse_pharaoh(line, f"{gold}:{n}") for n, line in enumerate(lines, start=1)]
    sure, possible = [links for links, _ in parsed], [links for _, links in parsed]
    return alignment_error_rate([pair.links for pair in found.pairs], sure, possible)


def _sentence(choice: HeadChoice) -> str:
    heads = ", ".join(f"{layer}.{head}" for layer, head in choice.heads)
    rows = {"predicting": "predicted", "reading": "read"}
    by = {
        "prediction": f"{choice.score:.2f} bits that a link tells about its target word",
        "agreement": f"an agreement (F1) of {choice.score:.2f} with the other direction",
        "gold": f"1 - error rate of {choice.score:.2f}",
    }
    return f"layer.head {heads} where a token is {rows[choice.row]}: {by[choice.criterion]}"
