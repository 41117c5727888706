"""`heedful align`: word-align sentence pairs by attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from heedful.cli.corpus_flags import Corpus
from heedful.cli.flags import ModelPath
from heedful.cli.text_io import (
    Output,
    Report,
    output_to,
    read_lines,
    refuse_missing_folder,
    say,
    terminal,
)
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.inspect import Alignments, HeadChoice, ModelInput, Subject

Symmetry = Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]


def align(
    model: ModelPath,
    /,
    *,
    reverse: Path | None = None,
    symmetrize: Symmetry = "grow-diag-final",
    gold: Path | None = None,
    output_file: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    corpus: Corpus = Corpus(),
    output: Output = Output(),
) -> None:
    """Word-align sentence pairs.

    Each pair gives one line in Pharaoh format: 0-0 1-2 links the first source word to the first
    target word, and the second to the third. Spaces separate words. The layer and heads that align
    best are chosen on the first 500 pairs, by the information that their links give about target
    words, or by agreement with --reverse; gold links are used for measuring only. Without --target,
    the model's own translations are aligned.

    For example:

        heedful align run --source valid.en --target valid.de -o valid.links
        heedful align run --source test.en --target test.de --reverse de-en --gold test.gold

    Args:
        reverse: Translator of the opposite direction, whose links are combined with those of MODEL.
        symmetrize: Method to combine the links of both directions (Koehn 2003).
        gold: File of manual links, such as 0-0 1?2, to measure the alignment error rate (? marks
            possible links).
        output_file: File for the links; standard output if unset.
    """
    files = {"reverse": reverse, "gold": gold, "output": output_file}
    report = Report("align", output, files, corpus, model=model, symmetrize=symmetrize)
    refuse_missing_folder(output_file)
    subject = corpus.load(model)
    sources, targets = corpus.pairs(subject)
    from heedful.inspect import align_words, read_all

    with terminal() as events:
        events.note("Reading the pairs of texts")
        readings = read_all(subject, sources, targets)
        other = None if reverse is None else _reversed(corpus.load(reverse), readings)
        events.note("Choosing the heads that align best")
        alignments = align_words(subject, readings, reverse=other, method=symmetrize)
    error = None if gold is None else _error_rate(alignments, gold, corpus.limit)
    with output_to(output_file) as stream:
        for pair in alignments.pairs:
            plain = json.dumps(pair.plain(), ensure_ascii=False)
            stream.write((plain if output.json else pair.pharaoh) + "\n")
    links = sum(len(pair.links) for pair in alignments.pairs)
    say(f"{links:,} links in {len(alignments.pairs):,} pairs, by {_sentence(alignments.forward)}.")
    if error is not None:
        say(f"Alignment error rate: {error:.1%}.")
    heads = {"forward": alignments.forward.plain()}
    if alignments.backward is not None:
        heads["backward"] = alignments.backward.plain()
    report.finish(
        {"pairs": len(alignments.pairs), "links": links, "error_rate": error, **heads},
        summary=False,
    )


def _reversed(other: Subject, readings: list[ModelInput]) -> tuple[Subject, list[ModelInput]]:
    from heedful.inspect import read_all

    texts = [reading.target or "" for reading in readings]
    return other, read_all(other, texts, [reading.text for reading in readings])


def _error_rate(alignments: Alignments, gold: Path, limit: int | None) -> float:
    from heedful.inspect import alignment_error_rate, parse_pharaoh

    lines = read_lines(gold)[:limit]
    if len(lines) != len(alignments.pairs):
        raise DataError(
            f"There are {len(lines):,} lines of links for {len(alignments.pairs):,} pairs",
            where=str(gold),
            remedy="Give files that correspond line by line",
        )
    parsed = [parse_pharaoh(line, f"{gold}:{n}") for n, line in enumerate(lines, start=1)]
    sure, possible = [links for links, _ in parsed], [links for _, links in parsed]
    return alignment_error_rate([pair.links for pair in alignments.pairs], sure, possible)


def _sentence(choice: HeadChoice) -> str:
    heads = ", ".join(f"{layer}.{head}" for layer, head in choice.heads)
    rows = {"predicting": "predicted", "reading": "read"}
    by = {
        "prediction": f"{choice.score:.2f} bits that a link tells about its target word",
        "agreement": f"an agreement (F1) of {choice.score:.2f} with the other direction",
        "gold": f"1 - error rate of {choice.score:.2f}",
    }
    return f"layer.head {heads} where a token is {rows[choice.row]}: {by[choice.criterion]}"
