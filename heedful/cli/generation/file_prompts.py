"""Prompts of `heedful generate` that are files: time series, to be forecast, and sounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.apps.evaluation.series_forecast import forecast
from heedful.cli.text_io import Report, output_to, terminal
from heedful.data.corpus_spec import RecordSpec
from heedful.data.series_files import SeriesRecords

if TYPE_CHECKING:
    from heedful.pipelines.text_generation import GenerationPipeline

QUANTILES = (0.1, 0.5, 0.9)
"""Shares of the futures below a forecast's low, middle and high values."""
FUTURES = 100
"""Futures drawn for a series if --n-best is unset (1): ten of them beyond each outer quantile."""


def series_reading(pipeline: GenerationPipeline) -> RecordSpec | None:
    """Return how a model of time series reads them; None for a model of anything else."""
    reading = getattr(pipeline.tokenizer, "reading", {})
    return RecordSpec.parse(reading) if reading.get("reader") == "series" else None


def write_forecasts(
    pipeline: GenerationPipeline,
    reading: RecordSpec,
    series: Path,
    output_file: Path | None,
    options: dict[str, Any],
    report: Report,
) -> None:
    """Write a line of JSON with the quantiles of each value for each series of a file.

    Args:
        pipeline: model of time series.
        reading: bins, context and horizon of its training.
        series: file as for training, whose last values are read.
        output_file: file for the lines; standard output if None.
        options: settings of the search by name, such as a temperature or a seed.
        report: report of this command.

    Raises:
        DataError: when the file cannot be read, or a series is too short.
    """
    loaded, count = report.seconds, 0
    samples = options.pop("n_best", 1)
    options.pop("sampling", None)  # futures are drawn anyway
    with terminal() as events, output_to(output_file) as file:
        for count, (where, past) in enumerate(SeriesRecords(series, reading).series(), start=1):
            futures = forecast(
                pipeline,
                [past],
                samples=samples if samples > 1 else FUTURES,
                places=[where],
                **options,
            )
            rows = np.quantile(futures[0], QUANTILES, axis=0).tolist()  # [quantiles, horizon]
            names = map(str, QUANTILES)
            line = {"series": where, **dict(zip(names, rows, strict=True))}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            events.progress(count, None, "forecast")
    report.finish({"series": count, "load_seconds": round(loaded, 3)}, summary=False)


def with_sounds(pipeline: GenerationPipeline, prompts: list[str], first: int) -> list[str]:
    """Return prompts with the levels of the WAV files that they name, for a model of sounds."""
    reading = getattr(pipeline.tokenizer, "reading", {})
    if reading.get("reader") != "sounds":
        return prompts
    from heedful.data.sound_files import with_moments

    # Only here are files named by a prompt: a server must not read those of its machine.
    return [
        json.dumps(with_moments(each, Path(), reading["levels"], f"prompt {number}"))
        for number, each in enumerate(prompts, start=first + 1)
    ]
