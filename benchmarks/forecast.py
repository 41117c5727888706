"""Time series as token sequences: forecasts of series that no training saw, and their intervals.

    python benchmarks/forecast.py [--seeds 1 2 3] [--samples 40]

The series are synthetic: a level, a trend, a season of 12 or 24 steps with two harmonics, and noise
whose neighbours are correlated. They are drawn by a fixed seed, those of the test after all others.
The last 24 values of each test series are forecast from the 96 before. Three forecasts are
compared: the median of sampled futures, the value one season before (seasonal naive, which is told
the season), and the noiseless series, which no forecast from the past can know.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from driver import HERE, hide_paths, new_parser, parse, read_events, train, write_result

from heedful.apps.evaluation.series_forecast import forecast

NAME = "forecasts"
SETTINGS = HERE / "forecasts" / "decoder.toml"
CONTEXT, HORIZON = 96, 24
LENGTH = 240
"""Values of a training series: six windows."""
COUNTS = {"train": 3000, "valid": 100, "test": 300}
INTERVAL = (0.1, 0.9)
"""Quantiles whose interval holds 80 % of the values if it is right."""

Array = npt.NDArray[np.float64]


def main() -> None:
    """Write the series, train with each seed, forecast, write the results."""
    parser = new_parser(__doc__)
    parser.set_defaults(data=HERE)  # the series are made here
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--samples", type=int, default=40)
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    runs.mkdir(parents=True, exist_ok=True)
    series, clean, seasons = make_series(np.random.default_rng(0))
    files = write_parts(series, runs)
    test = slice(-COUNTS["test"], None)
    past, future = np.split(series[test, -CONTEXT - HORIZON :], [CONTEXT], axis=1)
    season = seasons[test]
    rows: list[dict[str, Any]] = [
        {"forecast": "seasonal naive", **scored(past, future, season, *naive(past, season))},
        {"forecast": "noiseless", "mase": mase(past, future, season, clean[test, -HORIZON:])},
    ]
    for seed in arguments.seeds:
        run, log = runs / f"seed-{seed}", out / f"seed-{seed}.log"
        parts = {name: [str(files[name])] for name in ("train", "valid")}
        train(run, SETTINGS, parts, {"task": "tokens", "seed": seed}, arguments.extra, log)
        minutes = read_events(run)[-1]["seconds"] / 60
        hide_paths(log, {runs: "RUNS"})
        futures = forecast(run, past, samples=arguments.samples, seed=seed)
        median, low, high = np.quantile(futures, (0.5, *INTERVAL), axis=1)
        row = {"forecast": "model", "seed": seed, "minutes": round(minutes, 1)}
        rows.append({**row, **scored(past, future, season, median, low, high)})
        print(json.dumps(rows[-1]), flush=True)
    command = "python benchmarks/forecast.py"
    write_result(out, command, arguments.extra, started, samples=arguments.samples, runs=rows)


def make_series(draw: np.random.Generator) -> tuple[Array, Array, npt.NDArray[np.int64]]:
    """Return series [N, L], the same without noise, and the season of each [N]."""
    count = sum(COUNTS.values())
    steps = np.arange(LENGTH)
    seasons = draw.choice([12, 24], count)
    level = draw.uniform(1, 3, (count, 1)) * 10 ** draw.uniform(-2, 3, (count, 1))
    trend = draw.uniform(-0.5, 1, (count, 1)) * steps / LENGTH
    season = np.zeros((count, LENGTH))
    for harmonic in (1, 2):
        size = draw.uniform(0, 0.6 / harmonic, (count, 1))
        phase = draw.uniform(0, 2 * np.pi, (count, 1))
        season += size * np.sin(2 * np.pi * harmonic * steps / seasons[:, None] + phase)
    noise = draw.uniform(0.02, 0.15, (count, 1)) * draw.normal(size=(count, LENGTH))
    for step in range(1, LENGTH):
        noise[:, step] += 0.5 * noise[:, step - 1]
    clean = level * (1 + trend + season)
    return clean + level * noise, clean, seasons


def write_parts(series: Array, runs: Path) -> dict[str, Path]:
    """Write the series of each part as an array of a series a row, and return the files."""
    files, start = {}, 0
    for name, count in COUNTS.items():
        files[name] = runs / f"{name}.npy"
        np.save(files[name], series[start : start + count])
        start += count
    return files


def naive(past: Array, seasons: npt.NDArray[np.int64]) -> tuple[Array, Array, Array]:
    """Return the values one season before, and the quantiles by the errors that this made."""
    median, low, high = (np.empty((len(past), HORIZON)) for _ in range(3))
    for row, season in enumerate(seasons):
        median[row] = np.resize(past[row, -season:], HORIZON)
        errors = past[row, season:] - past[row, :-season]
        # The second season of a horizon lies two seasons after what is known: errors add up.
        growth = np.sqrt(np.arange(HORIZON) // season + 1)
        low[row], high[row] = (median[row] + np.quantile(errors, q) * growth for q in INTERVAL)
    return median, low, high


def mase(past: Array, future: Array, seasons: npt.NDArray[np.int64], found: Array) -> float:
    """Return the mean absolute error in units of the seasonal naive error in the past.

    Args:
        past, future: known and true values [N, L].
        seasons: season of each series [N].
        found: forecast [N, L].
    """
    errors = np.abs(future - found).mean(axis=1)
    units = [np.abs(p[s:] - p[:-s]).mean() for p, s in zip(past, seasons, strict=True)]
    return float((errors / units).mean())


def scored(
    past: Array,
    future: Array,
    seasons: npt.NDArray[np.int64],
    median: Array,
    low: Array,
    high: Array,
) -> dict[str, float]:
    """Return the MASE of a forecast, the share of values in its interval, and below its ends."""
    return {
        "mase": mase(past, future, seasons, median),
        "coverage": float(((low <= future) & (future <= high)).mean()),
        "below_low": float((future < low).mean()),
        "below_high": float((future < high).mean()),
    }


if __name__ == "__main__":
    main()
