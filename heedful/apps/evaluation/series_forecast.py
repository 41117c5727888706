"""Forecasts of time series by a model of token sequences, in the units of the series."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.data.array_files import VALUES
from heedful.data.corpus_spec import RecordSpec
from heedful.data.series_files import bins_of, scale_of, series_of, values_of
from heedful.errors import DataError, ModelError
from heedful.pipelines.any_pipeline import load_pipeline
from heedful.text.field_tokenizer import FieldTokenizer


def forecast(
    model: Any,
    series: Iterable[Any],
    *,
    samples: int = 100,
    seed: int = 0,
    places: Sequence[str] = (),
    **options: Any,
) -> npt.NDArray[np.float64]:
    """Draw possible futures of time series; their quantiles are a forecast with intervals.

    Args:
        model: model that was trained with `tokens.reader = "series"`, loaded or by its directory.
        series: series of numbers up to the present; the last `tokens.context` values are read.
        samples: number of futures of each series.
        seed: seed of the random numbers.
        places: names of the series in messages; their numbers if empty.
        **options: options of the search, such as `temperature=0.8`, or of batches.

    Returns:
        The futures [series, samples, horizon] in the units of each series.

    Raises:
        ModelError: when the model is one of other records or of texts.
        DataError: when a series is too short, or has a value that is no finite number.
        ConfigError: when an option does not exist.
    """
    pipeline = load_pipeline(model) if isinstance(model, str | Path) else model
    fields = getattr(pipeline, "tokenizer", None)
    reading = fields.reading if isinstance(fields, FieldTokenizer) else {}
    if reading.get("reader") != "series":
        raise ModelError(
            "This model was not trained on time series",
            where=pipeline.name or None,
            remedy="Train one with --task tokens --tokens.reader series",
        )
    spec = RecordSpec.parse(reading)
    contexts = []
    for number, each in enumerate(series, start=1):
        where = places[number - 1] if places else f"series {number}"
        contexts.append(_context(series_of(each, where), where, spec.context))
    scales = [scale_of(context) for context in contexts]
    prompts = [
        json.dumps({VALUES: bins_of(context, scale, spec).tolist()})
        for context, scale in zip(contexts, scales, strict=True)
    ]
    found = pipeline.generate(prompts, sampling=True, n_best=samples, seed=seed, **options)
    futures = np.empty((len(prompts), samples, spec.horizon))
    for row, (generated, scale) in enumerate(zip(found, scales, strict=True)):
        for column, each in enumerate(generated.n_best):
            codes = np.array(json.loads(each.text)[VALUES][spec.context :])
            futures[row, column] = values_of(codes, scale, spec)
    return futures


def _context(series: npt.NDArray[np.float64], where: str, length: int) -> Any:
    if len(series) < length:
        raise DataError(
            f"The series has {len(series):,} values, and the model reads {length:,}",
            where=where,
            remedy="Give a longer past, or train with a smaller tokens.context",
        )
    return series[-length:]
