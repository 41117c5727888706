"""`heedful evaluate --choices`: the answers that a language model prefers."""

from __future__ import annotations

from pathlib import Path

from heedful.cli.flags import Running
from heedful.cli.text_io import Report, say, show_table, terminal
from heedful.errors import UserError


def evaluate_choices(
    model: Path, choices: Path, examples: Path | None, shots: int, running: Running, report: Report
) -> None:
    """Let a language model choose among given answers.

    Args:
        model: the model's directory or name.
        choices: file of questions.
        examples: file of solved questions.
        shots: number of them before each question.
        running: device, precision and batches.
        report: report of the command.

    Raises:
        UserError: when the model is an ensemble.
        ModelError: when the model continues no text.
        DataError: for a question that does not fit.
    """
    from heedful.apps.evaluation.choices import choose, read_questions, with_examples
    from heedful.pipelines.any_pipeline import loaded_as

    if running.ensemble:
        raise UserError("Only translators make an ensemble", where="--ensemble")
    questions = read_questions(choices)
    if examples is not None:
        questions = with_examples(questions, read_questions(examples), shots)
    options = {"device": running.device, "precision": running.precision}
    pipeline = loaded_as("causal_lm", model, **options)
    with terminal() as events:
        scores = choose(
            pipeline,
            questions,
            batch_tokens=running.positions(pipeline),
            progress=lambda done, total: events.progress(done, total, "answers read"),
        )
    if not report.output.json:
        rows = [
            (name, f"{each.score:.3f}", f"{each.low:.3f} to {each.high:.3f}")
            for name, each in (
                ("likeliest answer", scores.accuracy),
                ("likeliest for its bytes", scores.accuracy_per_byte),
            )
        ]
        title = f"{scores.questions:,} questions; at random {scores.chance:.3f}"
        show_table(title, ("choice", "right", "95 % of resamples"), rows, numbers=2)
        say("")
    report.finish(scores.plain())
