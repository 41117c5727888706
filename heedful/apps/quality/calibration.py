"""Calibrated confidence: a prediction of a translation's chrF from its log-probabilities.

A linear regression on simple features ranks translations; an isotonic regression (Zadrozny and
Elkan 2002) of chrF on the linear predictions calibrates the values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from heedful.apps.quality.wording_checks import length_deviation, text_length
from heedful.config import Config
from heedful.durable import whole
from heedful.errors import DataError, ModelError
from heedful.models.model_directory import CONFIG_FILE
from heedful.pipelines.text_splitting import Translation
from heedful.pretrained.catalogue import directory_of

CALIBRATION_FILE = "calibration.json"
FEWEST_PAIRS = 100
"""Minimum number of pairs for the fit; with fewer pairs it would overfit."""

FEATURES = ("mean", "lowest", "length", "deviation")
"""Mean and lowest log-probability, log of the number of tokens, length relative to the source."""

_FEWEST_IN_A_STEP = 20
_BINS = 10

Numbers = npt.NDArray[np.float64]


class Calibration(Config):
    """A prediction of sentence chrF."""

    schema_version: Annotated[int, Field(ge=1, le=1)] = 1
    pairs: Annotated[int, Field(ge=1)] = Field(
        description="number of sentence pairs used for the fit"
    )
    weights: tuple[float, float, float, float] = Field(
        description="weights of the four features in the linear prediction"
    )
    bias: float
    order: tuple[float, ...] = Field(description="linear predictions at the steps, ascending")
    values: tuple[float, ...] = Field(description="chrF at each step, 0 to 100")

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Read a calibration.

        Raises:
            ModelError: when the file is damaged.
            ConfigError: when a field is wrong.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelError(
                f"The file is not a calibration: {error}",
                where=str(path),
                remedy="Make a new one with heedful calibrate",
            ) from None
        found = cls.parse(values if isinstance(values, dict) else {}, where=str(path))
        if len(found.order) != len(found.values) or not found.order:
            raise ModelError(
                "The lists of the calibration differ in length",
                where=str(path),
                remedy="Make a new one with heedful calibrate",
            )
        return found

    def write(self, path: Path) -> None:
        """Write the calibration atomically."""
        with whole(path) as file:
            file.write((json.dumps(self.plain(), indent=1) + "\n").encode())

    def predict(self, sources: Sequence[str], translations: Sequence[Translation]) -> list[float]:
        """Return the predicted chrF of translations, 0 to 100."""
        if not sources:
            return []
        linear = _features(sources, translations) @ np.array(self.weights) + self.bias
        return [float(each) for each in np.interp(linear, self.order, self.values)]


def calibration_path(model: Path) -> Path:
    """Return the path of the calibration of a model directory or a run directory."""
    model = directory_of(model)
    places = (model, model / "model")
    return next((p for p in places if (p / CONFIG_FILE).is_file()), model) / CALIBRATION_FILE


def fit(
    sources: Sequence[str], translations: Sequence[Translation], scores: Sequence[float]
) -> Calibration:
    """Fit the prediction to translations with known chrF.

    Args:
        sources: source texts.
        translations: the model's translation of each source.
        scores: sentence chrF of each translation, 0 to 100.

    Raises:
        DataError: when there are too few translations.
    """
    if len(scores) < FEWEST_PAIRS:
        raise DataError(
            f"{len(scores)} pairs are too few for a calibration",
            remedy=f"Give at least {FEWEST_PAIRS}, better thousands, that the model has not seen",
        )
    features, wanted = _features(sources, translations), np.array(scores, dtype=np.float64)
    design = np.column_stack([features, np.ones(len(features))])
    solution, *_ = np.linalg.lstsq(design, wanted, rcond=None)
    order, values = _isotonic(design @ solution, wanted)
    return Calibration(
        pairs=len(scores),
        weights=tuple(map(float, solution[:-1])),
        bias=float(solution[-1]),
        order=tuple(map(float, order)),
        values=tuple(map(float, values)),
    )


def _features(sources: Sequence[str], translations: Sequence[Translation]) -> Numbers:
    """Return the features [N, 4] of translations; zeros for translations without tokens."""
    rows = []
    for source, translation in zip(sources, translations, strict=True):
        scores = translation.token_scores or (0.0,)
        deviation = length_deviation(text_length(source), text_length(translation))
        row = (sum(scores) / len(scores), min(scores), math.log(len(scores)), abs(deviation))
        rows.append(row)
    return np.array(rows, dtype=np.float64).reshape(-1, len(FEATURES))


def _isotonic(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Return the steps of the isotonic regression (pool adjacent violators, Ayer 1955).

    Steps with few points are merged with their neighbours, so that no step comes from a single
    sentence.
    """
    places = np.argsort(x, kind="stable")
    blocks: list[tuple[float, float, int]] = []  # sums of x and y, and number of points
    groups = max(1, len(x) // _FEWEST_IN_A_STEP)
    for group in np.array_split(places, groups):
        block = (float(x[group].sum()), float(y[group].sum()), len(group))
        while blocks and blocks[-1][1] / blocks[-1][2] >= block[1] / block[2]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    return (
        np.array([block[0] / block[2] for block in blocks]),
        np.array([block[1] / block[2] for block in blocks]),
    )


@dataclass(frozen=True)
class ReliabilityBin:
    """A bin of translations with similar predictions.

    Args:
        predicted: mean prediction.
        actual: mean chrF.
        error: standard error of the mean chrF.
        count: number of translations.
    """

    predicted: float
    actual: float
    error: float
    count: int


@dataclass(frozen=True)
class Reliability:
    """The quality of predictions on translations that were not used for the fit.

    Args:
        bins: bins of predictions, with equal numbers of translations.
        calibration_error: mean absolute difference between prediction and chrF over the bins.
        absolute_error: mean absolute difference between prediction and chrF over the translations.
        correlation: Pearson correlation of predictions and chrF.
    """

    bins: tuple[ReliabilityBin, ...]
    calibration_error: float
    absolute_error: float
    correlation: float


def reliability(predicted: Sequence[float], actual: Sequence[float]) -> Reliability:
    """Compare predictions with measured chrF.

    Args:
        predicted: predicted chrF of each translation.
        actual: measured chrF of each translation.
    """
    x, y = np.array(predicted), np.array(actual)
    bins = []
    for group in np.array_split(np.argsort(x, kind="stable"), min(_BINS, len(x))):
        error = float(y[group].std() / math.sqrt(len(group)))
        mean = float(y[group].mean())
        bins.append(ReliabilityBin(float(x[group].mean()), mean, error, len(group)))
    distances = [abs(each.predicted - each.actual) * each.count for each in bins]
    varies = x.std() > 0 and y.std() > 0
    return Reliability(
        tuple(bins),
        sum(distances) / len(x),
        float(np.abs(x - y).mean()),
        float(np.corrcoef(x, y)[0, 1]) if varies else 0.0,
    )
