"""`heedful score`: how probable a model finds given translations."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.files import output_to, read_lines
from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.running import STANDARD, Running, terminal
from heedful.errors import DataError


def score(
    model: Annotated[Path, Parameter(help="A directory of a model, of a run, or of Hugging Face.")],
    /,
    *,
    source: Annotated[Path, Parameter(help="Text, one item a line.")],
    target: Annotated[Path, Parameter(help="Its translations, line by line.")],
    running: Running = STANDARD,
    output: Output = PLAIN,
) -> None:
    """How probable a model finds given translations.

    A line for each pair: the natural-log probability of the target, summed over its tokens and its
    end token. It is the same figure that `heedful translate --scores` gives its own translations.

    For example:

        heedful score run --source test.en --target test.de
    """
    report = Report(
        "score",
        output,
        {"model": str(model), "source": str(source), "target": str(target), **running.plain()},
    )
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {len(sources):,} lines and {target} has {len(targets):,}",
            where="heedful score",
            remedy="Give files that correspond line by line",
        )
    pipeline = running.load(model)
    with closing(terminal()) as events:
        scores = pipeline.score(
            sources,
            targets,
            batch_size=running.batch_size,
            batch_tokens=running.positions(pipeline),
            warn=events.warn,
            progress=lambda done, total: events.progress(done, total, "scored"),
        )
    with output_to(None) as stream:
        for each in scores:
            item = {"score": each.score, "tokens": _tokens(each.tokens, each.token_scores)}
            line = json.dumps(item, ensure_ascii=False) if output.json else f"{each.score:.6f}"
            stream.write(line + "\n")
    tokens = sum(len(each.token_scores) for each in scores)
    total = sum(each.score for each in scores)
    report.finish(
        {
            "lines": len(scores),
            "tokens": tokens,
            "score": total,
            "score_per_token": total / tokens if tokens else 0.0,
        },
        summary=False,
    )


def _tokens(
    pieces: tuple[str, ...], token_scores: tuple[float, ...]
) -> list[dict[str, str | float | None]]:
    """Every piece with its log-probability; the end token, which has no text, comes last."""
    names = [*pieces, *[None] * (len(token_scores) - len(pieces))]
    return [
        {"token": name, "score": score} for name, score in zip(names, token_scores, strict=True)
    ]
