"""The builder with mixers beside attention: what it counts, draws, refuses and trains."""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from heedful.apps.studio.app import build_app
from heedful.apps.studio.small_translator import Components
from heedful.apps.studio.training_process import JsonLines, run_job
from heedful.apps.studio.workspace import Workspace
from heedful.errors import ConfigError
from heedful.models.build import build_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec, translator_spec
from heedful.train.run_settings import RunSettings

from .conftest import Visit

PIECES, TOKENS = 60, 6
SIZES = {"width": 32, "encoder_layers": 2, "decoder_layers": 2, "max_length": 40}
BLOCKS = {"num_heads": 4, "feedforward": 48}
BAHDANAU = {"cell": "gru", "attention": "additive", "feeding": "context", "readout": "maxout"}
MIXERS: dict[str, dict[str, Any]] = {
    "Attention": BLOCKS,
    "Linear attention": BLOCKS | {"mixer": "linear_attention"},
    "cosFormer": BLOCKS | {"mixer": "linear_attention", "features": "cosine"},
    "Performer": BLOCKS | {"mixer": "linear_attention", "features": "random"},
    "Average attention": BLOCKS | {"mixer": "average_attention"},
    "SSRU": BLOCKS | {"mixer": "ssru"},
    "S4D": BLOCKS | {"mixer": "s4d", "state_size": 8},
    "Mamba": BLOCKS | {"mixer": "mamba", "attention_every": 2},
    "RWKV": BLOCKS | {"mixer": "rwkv", "network": "channel_mix"},
    "GRU": {"recurrent": {"cell": "gru"}},
    "Gated convolution": {"convolution": {"kernel_width": 3}},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = build_app(Workspace([]))
    with TestClient(app, base_url="http://127.0.0.1:8765") as made:
        yield made


def built(client: TestClient, task: str, model: dict[str, Any]) -> dict[str, Any]:
    body = {"task": task, "model": SIZES | model, "vocabulary": PIECES, "tokens": TOKENS}
    response = client.post("/api/builder/build", json=body)
    assert response.status_code == 200, response.json()
    content: dict[str, Any] = response.json()
    return content


def bytes_of(state: Any) -> int:
    """All tensors of a state."""
    if isinstance(state, torch.Tensor):
        return state.nbytes
    inner = state if isinstance(state, tuple) else vars(state).values()
    return sum(bytes_of(each) for each in inner if each is not None)


@pytest.mark.parametrize("name", MIXERS)
def test_a_language_model_is_counted_from_its_modules(client: TestClient, name: str) -> None:
    found = built(client, "causal_lm", MIXERS[name])
    shape = TranslatorShape.parse(SIZES | MIXERS[name])
    model: Any = build_model(causal_lm_spec(shape, PIECES, SIZES["max_length"]))
    assert found["total"] == sum(each.numel() for each in model.parameters())
    mixer = next(each for each in found["mixers"] if each["name"] == name)
    block = model.decoder.blocks[0]
    module = getattr(block, block.sublayers[0].name)
    assert mixer["parameters"] == sum(each.numel() for each in module.parameters())
    assert mixer["layers"] == (1 if name == "Mamba" else 2)
    levels = {state for _, state in mixer["state"]}
    if name == "Attention":
        assert mixer["state"] == [[n, n * 2 * 32 * 4] for n, _ in mixer["state"]]
        assert found["compared"] == []
        return
    assert levels == {bytes_of(module.initial_state(1, torch.zeros(1)))}
    assert mixer["state_here"] in levels
    # Two operations for every number of a matrix; what is beside the matrices comes on top.
    matrices = 2 * sum(each.numel() for each in module.parameters() if each.dim() == 2)
    assert mixer["operations_here"] >= (matrices if name not in ("S4D", "Mamba") else 1)
    assert len({operations for _, operations in mixer["operations"]}) == 1
    if name != "Mamba":  # its other block has attention
        (attention,) = found["compared"]
        assert attention["state_here"] == TOKENS * 2 * 32 * 4
    assert mixer["operations"][-1][0] == (32 if name == "cosFormer" else 16_384)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Linformer", BLOCKS | {"encoder_mixer": "linformer"}),
        ("Performer", BLOCKS | {"encoder_mixer": "linear_attention", "features": "random"}),
        ("LSTM", {"recurrent": {}}),
        ("Gated convolution", {"convolution": {}}),
    ],
)
def test_an_encoder_has_no_state(client: TestClient, name: str, model: dict[str, Any]) -> None:
    found = built(client, "masked_lm", model)
    spec = encoder_spec(TranslatorShape.parse(SIZES | model), PIECES, 40, ())
    assert found["mixers"][0]["name"] == name
    assert found["mixers"][0]["state"] == []
    assert found["mixers"][0]["state_here"] is None
    assert found["mixers"][0]["about"] == spec.encoder.pattern[0].sublayers[0].part.headline()
    (attention,) = found["compared"]
    costs = [dict(each["operations"]) for each in (found["mixers"][0], attention)]
    # Per token attention grows with the text, its rivals do not, but for Linformer's sums.
    assert costs[1][4096] > 10 * costs[1][2]
    assert costs[0][32] <= 3 * costs[0][2]


def test_a_recurrent_translator_is_counted(client: TestClient) -> None:
    found = built(client, "translation", {"recurrent": BAHDANAU})
    names = [(each["stack"], each["name"]) for each in found["mixers"]]
    assert names == [("encoder", "GRU"), ("decoder", "GRU of 2 layers")]
    # Of each layer a vector, and the output of the step before.
    assert found["mixers"][1]["state_here"] == (2 + 1) * 32 * 4
    assert found["total"] == sum(row["total"] for row in found["rows"])
    shape = TranslatorShape.parse(SIZES | {"recurrent": BAHDANAU})
    model: Any = build_model(translator_spec(shape, PIECES, PIECES))
    layers = model.decoder.blocks[0].cross_attention.layers
    counted = [sum(each.numel() for each in layer.parameters()) for layer in layers]
    assert found["mixers"][1]["inner_layers"] == counted
    assert found["mixers"][0]["inner_layers"] == []


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("task", ["translation", "causal_lm"])
def test_the_settings_file_makes_the_model(client: TestClient, name: str, task: str) -> None:
    settings = tomllib.loads(built(client, task, MIXERS[name])["toml"])
    settings["data"]["train"] = [
        {"source": "a", "target": "b"} if task[0] == "t" else {"file": "a"}
    ]
    shape = RunSettings.parse(settings).model
    expected = TranslatorShape.parse(SIZES | MIXERS[name])
    if task == "causal_lm":
        assert causal_lm_spec(shape, 9, 40) == causal_lm_spec(expected, 9, 40)
    else:
        assert translator_spec(shape, 9, 9) == translator_spec(expected, 9, 9)


@pytest.mark.parametrize(
    ("task", "model", "words"),
    [
        ("translation", {"mixer": "linformer"}, "cannot hide later tokens"),
        ("masked_lm", {"encoder_mixer": "mamba"}, "reads in one direction"),
        ("causal_lm", {"mixer": "ssru", "attention_every": 9}, "none would have attention"),
        ("causal_lm", {"mixer": "rwkv", "positions": "rotary"}, "this model has rwkv only"),
        ("causal_lm", {"mixer": "s4d", "state_size": 3}, "must be a multiple of 2"),
        ("translation", {"recurrent": {}, "positions": "alibi"}, "known by self-attention only"),
        ("translation", {"recurrent": {}, "num_heads": 4}, "is of blocks of attention"),
        ("translation", {"convolution": {"kernel_width": 2}}, "has no middle"),
        ("translation", {"width": 16_392}, "model.width is at most 16,384 here"),
    ],
)
def test_what_makes_no_model_is_said(
    client: TestClient, task: str, model: dict[str, Any], words: str
) -> None:
    response = client.post("/api/builder/build", json={"task": task, "model": SIZES | model})
    assert response.status_code == 400
    assert words in response.json()["what"]
    assert response.json()["where"]


@pytest.mark.parametrize(
    "parts",
    [
        {"mixer": "ssru", "encoder_mixer": "linear_attention", "features": "cosine"},
        {"mixer": "mamba", "attention_every": 2, "network": "channel_mix"},
        {"recurrent": {"attention": "general", "feeding": "output", "readout": "tanh"}},
        {"convolution": {}},
    ],
)
def test_a_choice_is_trained(tmp_path: Path, parts: dict[str, Any]) -> None:
    components = Components.parse(parts)
    components.check()
    out = io.StringIO()
    job = {
        "settings": components.settings(seed=1, steps=2),
        "pairs": 200,
        "held_out": 3,
        "folder": str(tmp_path),
        "minutes": 1.0,
    }
    run_job(job, JsonLines(out))
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert events[-1]["kind"] == "result"
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())["model"]
    sublayers = config["decoder"]["pattern"][0]["sublayers"]
    expected = parts.get("mixer", "recurrent_decoder" if "recurrent" in parts else "convolution")
    assert sublayers[0]["part"]["kind"] == expected


def test_parts_that_contradict_each_other_are_not_trained(client: TestClient) -> None:
    with pytest.raises(ConfigError, match="cannot hide later tokens"):
        Components(mixer="linformer").check()
    body = {"components": {"encoder_mixer": "rwkv"}}
    response = client.post("/api/without/train", json=body)
    assert response.status_code == 400
    assert "reads in one direction" in response.json()["what"]


def drawn(page: Any) -> dict[str, str]:
    return {
        str(each.get_attribute("data-part")): str(each.text_content())
        for each in page.locator("[data-part]").all()
    }


def test_in_a_browser(visit: Visit) -> None:
    page = visit.open("builder?mixer=mamba&attention_every=2&width=128&encoder_layers=2")
    boxes = drawn(page)
    assert "Mamba, 1 in 2 attention" in boxes["d_self"]
    assert "state 19.5 kB" in boxes["d_self"]  # 256 channels of 16 numbers, and 3 tokens of them
    assert "Self-attention, 8 heads" in boxes["self"]
    page.locator("[data-part=d_self]").click()  # builds up to it
    assert page.locator(".assembling h2").inner_text() == "Mamba"
    page.get_by_role("button", name="Show it complete").click()
    assert page.get_by_text("A state space whose decay").is_visible()
    assert page.locator("figure", has_text="What is remembered, by length").is_visible()
    page.get_by_label("Words of the decoder meet by").select_option("linformer")
    page.locator(".problem").wait_for()
    assert "cannot hide later tokens" in page.locator(".problem").first.inner_text()
    page.get_by_label("Begin with").select_option("rnn-luong")
    visit.until("!document.querySelector('.problem')")
    visit.idle()
    boxes = drawn(page)
    assert "LSTM layer" in boxes["self"]
    assert "Multiplicative attention" in boxes["cross"]
    assert not boxes.keys() & {"ff", "self_sum", "d_ff"}
    assert not page.locator(".toggles").is_visible()
    settings = tomllib.loads(page.get_by_label("Settings of this model").input_value())
    assert settings["model"]["recurrent"]["feeding"] == "output"
    page.get_by_label("Layers", exact=True).select_option("convolution")
    visit.idle()
    assert "Gated convolution of 3" in drawn(page)["d_self"]
    assert "Add, times √½" in drawn(page)["cross_sum"]
