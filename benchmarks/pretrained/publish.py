"""Make a trained model one of those at hand: 8 bits, its card, its place in the package."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

MOST_POINTS = 250
"""Updates of a training whose figures come with a model."""
sys.path.insert(0, str(HERE.parent))

from driver import heedful  # noqa: E402 (a script of the folder above)
from machine import describe_machine  # noqa: E402

from heedful.config import dump_toml, read_toml  # noqa: E402
from heedful.models.model_directory import renew_digests  # noqa: E402
from heedful.pretrained.catalogue import CARD_FILE, FOLDER, Card  # noqa: E402


def store(run: Path, name: str) -> Path:
    """Write a run's model in 8 bits into the package; its directory.

    Args:
        run: run directory.
        name: of the model at hand.
    """
    place = FOLDER / name
    with tempfile.TemporaryDirectory() as scratch:
        small = Path(scratch) / name
        words = ["export", str(run), str(small), "--format", "heedful"]
        heedful([*words, "--quantization", "int8"])
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(small, place)
    _write_history(run, place)
    for file in place.iterdir():
        file.chmod(0o644)  # a package is read by others than who builds it
    return place


def _write_history(run: Path, place: Path) -> None:
    """Write the run's settings without paths, and its figures at some of its steps."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    trained = [line for line in lines if "event" not in json.loads(line)]
    shown = set(trained[:: max(1, len(trained) // MOST_POINTS)])
    kept = [
        line
        for line in lines
        if line in shown or json.loads(line).get("event") in ("validation", "samples", "summary")
    ]
    figures = _without_paths("\n".join(kept) + "\n")
    (place / "metrics.jsonl").write_text(figures, encoding="utf-8")
    settings = _without_paths((run / "config.toml").read_text(encoding="utf-8"))
    (place / "config.toml").write_text(settings, encoding="utf-8")


def _without_paths(text: str) -> str:
    """Return a text without the folders of this machine."""
    return re.sub(r'"/[^"]*/', '"DIR/', text)


def minutes_of(model: Path) -> float:
    """Return the minutes that a training took: by a run's own figures, or by a model's card."""
    if (model / CARD_FILE).exists():
        return Card.parse(read_toml(model / CARD_FILE), where=str(model)).minutes
    lines = (model / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return max(float(json.loads(line).get("seconds", 0)) for line in lines) / 60


def write_card(place: Path, facts: Mapping[str, Any], *, minutes: float) -> None:
    """Write the card of a stored model.

    Args:
        place: its directory.
        facts: fields of the card, but for machine, date and minutes.
        minutes: of training.
    """
    machine = describe_machine()
    card = {
        **facts,
        "machine": f"{machine['processor']}, {machine['cores']} cores",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "minutes": round(minutes),
    }
    _write(place, Card.parse(card, where=str(place)))


def amend_card(place: Path, facts: Mapping[str, Any]) -> None:
    """Write fields of the card of a stored model anew.

    Args:
        place: its directory.
        facts: the fields.
    """
    card = read_toml(place / CARD_FILE) | facts
    _write(place, Card.parse(card, where=str(place)))


def _write(place: Path, card: Card) -> None:
    (place / CARD_FILE).write_text(dump_toml(card.plain()), encoding="utf-8")
    renew_digests(place)
