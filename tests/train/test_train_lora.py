"""Low-rank runs: what is frozen, what is learned, what comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.cli.main import main
from heedful.errors import ConfigError, ModelError
from heedful.events import Events
from heedful.models.checkpoint import load_model, load_translator, read_weights
from heedful.train.checkpoints import CheckpointStore
from heedful.train.lora import Adapter, merge_into, merged, parameter_counts
from heedful.train.run import run_training
from heedful.train.run_settings import CheckpointSettings, RunSettings
from heedful.train.task import prepare_task

LORA = {"rank": 2, "alpha": 4, "targets": ["query", "decoder.*.value", "feedforward.up"]}
EXTEND = {"extend": ["<tag>"]}


class Notes:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle(self, event: Any) -> None:
        self.texts.append(getattr(event, "text", ""))

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, make_settings: Any) -> Path:
    """A short run."""
    run = tmp_path_factory.mktemp("runs") / "base"
    run_training(run, make_settings(max_steps=4), events=Events([]))
    return run


@pytest.fixture(scope="module")
def begin(base: Path, make_settings: Any) -> Any:
    def make(**changes: Any) -> RunSettings:
        values = make_settings(init=str(base), lora=LORA, tokenizer=EXTEND).plain()
        short = {
            "model": {},
            "max_steps": 4,
            "validation": {**values["validation"], "every_steps": 2},
            "checkpoint": {"every_steps": 2, "average_count": 2, "ema_decay": 0.5},
            "optimizer": {"kind": "adam", "weight_decay": 0.1},
        }
        return RunSettings.parse({**values, **short, **changes})

    return make


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, begin: Any) -> Path:
    """A low-rank run with a new token, a moving average and validation."""
    run = tmp_path_factory.mktemp("runs") / "lora"
    run_training(run, begin(), events=Events([]))
    return run


def test_a_model_begins_as_it_was(base: Path, begin: Any, tmp_path: Path) -> None:
    model: Any = prepare_task(tmp_path, begin(), None, Events([])).new_model()
    plain: Any = prepare_task(tmp_path, begin(lora={}), None, Events([])).new_model()
    ids, positions = torch.arange(4, 8)[None], torch.arange(4)[None]
    batch = (ids, positions, ids, positions)
    assert torch.equal(model.eval()(*batch), plain.eval()(*batch))
    names = {
        name.rpartition(".")[0] for name in Adapter.of(model, None).tensors if name.endswith(".up")
    }
    assert names == {
        "encoder.blocks.0.self_attention.query",
        "encoder.blocks.0.feedforward.up",
        "decoder.blocks.0.self_attention.query",
        "decoder.blocks.0.self_attention.value",
        "decoder.blocks.0.cross_attention.query",
        "decoder.blocks.0.cross_attention.value",
        "decoder.blocks.0.feedforward.up",
    }
    # Each of 7 maps is 16 by 16 here, and there is one new row of the one table.
    low_rank = 7 * 2 * (16 + 16)
    whole = sum(p.numel() for p in plain.parameters())
    assert parameter_counts(model) == (low_rank + 16, whole + low_rank)
    wrong = prepare_task(tmp_path, begin(lora={**LORA, "targets": ["quary"]}), None, Events([]))
    with pytest.raises(ConfigError, match="no matrix 'quary'"):
        wrong.new_model()


def test_what_is_frozen_keeps_every_bit(base: Path, run: Path, begin: Any) -> None:
    before = read_weights(base / "model")
    after = read_weights(run / "model")
    adapter = Adapter.load(run)
    changed = {f"{n.removesuffix('.up')}.weight" for n in adapter.tensors if n.endswith(".up")}
    assert changed
    for name, tensor in before.items():
        found = after[name]
        if name == "target_embedding.weight":
            assert found.shape[0] == len(tensor) + 1
            found = found[: len(tensor)]
        assert torch.equal(found, tensor) == (name not in changed), name
    assert adapter.tensors["target_embedding.weight.rows"].shape == (1, 16)
    store = CheckpointStore(run / "checkpoints", CheckpointSettings())
    tensors = store.all()[-1].model()
    moments = store.all()[-1].training()
    assert "decoder.blocks.0.self_attention.projection.parametrizations.weight.original" in tensors
    assert not any(name.startswith("exp_avg/") and "original" in name for name in moments)


def test_the_merged_model_computes_the_same(base: Path, begin: Any, tmp_path: Path) -> None:
    model: Any = prepare_task(tmp_path, begin(), None, Events([])).new_model()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    plain: Any = merged(model.eval())
    ids, positions = torch.arange(4, 8)[None], torch.arange(4)[None]
    batch = (ids, positions, ids, positions)
    torch.testing.assert_close(plain(*batch), model(*batch), rtol=1e-5, atol=1e-5)
    assert not any("parametrizations" in name for name in plain.state_dict())


def test_a_resumed_run_is_the_run(run: Path, begin: Any, tmp_path: Path) -> None:
    part = run_training(tmp_path / "parts", begin(max_steps=2), events=Events([]))
    events = Notes()
    whole = run_training(tmp_path / "parts", begin(), resume=True, events=Events([events]))
    assert part.trained_parameters == whole.trained_parameters
    for name, tensor in read_weights(run / "model").items():
        assert torch.equal(read_weights(tmp_path / "parts" / "model")[name], tensor), name
    for name, tensor in Adapter.load(run).tensors.items():
        assert torch.equal(Adapter.load(tmp_path / "parts").tensors[name], tensor), name
    found = sum(t.numel() for t in Adapter.load(run).tensors.values())
    assert whole.trained_parameters == found
    assert whole.parameters == sum(p.numel() for p in load_model(run)[0].parameters())
    assert any(f"{found:,} of {whole.parameters + found - 16:,} param" in t for t in events.texts)


def test_an_adapter_is_merged_into_its_model_only(
    base: Path, run: Path, begin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "merged"
    assert main(["merge", str(base), str(run / "adapter"), str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    expected, (model, tokenizers) = read_weights(run / "model"), load_translator(out)
    assert facts["parameters"] == sum(p.numel() for p in model.parameters())
    for name, tensor in expected.items():
        torch.testing.assert_close(read_weights(out)[name], tensor, rtol=1e-6, atol=1e-6)
    assert tokenizers.source.fingerprint == load_translator(run)[1].source.fingerprint
    with pytest.raises(ModelError, match="belongs to another model"):
        merge_into(run, run, tmp_path / "other")
    with pytest.raises(ModelError, match=r"no adapter\.json"):
        merge_into(base, base, tmp_path / "other")
    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    for file in (run / "adapter").iterdir():
        (spoiled / file.name).write_bytes(file.read_bytes())
    tensors = load_file(str(spoiled / "adapter.safetensors"))
    tensors["decoder.blocks.0.self_attention.query.up"] = torch.zeros(3, 2)
    save_file(tensors, str(spoiled / "adapter.safetensors"))
    with pytest.raises(ModelError, match=r"self_attention\.query"):
        merge_into(base, spoiled, tmp_path / "other")
    (spoiled / "adapter.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        merge_into(base, spoiled, tmp_path / "other")
    assert not (tmp_path / "other").exists()
