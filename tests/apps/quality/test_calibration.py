"""Calibrated confidence: fits, files, and the command that makes them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.quality.calibration import Calibration, fit, reliability
from heedful.apps.quality.checker import Checker
from heedful.cli.main import main
from heedful.errors import ConfigError, DataError, ModelError
from heedful.pipelines.text_splitting import Translation
from heedful.pipelines.translation import TranslationPipeline


def made(count: int, seed: int = 1) -> tuple[list[str], list[Translation], list[float]]:
    """Translations whose chrF follows from their mean log-probability, with noise."""
    draw = random.Random(seed)
    sources, translations, scores = [], [], []
    for _ in range(count):
        mean = -3 * draw.random()
        tokens = [mean + draw.uniform(-0.2, 0.2) for _ in range(draw.randint(3, 12))]
        sources.append("a" * len(tokens))
        translations.append(Translation("b" * len(tokens), token_scores=tokens))
        scores.append(min(100.0, max(0.0, 100 * np.exp(mean) + draw.gauss(0, 10))))
    return sources, translations, scores


def test_predictions_mean_what_they_say_on_other_translations() -> None:
    calibration = fit(*made(2000))
    sources, translations, scores = made(1000, seed=2)
    found = reliability(calibration.predict(sources, translations), scores)
    assert found.calibration_error < 2.5
    assert found.correlation > 0.9
    assert sum(each.count for each in found.bins) == 1000


def test_a_calibration_survives_its_file_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    calibration = fit(*made(300))
    calibration.write(path)
    assert Calibration.read(path) == calibration
    values = json.loads(path.read_text())
    for text, error in (
        ("{", ModelError),
        ("[]", ConfigError),
        (json.dumps(values | {"weights": [1, 2]}), ConfigError),
        (json.dumps(values | {"order": [1.0]}), ModelError),
        (json.dumps(values | {"schema_version": 2}), ConfigError),
    ):
        path.write_text(text)
        with pytest.raises(error, match=r"calibration\.json"):
            Calibration.read(path)


def test_few_pairs_are_refused() -> None:
    with pytest.raises(DataError, match="99 pairs"):
        fit(*made(99))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(100, 400))
def test_the_fit_never_falls_and_stays_within_the_scores(seed: int, count: int) -> None:
    sources, translations, scores = made(count, seed)
    calibration = fit(sources, translations, scores)
    assert list(calibration.order) == sorted(calibration.order)
    assert list(calibration.values) == sorted(calibration.values)
    predicted = calibration.predict(sources, translations)
    assert min(scores) <= min(predicted) <= max(predicted) <= max(scores)
    assert abs(np.mean(predicted) - np.mean(scores)) < 3


def test_reports_hold_the_confidence(translator: TranslationPipeline) -> None:
    calibration = fit(*made(300))
    checker = Checker(translator, ("en", "de"), calibration=calibration)
    found = translator.translate(["A dog runs.", ""])
    first, empty = checker.reports(["A dog runs.", ""], found)
    (expected,) = calibration.predict(["A dog runs."], found[:1])
    assert first.confidence == pytest.approx(expected)
    assert empty.confidence is None


def test_the_command_refuses_what_is_too_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("x\n" * 10)
    sides = ("--source", str(tmp_path / "a.en"), "--reference", str(tmp_path / "a.de"))
    out = tmp_path / "calibration.json"
    assert main(["calibrate", "en-de", *sides, "-o", str(out)]) == 2
    assert "10 lines are too few" in capsys.readouterr().err
    assert not out.exists()


def test_the_command_writes_a_calibration_and_its_reliability(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["dog", "cat", "man", "woman", "house", "tree", "book", "child", "bird", "car"]
    lines = [f"The {a} sees the {b}." for a in words for b in words if a != b] * 3
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("\n".join(lines[:200]) + "\n")
    sides = ("--source", str(tmp_path / "a.en"), "--reference", str(tmp_path / "a.de"))
    out, chart = tmp_path / "calibration.json", tmp_path / "reliability.svg"
    flags = ("-o", str(out), "--chart", str(chart), "--json", "--beam", "1")
    assert main(["calibrate", "en-de", "--device", "cpu", *sides, *flags]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["pairs"] == Calibration.read(out).pairs == 200
    assert sum(each["count"] for each in record["bins"]) == 100
    assert chart.read_bytes().startswith(b"<svg")
