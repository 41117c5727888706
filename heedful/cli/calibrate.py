"""`heedful calibrate`: fit the confidence of a translator to its measured quality."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from heedful.cli.evaluation.translation_scores import translate_all
from heedful.cli.flags import ModelPath, Running, SearchFlags, SplitFlag, search_settings
from heedful.cli.text_io import (
    Output,
    Report,
    read_parallel,
    refuse_chart,
    refuse_missing_folder,
    say,
    show_table,
    terminal,
)
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.apps.quality.calibration import Reliability


def calibrate(
    model: ModelPath,
    /,
    *,
    source: Path,
    reference: Path,
    output_file: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    chart: Path | None = None,
    search: SearchFlags | None = None,
    split: SplitFlag = None,
    running: Running = Running(),
    output: Output = Output(),
) -> None:
    """Fit a confidence estimate to a model's translations.

    The text is translated and scored against the reference. A regression then predicts sentence
    chrF from the mean and lowest token log-probability and the lengths, and
    `heedful translate --check --json` reports that prediction as the confidence of each
    translation. Its reliability is measured on half of the lines with a fit to the other half; the
    stored estimate is fitted to all lines.

    For example:

        heedful calibrate run --source valid.en --reference valid.de

    Args:
        source: File of source text that the model was not trained on, one item a line.
        reference: File of reference translations, line by line.
        output_file: File for the calibration; calibration.json in the model's directory if unset.
        chart: File for a reliability diagram: .html, .png, .svg or .json; needs heedful[studio].
    """
    refuse_chart(chart)
    settings = search_settings(search)
    flags = {"model": model, "source": source, "reference": reference}
    report = Report("calibrate", output, flags, settings.plain(), running)
    sources, references = read_parallel(source, reference)
    from heedful.apps.quality.calibration import FEWEST_PAIRS, calibration_path, fit, reliability
    from heedful.evaluate.corpus_metrics import build_metric, describe_spelling, usual_spelling
    from heedful.pretrained.catalogue import refuse_shared

    if len(sources) < 2 * FEWEST_PAIRS:
        raise DataError(
            f"{len(sources)} lines are too few for a calibration",
            where=str(source),
            remedy=f"Give at least {2 * FEWEST_PAIRS}, better thousands",
        )
    if output_file is None:
        remedy = "Calibrate a copy of its directory, or name a file: --output FILE"
        refuse_shared(model, "A calibration", remedy)
    path = calibration_path(model) if output_file is None else output_file
    refuse_missing_folder(path)
    with terminal() as events:
        translations = translate_all(model, sources, settings, running, split, events)
    metric = build_metric("chrf")
    if message := describe_spelling(translations, references):
        say(message)
    pairs = zip(usual_spelling(translations), usual_spelling(references), strict=True)
    scores = [metric.sentence_score(text, [wanted]).score for text, wanted in pairs]
    whole = fit(sources, translations, scores)
    half = fit(sources[::2], translations[::2], scores[::2])
    predicted = half.predict(sources[1::2], translations[1::2])
    found = reliability(predicted, scores[1::2])
    whole.write(path)
    if not output.json:
        _show(found)
    if chart is not None:
        _draw(found, chart)
    say(f"Wrote {path}, fitted to {whole.pairs:,} pairs.")
    report.finish({"file": str(path), "pairs": whole.pairs, **asdict(found)})


def _show(found: Reliability) -> None:
    rows = [
        (f"{each.predicted:.1f}", f"{each.actual:.1f} ± {1.96 * each.error:.1f}", f"{each.count:,}")
        for each in found.bins
    ]
    show_table(
        f"Confidence and chrF, in the mean {found.calibration_error:.1f} apart; of single "
        f"translations {found.absolute_error:.1f} apart, correlation {found.correlation:.2f}",
        ("predicted chrF", "chrF (95 %)", "translations"),
        rows,
        numbers=3,
    )


def _draw(found: Reliability, path: Path) -> None:
    from heedful.apps import charts

    measured = [
        charts.Estimate(
            each.predicted,
            each.actual,
            each.actual - 1.96 * each.error,
            each.actual + 1.96 * each.error,
        )
        for each in found.bins
    ]
    ends = (found.bins[0].predicted, found.bins[-1].predicted)
    series = {"measured": measured, "as predicted": [charts.Estimate(x, x, x, x) for x in ends]}
    drawn = charts.bands(
        series, x="predicted chrF", y="chrF", title="Reliability of the confidence"
    )
    charts.save(drawn, path)
