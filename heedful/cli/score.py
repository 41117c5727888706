"""`heedful score`: log-probabilities of given translations."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.flags import STANDARD, ModelPath, Running
from heedful.cli.text_io import PLAIN, Output, Report, output_to, read_parallel, terminal


def score(
    model: ModelPath,
    /,
    *,
    source: Annotated[Path, Parameter(help="File of source text, one item a line.")],
    target: Annotated[Path, Parameter(help="File of translations to score, line by line.")],
    running: Running = STANDARD,
    output: Output = PLAIN,
) -> None:
    """Score given translations (log-probability).

    Each pair gives one output line: the natural log-probability of the target, summed over its
    tokens and the end token. It is the score that `heedful translate --scores` prints.

    For example:

        heedful score run --source test.en --target test.de
    """
    report = Report(
        "score",
        output,
        {"model": str(model), "source": str(source), "target": str(target), **running.plain()},
    )
    sources, targets = read_parallel(source, target)
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
    """Return each token with its log-probability; the end token, whose text is null, is last."""
    names = [*pieces, *[None] * (len(token_scores) - len(pieces))]
    return [
        {"token": name, "score": score} for name, score in zip(names, token_scores, strict=True)
    ]
