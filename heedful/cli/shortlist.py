"""`heedful shortlist`: build a lexical shortlist from a parallel corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.flags import ModelPath
from heedful.cli.text_io import Output, Report, refuse_missing_folder, say, terminal
from heedful.errors import UserError
from heedful.search.search_settings import FREQUENT, PER_TOKEN


def shortlist(
    model: ModelPath,
    /,
    *,
    source: Path,
    target: Path,
    output_file: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    per_token: int = PER_TOKEN,
    frequent: int = FREQUENT,
    output: Output = Output(),
) -> None:
    """Build a lexical shortlist from sentence pairs, for faster translation.

    `heedful translate --shortlist` restricts the output vocabulary of a sentence to the most
    frequent tokens and to likely translations of its source tokens, by IBM model 1 trained on this
    corpus. Use the corpus that the model was trained on.

    For example:

        heedful shortlist run --source train.en --target train.de
        heedful translate run --shortlist -i test.en

    Args:
        source: File of source sentences, one a line, plain or gzip.
        target: File of translations of --source, line by line.
        output_file: File for the shortlist; shortlist.safetensors in the model's directory if
            unset.
        per_token: Maximum number of target tokens for each source token.
        frequent: Number of most frequent target tokens, which every sentence may use.
    """
    flags = {"model": model, "source": source, "target": target}
    report = Report("shortlist", output, flags, per_token=per_token, frequent=frequent)
    for name, value in (("--per-token", per_token), ("--frequent", frequent)):
        if value < 1:
            raise UserError("At least one token is needed", where=f"{name} {value}")
    from heedful.interop.hugging_face import describe_any
    from heedful.models.model_directory import no_translator
    from heedful.pretrained.catalogue import refuse_shared
    from heedful.search.lexical_shortlist import make_shortlist, shortlist_path

    described = describe_any(model)
    if described.spec.reads != "pairs" or described.tokenizers is None:
        raise no_translator(described.spec.kind, str(model))
    if output_file is None:
        remedy = "Name a file: --output FILE; translate takes it with --shortlist-file FILE"
        refuse_shared(model, "A shortlist", remedy)
    path = shortlist_path(model) if output_file is None else output_file
    refuse_missing_folder(path)
    with terminal() as events:
        result = make_shortlist(
            source,
            target,
            described.tokenizers,
            per_token=per_token,
            frequent=frequent,
            progress=lambda done, total, what: events.progress(done, total, what),
        )
        if result.skipped:
            events.warn(f"{result.skipped:,} pairs are too long to learn from and were skipped")
    result.shortlist.write(path)
    say(
        f"Wrote {path}, a shortlist from {result.pairs:,} pairs. A sentence may use "
        f"{result.size:,.0f} of {result.shortlist.size:,} tokens on average, which cover "
        f"{result.coverage:.1%} of its translation's tokens in the corpus."
    )
    report.finish(
        {
            "file": str(path),
            "pairs": result.pairs,
            "skipped": result.skipped,
            "vocabulary": result.shortlist.size,
            "list_size": round(result.size, 1),
            "coverage": round(result.coverage, 5),
            "bytes": path.stat().st_size,
        }
    )
