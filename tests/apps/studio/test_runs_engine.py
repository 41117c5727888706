"""Any runs whose logs are recorded are answered in an exported page as by the studio."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from heedful.apps.studio.run_log import AXES
from heedful.apps.studio.workspace import Workspace, compared_runs
from heedful.pretrained.catalogue import models_at_hand
from tests.apps.studio.test_browser_engine import CALLS, Engine, assert_alike, engine, pytestmark

from .conftest import write_run

__all__ = ["engine", "pytestmark"]

SEEDS = 12
# Not the speed: that of `own` never changes, and which of equal points is kept is chance.
FIGURES = ("loss", "bleu", "lr", "accuracy", "grad_norm")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Recorded runs, one with sample texts, and one with more steps than a chart has points."""
    own = write_run(tmp_path_factory.mktemp("runs") / "own", 0.001, 3000)
    return Workspace(
        [*compared_runs(), *(models_at_hand()[n].path for n in ("en-de", "english")), own]
    )


@pytest.fixture(scope="module")
def logs(workspace: Workspace) -> dict[str, Any]:
    return {name: answer_of(workspace, "record", {"run": name}) for name in workspace.places}


def answer_of(workspace: Workspace, name: str, body: dict[str, Any]) -> Any:
    call = CALLS[f"runs/{name}"]
    return json.loads(json.dumps(call.answer(call.request.parse(body), workspace)))


def check(
    engine: Engine, workspace: Workspace, logs: dict[str, Any], name: str, body: dict[str, Any]
) -> None:
    theirs = engine.ask(None, "answer", page="runs", name=name, body={**body, "logs": logs})
    own = answer_of(workspace, name, body)
    for run in own["runs"] if name == "states" else ():
        run["quiet"] = logs[run["name"]]["state"]["quiet"]  # seconds until now
    assert_alike(theirs["result"], own, f"{name} {json.dumps(body)}")


def some(draw: random.Random, names: Sequence[str]) -> list[str]:
    return draw.sample(names, draw.randint(0, len(names)))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_curves(engine: Engine, workspace: Workspace, logs: dict[str, Any], seed: int) -> None:
    draw = random.Random(seed)
    body = {
        "runs": some(draw, list(logs)),
        "figures": some(draw, FIGURES),
        "axis": draw.choice(AXES),
        "smooth": draw.choice([0, 0.5, 0.9, 0.999]),
        "log": draw.random() < 0.5,
        "low": draw.choice([None, draw.uniform(1, 200)]),
        "high": draw.choice([None, draw.uniform(200, 3000)]),
    }
    check(engine, workspace, logs, "curves", body)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_scores_states_and_texts(
    engine: Engine, workspace: Workspace, logs: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    runs = some(draw, list(logs))
    check(engine, workspace, logs, "states", {"runs": runs})
    check(engine, workspace, logs, "worst", {"runs": runs})
    score, target = draw.choice(["", *FIGURES]), draw.choice([None, draw.uniform(0, 30)])
    check(engine, workspace, logs, "compare", {"runs": runs, "score": score, "target": target})
    check(engine, workspace, logs, "history", {"runs": runs, "sentence": draw.randint(-1, 12)})
    check(engine, workspace, logs, "samples", {"runs": runs, "lines": []})
