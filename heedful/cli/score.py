"""`heedful score`: log-probabilities of given translations."""

from __future__ import annotations

import json
from pathlib import Path

from heedful.cli.flags import ModelPath, Running
from heedful.cli.text_io import Output, Report, output_to, read_parallel, terminal


def score(
    model: ModelPath,
    /,
    *,
    source: Path,
    target: Path,
    running: Running = Running(),
    output: Output = Output(),
) -> None:
    """Score given translations (log-probability).

    Each pair gives one output line: the natural log-probability of the target, summed over its
    tokens and the end token. It is the score that `heedful translate --scores` prints.

    For example:

        heedful score run --source test.en --target test.de

    Args:
        source: File of source text, one item a line.
        target: File of translations to score, line by line.
    """
    report = Report("score", output, running, model=model, source=source, target=target)
    sources, targets = read_parallel(source, target)
    pipeline = running.load(model)
    with terminal() as events:
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
            # The end token has a score and no text; it comes last.
            names = [*each.tokens, *[None] * (len(each.token_scores) - len(each.tokens))]
            pairs = zip(names, each.token_scores, strict=True)
            scored = [{"token": name, "score": value} for name, value in pairs]
            item = {"score": each.score, "tokens": scored}
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
