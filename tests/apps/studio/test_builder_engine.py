"""The builder's costs in the browser's engine, as Python counts them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.apps.studio.workspace import Workspace
from heedful.engines import cost_memory
from heedful.errors import UserError
from tests.apps.studio.test_browser_engine import CALLS, Engine, engine, pytestmark

__all__ = ["engine", "pytestmark"]

CALL = CALLS["builder/build"]
SHAPES = st.fixed_dictionaries(
    {},
    optional={
        # Widths that the heads do not divide and heads that cannot be rotated are refused.
        "width": st.sampled_from([32, 64, 72, 96, 120, 513, 768, 4096]),
        "encoder_layers": st.integers(1, 96),
        "decoder_layers": st.integers(1, 96),
        "num_heads": st.sampled_from([1, 2, 3, 4, 8, 12, 24]),
        "num_kv_heads": st.sampled_from([1, 2, 4, 5]),
        "feedforward": st.sampled_from([0, 64, 100, 3072]),
        "num_experts": st.integers(1, 8),
        "experts_per_token": st.integers(2, 4),
        "activation": st.sampled_from(
            ["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "reglu"]
        ),
        "norm": st.sampled_from(["layer", "rms"]),
        "norm_placement": st.sampled_from(["post", "pre", "none"]),
        "residual": st.booleans(),
        "attention_scale": st.just(1),
        "positions": st.sampled_from(
            (
                *("sinusoidal", "learned", "none", "rotary", "alibi", "kerple", "t5"),
                *("relative_keys", "transformer_xl"),
            )
        ),
        "window": st.sampled_from([16, 64, 300]),
        "share_embeddings": st.sampled_from(["all", "target", "none"]),
        "dropout": st.sampled_from([0, 0.05, 0.1, 0.55]),
        "bias": st.booleans(),
        "max_length": st.sampled_from([32, 256, 1024]),
    },
)
BODIES = st.fixed_dictionaries(
    {"task": st.sampled_from(["translation", "causal_lm", "masked_lm"]), "model": SHAPES},
    optional={
        "vocabulary": st.sampled_from([600, 50257]),
        "tokens": st.integers(1, 1000),
        "beam": st.integers(1, 16),
        "batch_tokens": st.sampled_from([3, 512, 65536]),
    },
)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels as of most processors, which the page counts on wherever it is read."""
    monkeypatch.setattr(cost_memory, "has_row_kernels", lambda width: width % 8 == 0)


def check(engine: Engine, body: dict[str, Any]) -> None:
    reply = engine.ask(None, "answer", page="builder", name="build", body=body)
    try:
        own = json.loads(json.dumps(CALL.answer(CALL.request.parse(body), Workspace([]))))
    except UserError as error:
        told = {"what": error.what, "where": error.where, "remedy": error.remedy}
        assert reply == told, body
        return
    assert reply.get("result") == own, body  # every number: they are whole, or halves of such


@pytest.mark.usefixtures("lanes")
@given(body=BODIES)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_costs_are_those_of_the_page(engine: Engine, body: dict[str, Any]) -> None:
    check(engine, body)


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"task": "causal_lm"},
        {"task": "masked_lm"},
        {"model": {"width": 20_000}},
        {"model": {"num_experts": 2, "feedforward": 0}},
    ],
)
def test_costs_of_the_usual_model_and_refusals(engine: Engine, body: dict[str, Any]) -> None:
    check(engine, body)


@pytest.mark.parametrize(
    "model",
    [
        {"mixer": "mamba"},
        {"recurrent": {}},
        {"positions": "disentangled"},
        {"mask": "window(3)"},
        {"attention_every": 2},
    ],
)
def test_other_models_are_left_to_the_studio(engine: Engine, model: dict[str, Any]) -> None:
    body = {"model": model}
    assert engine.ask(None, "answer", page="builder", name="build", body=body)["result"] is None
