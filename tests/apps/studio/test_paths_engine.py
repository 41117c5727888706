"""The page of paths in the browser's engine: costs and networks as Python computes them."""

from __future__ import annotations

import json
from typing import Any

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
