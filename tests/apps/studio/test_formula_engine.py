"""Answers that need no model: the page computes by formula what Python computes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.apps.studio.workspace import Workspace
from heedful.errors import UserError
from tests.apps.studio.test_browser_engine import CALLS, Engine, assert_alike, engine, pytestmark

__all__ = ["engine", "pytestmark"]

quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(engine: Engine, address: str, body: dict[str, Any]) -> Any:
    """Compare both answers to a request, and return the page's."""
    page, _, name = address.partition("/")
    theirs = engine.ask(None, "answer", page=page, name=name, body=body)
    call = CALLS[address]
    try:
        own = json.loads(json.dumps(call.answer(call.request.parse(body), Workspace([]))))
    except UserError as error:
        own, theirs = {"what": error.what}, {"result": {"what": theirs.get("what")}}
    assert "result" in theirs, (body, theirs)
    found = theirs["result"]
    if "projection" in own:
        # Directions of equal variance are free to turn in their plane; their shares are not.
        points = np.array(found.pop("projection"))
        own.pop("projection")
        table = np.array(own["table"])
        spread = np.square(table - table.mean(0)).sum()
        np.testing.assert_allclose(np.square(points).sum(0) / spread, own["explained"], atol=1e-3)
    assert_alike(found, own, f"{address} {json.dumps(body)}")
    return found


@given(keys=st.integers(2, 64), seed=st.integers(0, 2**31 - 1), width=st.integers(1, 1024))
@quick
def test_a_random_query(engine: Engine, keys: int, seed: int, width: int) -> None:
    check(engine, "scale/compare", {"keys": keys, "seed": seed, "width": width})


@pytest.mark.parametrize("body", [{}, {"keys": 2, "seed": 7}, {"keys": 33, "seed": 2}])
def test_many_random_queries(engine: Engine, body: dict[str, Any]) -> None:
    check(engine, "scale/sweep", body)


RATES = st.floats(1e-8, 10, allow_subnormal=False)


@given(
    body=st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["inverse_sqrt", "cosine", "linear", "constant"]),
            "warmup_steps": st.integers(0, 200_000),
            "peak_learning_rate": st.none() | RATES,
            "final_learning_rate": st.just(0.0) | RATES,
            "width": st.integers(1, 8192),
            "max_steps": st.integers(1, 400_000),
        }
    )
)
@quick
def test_learning_rates(engine: Engine, body: dict[str, Any]) -> None:
    check(engine, "schedule/curve", body)


def calls_of(most: int) -> st.SearchStrategy[str]:
    """A word of the language, with numbers that may be wrong."""
    numbers = st.lists(st.integers(0, most), max_size=4)
    words = st.sampled_from(sorted({*_WORDS}))
    return st.tuples(words, numbers).map(
        lambda each: f"{each[0]}({', '.join(map(str, each[1]))})" if each[1] else each[0]
    )


_WORDS = (
    "everything", "causal", "window", "prefix", "segment", "dilated", "strided", "fixed", "global",
    "random", "window_2d", "windo",
)  # fmt: skip

MASKS = st.recursive(
    calls_of(9),
    lambda parts: (
        st.tuples(parts, st.sampled_from(["&", "|", " & ", ""]), parts).map("".join)
        | parts.map("({})".format)
    ),
    max_leaves=4,
)
RIGHT = (
    "window(3) | prefix(2)", "causal & segment", "causal & strided(4)", "causal & fixed(4, 1)",
    "dilated(3, 2)", "window(2) | global(1)", "window(2) | random(2, 1, 16, 1)",
    "random(1, 3, 64, 5)", "window_2d(4, 2, 2)", "window_2d(5, 2, 3, 1) & (causal | prefix(3))",
)  # fmt: skip


@given(
    body=st.fixed_dictionaries(
        {
            "mask": MASKS | st.sampled_from(RIGHT) | st.text(" &|(),$window2", max_size=12),
            "length": st.integers(2, 40),
            "padding": st.integers(0, 40),
            "segments": st.integers(1, 5),
            "bias": st.sampled_from(["none", "alibi", "t5", "relative_keys"]),
            "heads": st.integers(1, 16),
            "head": st.integers(1, 16),
            "max_distance": st.integers(1, 64),
        }
    ).filter(lambda body: body["padding"] < body["length"] and body["head"] <= body["heads"])
)
@settings(quick, max_examples=100)
def test_masks_and_biases(engine: Engine, body: dict[str, Any]) -> None:
    check(engine, "masks/draw", body)


def test_right_masks_are_drawn(engine: Engine) -> None:
    for mask in RIGHT:
        assert check(engine, "masks/draw", {"mask": mask})["seen"] > 0, mask


SCHEMES = st.sampled_from(["sinusoidal", "rotary", "alibi", "t5", "relative", "learned"])


@given(
    body=st.fixed_dictionaries(
        {
            "scheme": SCHEMES,
            "width": st.integers(1, 40).map(lambda pairs: 2 * pairs),
            "scaling": st.sampled_from(["none", "linear", "ntk", "yarn"]),
            "factor": st.integers(1, 16),
            "heads": st.integers(1, 16),
            "buckets": st.integers(2, 32).map(lambda half: 2 * half),
            "max_distance": st.integers(8, 256),
            "trained": st.integers(4, 96),
        }
    ),
    length=st.integers(4, 70),
    times=st.integers(1, 8),
)
@settings(quick, max_examples=60)
def test_schemes_of_positions(
    engine: Engine, body: dict[str, Any], length: int, times: int
) -> None:
    check(engine, "positions/beyond", {**body, "times": times})
    if body["scheme"] != "learned":
        check(engine, "positions/show", {**body, "length": length})


@given(
    words=st.lists(st.sampled_from(["dog", "bites", "man", "the", "old"]), min_size=1, max_size=9),
    order=st.sampled_from(["reversed", "shuffled"]),
    scheme=SCHEMES,
)
@quick
def test_words_in_another_order(engine: Engine, words: list[str], order: str, scheme: str) -> None:
    check(engine, "positions/shuffled", {"text": " ".join(words), "order": order, "scheme": scheme})
