"""`heedful evaluate --data` of a model of token sequences: nats and bits by field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.cli.flags import Running
from heedful.cli.text_io import Report, say, show_table, terminal
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.apps.evaluation.record_likelihood import FieldLoss


def continues_sequences(model: Path) -> bool:
    """Return True for a model that continues sequences, of records or of text."""
    from heedful.interop.hugging_face import describe_any
    from heedful.pipelines.any_pipeline import record_use

    described = describe_any(model)
    spec = described.spec
    return spec.kind == "causal_lm" or record_use(spec, described.tokenizers) is not None


def evaluate_records(model: Path, data: Path, running: Running, report: Report) -> None:
    """Measure the likelihood of records, read as in training.

    Args:
        model: the model's directory.
        data: file of records, in the form of the model's training files.
        running: device, precision and batches.
        report: report of the command.

    Raises:
        UserError: when the model is an ensemble.
        ModelError: when the model is one of texts.
        DataError: for a record that does not fit.
    """
    from heedful.apps.evaluation.record_likelihood import (
        answer_scores,
        read_records,
        record_likelihood,
        record_scores,
        summed,
    )
    from heedful.data.corpus_spec import CorpusSpec
    from heedful.pipelines.any_pipeline import load_generator

    if running.ensemble:
        raise UserError("Only translators make an ensemble", where="--ensemble")
    pipeline = load_generator(model, device=running.device, precision=running.precision)
    records = read_records(pipeline, CorpusSpec(file=str(data)))
    with terminal() as events:
        losses = record_likelihood(
            pipeline,
            records,
            batch_tokens=running.positions(pipeline),
            progress=lambda done, total: events.progress(done, total, "records read"),
        )
        answers = answer_scores(pipeline, records)
    if not report.output.json:
        rows = {**losses, "all": summed(losses)} if len(losses) > 1 else losses
        columns = ["field", "values", "nats a value", "bits a value", "nats a record"]
        table = [_row(name, loss) for name, loss in rows.items()]
        show_table(f"{len(records):,} records", columns, table, numbers=4)
        for name, share in answers.get("exact", {}).items():
            say(f"{name}: {share:.2%} are written exactly")
        for name, rate in answers.get("word_error_rate", {}).items():
            say(f"{name}: word error rate {rate:.2%}")
    report.finish({"records": len(records), "scores": record_scores(losses, answers)})


def _row(name: str, loss: FieldLoss) -> tuple[str, ...]:
    measures = loss.plain()
    return (
        name,
        f"{loss.values:,}",
        f"{measures['nats_per_value']:.4f}",
        f"{measures['bits_per_value']:.4f}",
        f"{measures['nats_per_record']:.2f}",
    )
