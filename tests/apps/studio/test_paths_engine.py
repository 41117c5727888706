"""The page of paths in the browser's engine: costs and networks as Python computes them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.apps.studio.workspace import Workspace
from tests.apps.studio.test_browser_engine import CALLS, Engine, engine, pytestmark

__all__ = ["engine", "pytestmark"]

QUICKLY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SIZES = st.fixed_dictionaries(
    {},
    optional={
        "length": st.integers(2, 128),
        "width": st.integers(1, 16).map(lambda eighth: 8 * eighth),
        "num_layers": st.integers(1, 4),
        "window": st.integers(2, 128),
        "kernel": st.integers(2, 9),
    },
)


def both(engine: Engine, name: str, body: dict[str, Any]) -> tuple[Any, Any]:
    """Return the engine's answer to a call, and the studio's."""
    call = CALLS[f"paths/{name}"]
    own = json.loads(json.dumps(call.answer(call.request.parse(body), Workspace([]))))
    reply = engine.ask(None, "answer", page="paths", name=name, body=body)
    assert "result" in reply, reply
    return reply["result"], own


@given(body=SIZES)
@QUICKLY
def test_costs_and_networks_are_those_of_the_page(engine: Engine, body: dict[str, Any]) -> None:
    theirs, own = both(engine, "steps", body)
    assert theirs == own


SMALL = {"length": 10, "width": 16, "num_layers": 2}
SEEDS = 40
FARTHEST = 4.5
"""Standard errors by which means may differ: one in 150,000 of normal ones differs by more."""


@pytest.mark.parametrize(
    "body",
    [
        {"network": "rnn"},
        {"network": "lstm"},
        {"network": "lstm", "keep_bias": 4},
        {"network": "gru", "keep_bias": -2},
        {"network": "gru", "num_layers": 1},
        {},
        {"network": "transformer", "norm_placement": "pre", "num_layers": 3},
        {"network": "window", "window": 3},
        {"width": 80, "length": 128, "num_layers": 1},  # fewer directions than channels
    ],
    ids=str,
)
def test_gradients_of_new_networks_are_like_those_of_the_page(
    engine: Engine, body: dict[str, Any]
) -> None:
    seeds = SEEDS if body.get("length", 10) == 10 else SEEDS // 4
    pairs = [both(engine, "measure", SMALL | body | {"seed": seed}) for seed in range(seeds)]
    for theirs, own in pairs:
        assert [theirs["name"], theirs["samples"]] == [own["name"], own["samples"]]
        assert theirs["relative"] == pytest.approx(np.divide(theirs["mean"], theirs["mean"][0]))
    theirs, own = (np.array([pair[i]["mean"] for pair in pairs]) for i in (0, 1))
    assert np.array_equal(theirs > 0, own > 0)  # nothing comes from behind the windows
    # Norms range over powers of ten, and their logarithms are about normal.
    theirs, own = (np.log(means[:, means.min(0) > 0]) for means in (theirs, own))
    error = np.sqrt((theirs.var(0, ddof=1) + own.var(0, ddof=1)) / seeds)
    assert (np.abs(theirs.mean(0) - own.mean(0)) < FARTHEST * error).all()
