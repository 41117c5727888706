"""Model directories: what is written is read back exactly, and damage is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from heedful.errors import ConfigError, ModelError, RunError
from heedful.models import checkpoint
from heedful.models.build import canonical_weights
from heedful.models.checkpoint import load_model, save_model
from heedful.models.model_directory import find_model_directory
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

TEXT = ["a small house", "the old tree", "two red birds sing"]


def make(joint: bool = True):
    tokenizers = train_pair(
        TokenizerSpec(kind="characters", joint=joint), TEXT, [t.upper() for t in TEXT]
    )
    shape = TranslatorShape(
        width=16,
        encoder_layers=1,
        decoder_layers=1,
        num_heads=2,
        feedforward=16,
        share_embeddings="all" if joint else "none",
    )
    torch.manual_seed(0)
    model = Translator(translator_spec(shape, tokenizers.source.size, tokenizers.target.size))
    return model, tokenizers


@pytest.mark.parametrize("joint", [True, False])
def test_round_trip_is_exact(tmp_path, joint):
    model, tokenizers = make(joint)
    save_model(model, tokenizers, tmp_path / "m", training={"steps": 3})
    files = {file.name for file in (tmp_path / "m").iterdir()}
    expected = {"config.json", "model.safetensors", "tokenizer.json"}
    assert files == (expected if joint else expected | {"target_tokenizer.json"})
    state = torch.random.get_rng_state()
    loaded, again = load_model(tmp_path / "m")
    assert torch.equal(state, torch.random.get_rng_state())
    assert loaded.spec == model.spec
    assert not loaded.training
    assert again.fingerprint == tokenizers.fingerprint
    assert again.joint == joint
    old, new = canonical_weights(model), canonical_weights(loaded)
    assert old.keys() == new.keys()
    assert all(torch.equal(old[k], new[k]) for k in old)
    assert (loaded.output_projection is loaded.source_embedding) == joint
    assert sum(t.numel() for t in old.values()) == sum(p.numel() for p in model.parameters())


def test_a_run_directory_means_its_model(tmp_path):
    model, tokenizers = make()
    (tmp_path / "run").mkdir()
    save_model(model, tokenizers, tmp_path / "run" / "model")
    assert find_model_directory(tmp_path / "run") == tmp_path / "run" / "model"


def test_a_run_without_a_model_says_how_it_goes_on(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.toml").touch()
    with pytest.raises(ModelError, match=rf"heedful train {tmp_path / 'mine'} --resume"):
        find_model_directory(tmp_path / "mine")


def test_replacing_survives_a_crash_between_its_two_renames(tmp_path, monkeypatch):
    model, tokenizers = make()
    save_model(model, tokenizers, tmp_path / "m")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    real_rename = type(tmp_path).rename

    def rename(self, target):
        if self.name.endswith(".writing"):
            die()
        return real_rename(self, target)

    monkeypatch.setattr(type(tmp_path), "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        save_model(model, tokenizers, tmp_path / "m")
    monkeypatch.undo()
    assert not (tmp_path / "m").exists()
    load_model(tmp_path / "m")
    save_model(model, tokenizers, tmp_path / "m")
    assert [f.name for f in tmp_path.iterdir()] == ["m"]


def test_a_full_disk_leaves_the_old_model(tmp_path, monkeypatch):
    model, tokenizers = make()
    save_model(model, tokenizers, tmp_path / "m", training={"steps": 1})

    def full(*_args: object, **_keywords: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(RunError, match="No space left"):
        save_model(model, tokenizers, tmp_path / "m", training={"steps": 2})
    assert json.loads((tmp_path / "m" / "config.json").read_text())["training"] == {"steps": 1}
    assert [f.name for f in tmp_path.iterdir()] == ["m"]


def _config(path, change):
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def _truncate(path):
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: _config(p, lambda c: c.update(schema_version=4)), "newer Heedful"),
        (lambda p: _config(p, lambda c: c.pop("schema_version")), "schema_version"),
        (lambda p: _config(p, lambda c: c["model"].update(widht=3)), "widht"),
        (lambda p: _config(p, lambda c: c["model"].update(width="wide")), "width"),
        (lambda p: _config(p, lambda c: c["model"].update(width=8)), "another shape"),
        (lambda p: _config(p, lambda c: c["model"].update(share_embeddings="none")), "missing"),
        (lambda p: _config(p, lambda c: c.pop("files")), "no digests of model.safetensors"),
        (lambda p: _config(p, lambda c: c["files"].update({"../m": ["0"]})), "no digests of"),
        (
            lambda p: _config(p, lambda c: c["model"]["decoder"].update(num_layers=2)),
            "have 1 layers",
        ),
        (lambda p: _config(p, lambda c: c["model"].update(source_vocabulary=9)), "vocabular"),
        (lambda p: (p / "config.json").write_text("{"), "JSON"),
        (lambda p: (p / "config.json").write_text("[1]"), "schema_version"),
        (lambda p: (p / "config.json").unlink(), "config.json"),
        (lambda p: (p / "model.safetensors").unlink(), "model.safetensors"),
        (lambda p: (p / "tokenizer.json").unlink(), "tokenizer"),
        (_truncate, "damaged"),
        (lambda p: (p / "model.safetensors").write_bytes(os.urandom(500)), "damaged"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    model, tokenizers = make()
    directory = tmp_path / "m"
    save_model(model, tokenizers, directory)
    damage(directory)
    with pytest.raises((ModelError, ConfigError), match=message) as error:
        load_model(directory)
    assert str(directory) in str(error.value)


def test_no_such_directory(tmp_path):
    with pytest.raises(ModelError, match="No such model directory"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="neither a model directory"):
        load_model(tmp_path)


def test_loading_imports_nothing_that_takes_seconds() -> None:
    """A random draw on the meta device imports sympy."""
    spec = translator_spec(TranslatorShape(width=32, num_heads=2, feedforward=32), 20, 20)
    code = (
        "import sys\n"
        "from heedful.models.build import build_around, build_model, canonical_weights\n"
        "from heedful.models.model_spec import parse_spec\n"
        f"spec = parse_spec({spec.plain()!r}, where='')\n"
        "build_around(spec, canonical_weights(build_model(spec)), where='')\n"
        "assert 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
