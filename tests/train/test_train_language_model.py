"""Language modelling through the same trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.data.encoded_texts import encode_texts, make_windows, window_starts
from heedful.data.text_corpus import DocumentReader
from heedful.errors import ConfigError, DataError
from heedful.events import Events
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.objective import CausalLMObjective, LossContext
from heedful.train.run import run_training
from heedful.train.run_config import resolve_settings
from heedful.train.run_settings import RunSettings

from .conftest import noted_losses, short_run, write_text

SHAPE = {"width": 16, "decoder_layers": 2, "num_heads": 2, "feedforward": 32}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("texts")
    return {
        "train": [{"file": write_text(folder / "train.txt", 1, 200)}],
        "valid": [{"file": write_text(folder / "valid.txt", 2, 20)}],
        "max_length": 32,
        "batch_tokens": 256,
    }


def settings(files: dict[str, Any], **changes: Any) -> RunSettings:
    return short_run("causal_lm", SHAPE, files, {"tokenizer": {"kind": "characters"}} | changes)


def test_a_stopped_and_resumed_run_is_the_same(tmp_path: Path, files: dict[str, Any]) -> None:
    whole = run_training(tmp_path / "whole", settings(files), events=Events([]))
    part = settings(files, max_steps=10)
    run_training(tmp_path / "parts", part, events=Events([]))
    run_training(tmp_path / "parts", settings(files), resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")
    assert whole.finished
    assert whole.scores["loss"] < 2.5  # 17 characters: ln 17 = 2.83


def test_its_defaults_give_way_to_what_is_asked_for(files: dict[str, Any]) -> None:
    assert settings(files).objective.label_smoothing == 0
    assert settings(files).optimizer.kind == "adamw"
    assert settings(files, objective={"label_smoothing": 0.2}).objective.label_smoothing == 0.2
    translation = resolve_settings(None, None, {"data": {"train": []}})
    assert translation.objective.label_smoothing == 0.1


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"objective": {"r_drop": 1.0}}, ConfigError, "objective.r_drop"),
        ({"validation": {"metrics": ["bleu"]}}, ConfigError, "validation.metrics"),
    ],
)
def test_settings_for_pairs_are_refused(
    tmp_path: Path, files: dict[str, Any], changes: dict[str, Any], error: Any, told: str
) -> None:
    with pytest.raises(error, match=told):
        run_training(tmp_path / "run", settings(files, **changes), events=Events([]))


def test_a_window_that_no_batch_holds_is_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="batch_tokens"):
        run_training(tmp_path / "a", settings({**files, "batch_tokens": 8}), events=Events([]))
    pairs = {**files, "train": [{"source": "a", "target": "b"}]}
    with pytest.raises(DataError, match="single files"):
        run_training(tmp_path / "b", settings(pairs), events=Events([]))


def test_packed_texts_have_the_losses_they_have_alone(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("abc\nbca\ncabbage\n", encoding="utf-8")
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), [path.read_text()])
    packed = encode_texts([DocumentReader(path, "line")], tokenizer, tmp_path / "cache")
    torch.manual_seed(0)
    spec = causal_lm_spec(TranslatorShape(**SHAPE, dropout=0.0), tokenizer.size, 64)
    model = CausalLM(spec).eval()
    objective = CausalLMObjective(0.0)

    def loss(texts: Any) -> float:
        batch = make_windows(texts, window_starts(len(texts), 64, 0), 64)
        return float(objective.loss(model, batch, LossContext(1)).loss_sum.detach())

    alone = 0.0
    for number, line in enumerate(path.read_text().splitlines()):
        single = tmp_path / f"{number}.txt"
        single.write_text(line, encoding="utf-8")
        reader = DocumentReader(single, "line")
        alone += loss(encode_texts([reader], tokenizer, tmp_path / "cache"))
    assert loss(packed) == pytest.approx(alone, rel=1e-6)
