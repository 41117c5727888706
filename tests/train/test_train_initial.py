"""Beginning a run with a trained model: taken whole, from any kind of directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.config import read_toml
from heedful.errors import ConfigError, DataError, ModelError
from heedful.events import Events
from heedful.models.checkpoint import load_model, load_translator, save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.nn.spec import PositionSpec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.run import run_training
from heedful.train.run_config import resolve_settings, settings_of_run
from heedful.train.task import prepare_task
from heedful.train.warm_start import initial_tokenizers


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, make_settings: Any) -> Path:
    """A short run."""
    run = tmp_path_factory.mktemp("runs") / "first"
    run_training(run, make_settings(max_steps=4), events=Events([]))
    return run


@pytest.fixture(scope="module")
def begin(first: Path, make_settings: Any) -> Any:
    """Settings that begin with that run and give no dials but those named."""

    def make(**changes: Any) -> Any:
        values = make_settings(init=str(first)).plain()
        return type(make_settings()).parse({**values, "model": {}, **changes})

    return make


def test_weights_dials_and_tokenizer_are_those_of_the_model(
    first: Path, tmp_path: Path, begin: Any
) -> None:
    # Another vocabulary size is asked for; the model's tokenizer goes before it.
    settings = begin(tokenizer={"vocabulary_size": 40}, model={"dropout": 0.3})
    model, tokenizers = load_translator(first)
    task = prepare_task(tmp_path, settings, None, Events([]))
    assert task.tokenizers is not None
    assert task.tokenizers.fingerprint == tokenizers.fingerprint
    begun: Any = task.new_model()
    for name, tensor in model.state_dict().items():
        assert torch.equal(begun.state_dict()[name], tensor), name
    assert begun.spec.decoder.block.dropout == begun.spec.embedding.dropout == 0.3
    assert begun.spec.width == model.spec.width


def test_a_run_goes_on_learning_and_can_be_resumed(first: Path, tmp_path: Path, begin: Any) -> None:
    kept = load_translator(first)[0].output_weight.clone()
    short = {"checkpoint": {"every_steps": 2, "average": "none"}}
    whole = run_training(tmp_path / "whole", begin(max_steps=4, **short), events=Events([]))
    run_training(tmp_path / "parts", begin(max_steps=2, **short), events=Events([]))
    assert "width" not in read_toml(tmp_path / "parts" / "config.toml").get("model", {})
    resumed = settings_of_run(tmp_path / "parts", {"max_steps": 4})
    parts = run_training(tmp_path / "parts", resumed, resume=True, events=Events([]))
    assert parts.scores == whole.scores
    assert torch.equal(load_translator(first)[0].output_weight, kept)


def test_what_contradicts_the_model_is_refused(first: Path, tmp_path: Path, begin: Any) -> None:
    run = tmp_path / "run"
    for model, match in (
        ({"feedforward": 32}, r"model\.feedforward is 32, and the model's 16"),
        ({"positions": "rotary"}, r"model\.positions is rotary, and the model's sinusoidal"),
        ({"bias": False}, r"model\.bias is false, and the model's true"),
        ({"width": 16, "window": 3}, r"model\.window is 3, and the model's none"),
    ):
        with pytest.raises(ConfigError, match=match):
            run_training(run, begin(model=model), events=Events([]))
    with pytest.raises(ModelError, match="nowhere"):
        run_training(run, begin(init="nowhere"), events=Events([]))
    with pytest.raises(ConfigError, match=r"lora\.rank needs a model"):
        run_training(run, begin(init=None, lora={"rank": 1}), events=Events([]))
    with pytest.raises(ConfigError, match=r"tokenizer\.extend needs a model"):
        run_training(run, begin(init=None, tokenizer={"extend": ["a"]}), events=Events([]))
    assert not (run / "model").exists()


def test_the_dials_of_a_task_are_not_given_by_the_person(
    first: Path, corpus: dict[str, Any]
) -> None:
    settings = resolve_settings(overrides={"init": str(first), "task": "masked_lm", "data": corpus})
    assert not settings.model.model_fields_set
    assert settings.optimizer.kind == "adamw"


def test_the_kind_must_be_the_tasks(first: Path, tmp_path: Path, begin: Any) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three\n" * 50, encoding="utf-8")
    data = {"train": [{"file": str(text)}], "max_length": 8, "batch_tokens": 64}
    settings = begin(task="causal_lm", data=data, validation={"metrics": [], "choose_by": "loss"})
    with pytest.raises(
        ModelError, match=r"kind translator; the task causal_lm trains .* causal_lm"
    ):
        prepare_task(tmp_path, settings, None, Events([])).new_model()


def test_learned_positions_bound_the_texts(first: Path, tmp_path: Path, begin: Any) -> None:
    _, tokenizers = load_model(first)
    assert tokenizers is not None
    shape = TranslatorShape(width=8, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=8)
    spec = translator_spec(shape, tokenizers.source.size, tokenizers.target.size)
    learned = PositionSpec(kind="learned", max_length=11)
    embedding = spec.embedding.model_copy(update={"positions": learned})
    model = Translator(spec.model_copy(update={"embedding": embedding}))
    save_model(model, tokenizers, tmp_path / "learned")
    data = begin().data.plain()
    settings = begin(init=str(tmp_path / "learned"), data={**data, "max_length": 11})
    with pytest.raises(ConfigError, match=r"max_length = 11 is more than the 10 tokens"):
        initial_tokenizers(settings, Events([]))
    fits = begin(init=str(tmp_path / "learned"), data={**data, "max_length": 10})
    assert initial_tokenizers(fits, Events([])) is not None


def test_new_tokens_get_the_mean_of_their_pieces(first: Path, tmp_path: Path, begin: Any) -> None:
    (tmp_path / "tokens.txt").write_text("<tag>\n\ntwofold\n", encoding="utf-8")
    more = {"extend": ["twofold"], "extend_file": str(tmp_path / "tokens.txt")}
    settings = begin(tokenizer=more)
    task = prepare_task(tmp_path, settings, None, Events([]))
    before, pair = load_translator(first)
    assert task.tokenizers is not None
    old, new = pair.source, task.tokenizers.source
    assert new.size == old.size + 2
    model: Any = task.new_model()
    rows = model.state_dict()["target_embedding.weight"]
    was = before.state_dict()["target_embedding.weight"]
    assert torch.equal(rows[: old.size], was)
    known = [id for id in old.encode("twofold") if id != old.unk]
    assert known
    torch.testing.assert_close(rows[old.size], was[known].mean(0))
    known = [id for id in old.encode("<tag>") if id != old.unk]
    torch.testing.assert_close(rows[old.size + 1], was[known].mean(0) if known else was.mean(0))
    run_training(tmp_path / "run", begin(tokenizer=more, max_steps=1), events=Events([]))
    _, saved = load_model(tmp_path / "run")
    assert isinstance(saved, TokenizerPair)
    assert saved.source.fingerprint == new.fingerprint
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["model"][
        "target_vocabulary"
    ] == len(rows)
    (tmp_path / "tokens.txt").write_text("a\n b\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"tokens\.txt:2"):
        initial_tokenizers(settings, Events([]))
