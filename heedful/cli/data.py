"""`heedful data split`: split corpora of sentence pairs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from heedful.cli.flags import terminal
from heedful.cli.text_io import PLAIN, Output, Report, refuse_existing, say
from heedful.cli.train import corpora
from heedful.errors import ConfigError, UserError

if TYPE_CHECKING:
    from heedful.data.corpus_spec import CorpusSpec

CorpusFiles = Annotated[
    str,
    Parameter(
        help="Source and target file, aligned line by line, or one .tsv or .jsonl file of pairs; "
        "all may be .gz."
    ),
]


def data_split(
    *corpus: CorpusFiles,
    out: Annotated[Path, Parameter(help="Folder for the parts, still to be made.")],
    valid: Annotated[int, Parameter(help="Pairs for validation; 0 for none.")] = 1000,
    test: Annotated[int, Parameter(help="Pairs for testing; 0 for none.")] = 1000,
    seed: Annotated[int, Parameter(help="Another seed draws other sentences.")] = 1,
    output: Output = PLAIN,
) -> None:
    """Split sentence pairs into train, valid and test by source sentence.

    All pairs of a source sentence are in one part, also where it differs in case, punctuation or
    spaces. The split depends on the pairs and the seed, not on the order of the pairs. OUT gets the
    parts in the form of the corpus, lines as they were and in their order.

    For example:

        heedful data split corpus.en corpus.de --out parts --valid 1000 --test 2000
        heedful data split pairs.tsv.gz --out parts
    """
    flags = {"corpus": list(corpus), "out": str(out)}
    report = Report("data split", output, {**flags, "valid": valid, "test": test, "seed": seed})
    for name, size in (("--valid", valid), ("--test", test)):
        if size < 0:
            raise UserError("A part cannot have fewer than no pairs", where=f"{name} {size}")
    if valid == test == 0:
        raise UserError("There is nothing to split off", remedy="Give --valid or --test pairs")
    spec = _one_corpus(corpus)
    refuse_existing(out)
    from heedful.data.quality.corpus_split import split_corpus

    with closing(terminal()) as events:
        parts = split_corpus(spec, out, valid=valid, test=test, seed=seed, progress=events.progress)
    for part in parts:
        files = " and ".join(part.files)
        say(f"{part.name}: {part.pairs:,} pairs of {part.sources:,} sources in {files}")
    report.finish({"parts": [part.plain() for part in parts]})


def _one_corpus(files: Sequence[str]) -> CorpusSpec:
    """The corpus that files are.

    Raises:
        ConfigError: when they are none, or more than one.
    """
    from heedful.data.corpus_spec import CorpusSpec

    found = corpora(files, "CORPUS")
    if len(found) != 1:
        raise ConfigError(
            f"There are {len(found)} corpora instead of one",
            where=" ".join(files) or "CORPUS",
            remedy="Give a source and a target file, or one .tsv or .jsonl file of pairs",
        )
    return CorpusSpec(**found[0])
