"""`heedful score`: log-probabilities of given translations, or of texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.cli.flags import ModelPath, Running
from heedful.cli.text_io import Output, Report, output_to, read_lines, read_parallel, terminal
from heedful.errors import ModelError, UserError

if TYPE_CHECKING:
    from heedful.events import Events
    from heedful.pipelines.text_splitting import TargetScore


def score(
    model: ModelPath,
    file: Path | None = None,
    /,
    *,
    text: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    source: Path | None = None,
    target: Path | None = None,
    running: Running = Running(),
    output: Output = Output(),
) -> None:
    """Score given translations, or texts (log-probability).

    Each pair gives one output line: the natural log-probability of the target, summed over its
    tokens and the end token. It is the score that `heedful translate --scores` prints. A language
    model scores the lines of a file, or one text. A causal one sums over the tokens and the end
    token; a masked one over the tokens, each predicted while it alone is hidden
    (pseudo-log-likelihood, Salazar 2020). A reward model gives the reward of conversations, lines
    of JSON with `messages`, or with `prompt` and `answer`.

    For example:

        heedful score run --source test.en --target test.de
        heedful score english --text "The cat sat on the mat."
        heedful score english-masked lines.txt --json
        heedful score judge answered.jsonl

    Args:
        file: File of texts to score with a language model, or of conversations, one a line.
        text: Text to score with a language model, instead of a file.
        source: File of source text for a translator, one item a line.
        target: File of translations to score, line by line.
    """
    files = {"source": source, "target": target, "file": file}
    report = Report("score", output, running, model=model, text=text, **files)
    if source is not None and target is not None and file is None and text is None:
        scores = _of_pairs(model, source, target, running)
    elif source is None and target is None and (file is None) != (text is None):
        texts = [text] if text is not None else read_lines(file) if file is not None else []
        scores = _of_texts(model, texts, running)
    else:
        raise UserError(
            "It takes either two files of pairs, a file of texts, or one text",
            where="heedful score",
            remedy="Give --source and --target to a translator, FILE or --text to a language model",
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


def _of_pairs(model: Path, source: Path, target: Path, running: Running) -> list[TargetScore]:
    """Score translations with a translator."""
    sources, targets = read_parallel(source, target)
    pipeline = running.load(model)
    with terminal() as events:
        return pipeline.score(
            sources,
            targets,
            batch_size=running.batch_size,
            batch_tokens=running.positions(pipeline),
            warn=events.warn,
            progress=_shown(events),
        )


def _of_texts(model: Path, texts: Sequence[str], running: Running) -> list[TargetScore]:
    """Score texts with a language model.

    Raises:
        UserError: when the model is an ensemble.
        ModelError: when the model is no language model of texts.
    """
    from heedful.interop.hugging_face import describe_any
    from heedful.pipelines.any_pipeline import loaded_as

    if running.ensemble:
        raise UserError("Only translators make an ensemble", where="--ensemble")
    spec = describe_any(model).spec
    options: dict[str, Any] = {"device": running.device, "precision": running.precision}
    heads = {head.kind for head in getattr(spec, "heads", ())}
    if "reward" in heads:
        return _of_conversations(loaded_as(spec.kind, model, **options), texts, running)
    if spec.kind != "causal_lm" and "masked_lm" not in heads:
        raise ModelError(
            f"A model of kind {spec.kind!r} scores no single texts",
            where=str(model),
            remedy="Give a language model; to a translator, --source and --target",
        )
    pipeline = loaded_as(spec.kind, model, **options)
    from heedful.apps.evaluation.text_scores import score_texts

    positions = running.positions(pipeline)
    with terminal() as events:
        return score_texts(pipeline, texts, batch_tokens=positions, progress=_shown(events))


def _of_conversations(pipeline: Any, lines: Sequence[str], running: Running) -> list[TargetScore]:
    """Reward conversations, lines of JSON, by a reward model.

    Raises:
        DataError: when a line is no conversation with an answer, or too long; it is named.
    """
    from heedful.data.text_file import parse_json
    from heedful.pipelines.text_splitting import TargetScore
    from heedful.text.chat_template import REMEDY, check_messages

    places = [f"line {number}" for number, _ in enumerate(lines, start=1)]
    items = [parse_json(line, where, REMEDY) for line, where in zip(lines, places, strict=True)]
    asked = [check_messages(item, where) for item, where in zip(items, places, strict=True)]
    sizes = {"batch_size": running.batch_size, "batch_tokens": running.positions(pipeline)}
    return [TargetScore(reward, (), ()) for reward in pipeline.reward(asked, **sizes)]


def _shown(events: Events) -> Any:
    return lambda done, total: events.progress(done, total, "scored")
