"""`heedful shortlist`: which words a translator may choose among, learned from a corpus."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.failures import refuse_missing_folder
from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.running import terminal
from heedful.cli.tables import say
from heedful.decode.settings import FREQUENT, PER_TOKEN
from heedful.errors import ModelError, UserError


def shortlist(
    model: Annotated[
        Path, Parameter(help="A translator: a directory of a model, of a run, or of Hugging Face.")
    ],
    /,
    *,
    source: Annotated[Path, Parameter(help="Text, one sentence a line, plain or gzip.")],
    target: Annotated[Path, Parameter(help="Its translations, line by line.")],
    output_file: Annotated[
        Path | None,
        Parameter(
            name=("--output", "-o"),
            help="Where it goes, instead of shortlist.safetensors in the model's directory.",
        ),
    ] = None,
    per_token: Annotated[
        int, Parameter(help="Most target tokens on the list for each source token.")
    ] = PER_TOKEN,
    frequent: Annotated[
        int, Parameter(help="Target tokens on every list, the commonest of the corpus.")
    ] = FREQUENT,
    output: Output = PLAIN,
) -> None:
    """Learn which words a translator may choose among, for faster translations.

    With `heedful translate --shortlist` a sentence is translated with the commonest words and those
    that its own words become in the corpus, best the one the model was trained on. Words are tokens
    of the model's tokenizer. What becomes what is learned by IBM model 1.

    For example:

        heedful shortlist run --source train.en --target train.de
        heedful translate run --shortlist -i test.en
    """
    asked = {"model": str(model), "source": str(source), "target": str(target)}
    report = Report("shortlist", output, {**asked, "per_token": per_token, "frequent": frequent})
    for name, value in (("--per-token", per_token), ("--frequent", frequent)):
        if value < 1:
            raise UserError("At least one token is needed", where=f"{name} {value}")
    from heedful.decode.shortlist import shortlist_path
    from heedful.decode.shortlist_making import make_shortlist
    from heedful.interop.directory import describe_any

    described = describe_any(model)
    if described.spec.kind != "translator" or described.tokenizers is None:
        raise ModelError(
            f"This model is no translator; its kind is {described.spec.kind!r}",
            where=str(model),
            remedy="Give a model that was trained on pairs of texts",
        )
    path = shortlist_path(model) if output_file is None else output_file
    refuse_missing_folder(path)
    with closing(terminal()) as events:
        made = make_shortlist(
            source,
            target,
            described.tokenizers,
            per_token=per_token,
            frequent=frequent,
            told=lambda done, total, what: events.progress(done, total, what),
        )
        if made.skipped:
            events.warn(f"{made.skipped:,} pairs are too long to learn from and were left out")
    made.shortlist.write(path)
    say(
        f"{path} holds the shortlist of {made.pairs:,} pairs. A sentence's list has "
        f"{made.size:,.0f} of {made.shortlist.size:,} tokens, and {made.coverage:.1%} of the "
        "tokens of its translation in the corpus."
    )
    report.finish(
        {
            "file": str(path),
            "pairs": made.pairs,
            "skipped": made.skipped,
            "vocabulary": made.shortlist.size,
            "list_size": round(made.size, 1),
            "coverage": round(made.coverage, 5),
            "bytes": path.stat().st_size,
        }
    )
