"""Stored model directories load, and give the outputs that commit ecc59e1 gave for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heedful.models.checkpoint import load_model, save_model
from tests.compat.stored_outputs import outputs

STORED = Path(__file__).parent / "stored"
DIRECTORIES = sorted(path for path in STORED.iterdir() if path.is_dir())


def compare(directory: Path, expected: dict[str, Any]) -> None:
    present = outputs(directory)
    assert [each["text"] for each in present["texts"]] == [t["text"] for t in expected["texts"]]
    scores = [each["score"] for each in expected["texts"]]
    assert [each["score"] for each in present["texts"]] == pytest.approx(scores, abs=1e-5)
    assert present["logits"].keys() == expected["logits"].keys()
    for name, rows in expected["logits"].items():
        assert flat(present["logits"][name]) == pytest.approx(flat(rows), abs=1e-5), name


def flat(rows: Any) -> list[float]:
    return [n for row in rows for n in flat(row)] if isinstance(rows, list) else [rows]


def test_every_kind_is_stored() -> None:
    kinds = {json.loads((d / "config.json").read_text())["model"]["kind"] for d in DIRECTORIES}
    assert kinds == {"translator", "causal_lm", "encoder", "vision"}


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_a_stored_model_gives_the_outputs_of_then(directory: Path) -> None:
    compare(directory, json.loads((STORED / f"{directory.name}.json").read_text()))


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_a_stored_model_saved_anew_gives_them_too(directory: Path, tmp_path: Path) -> None:
    save_model(*load_model(directory), tmp_path / "model")
    compare(tmp_path / "model", json.loads((STORED / f"{directory.name}.json").read_text()))
