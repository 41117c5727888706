"""Presets of published models train by name; options of heads and rotary positions; huge models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heedful.data.text_file import LONGEST_WORD
from heedful.errors import ConfigError, RunError
from heedful.events import Events, Recorder, Warning
from heedful.models import preset_files
from heedful.models.preset_files import has_spec, preset_names, preset_tasks, read_preset_spec
from heedful.train import warm_start
from heedful.train.run import run_training
from heedful.train.run_config import resolve_settings, settings_of_run
from heedful.train.task import prepare_task
from heedful.train.training_memory import check_size

CPU = torch.device("cpu")
TEXT = "one two three four five six seven eight nine ten\n" * 20
SMALL = {"width": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 32}


def settings(folder: Path, **changes: Any) -> Any:
    (folder / "a.txt").write_text(TEXT)
    (folder / "a.tsv").write_text("one two\tyes\nthree four\tno\n" * 10)
    pair = {"source": str(folder / "a.txt"), "target": str(folder / "a.txt")}
    file = {"file": str(folder / ("a.tsv" if changes.get("task") == "classify" else "a.txt"))}
    texts = changes.get("task", "translation") != "translation"
    values = {
        "data": {
            "train": [file if texts else pair],
            "max_length": 16 if texts else 64,
            "batch_tokens": 256,
        },
        "tokenizer": {"vocabulary_size": 30},
        "max_steps": 2,
        "device": "cpu",
        "precision": "fp32",
    }
    return resolve_settings(None, None, values | changes)


@pytest.mark.parametrize(
    ("preset", "task"),
    [
        ("gpt2", "causal_lm"),
        ("llama-7b", "causal_lm"),
        ("bert-base", "masked_lm"),
        ("roberta-base", "classify"),
        ("t5-small", "span_corruption"),
        ("bart-base", "denoising"),
        ("marian-base", "translation"),
    ],
)
def test_a_preset_gives_the_shape_and_the_tokenizer_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, task: str
) -> None:
    monkeypatch.setattr(warm_start, "build_model", lambda spec: SimpleNamespace(spec=spec))
    chosen = settings(tmp_path, preset=preset, task=task, model={"dropout": 0.25})
    prepared = prepare_task(tmp_path, chosen, None, Events([]))
    spec: Any = prepared.new_model().spec
    published: Any = read_preset_spec(preset)
    size = prepared.tokenizers.source.size
    assert spec.kind == published.kind
    assert set(spec.vocabularies().values()) == {size}
    for name, stack in published.stacks().items():
        ours = spec.stacks()[name]
        assert ours.num_layers == stack.num_layers
        assert ours.block.feedforward.plain() == stack.block.feedforward.plain()
        assert ours.block.dropout == 0.25
    if task == "classify":
        assert spec.heads[0].labels == ("no", "yes")


def test_a_run_from_a_preset_trains_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of T5's preset, with one layer of a fraction of its width."""
    text = (preset_files._FOLDER / "t5-small.toml").read_text(encoding="utf-8")
    for size, less in (("width = 512", 16), ("width = 2048", 24), ("layers = 6", 1)):
        assert size in text
        text = text.replace(size, f"{size.split()[0]} = {less}")
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "t5-small.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(preset_files, "_FOLDER", folder)
    changes = {"preset": "t5-small", "task": "span_corruption"}
    run_training(tmp_path / "run", settings(tmp_path, **changes, max_steps=1), events=Events([]))
    again = settings_of_run(tmp_path / "run", {"max_steps": 2})
    assert not again.model.model_fields_set
    assert run_training(tmp_path / "run", again, resume=True, events=Events([])).steps == 2


def test_a_preset_of_another_task_is_refused_with_those_it_fits(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="gpt2 is for causal_lm, tokens, dpo, grpo; this task is translation"
    ):
        settings(tmp_path, preset="gpt2")
    with pytest.raises(ConfigError, match=r"tiny is for .*; this task is images"):
        settings(tmp_path, preset="tiny", task="images")
    chosen = settings(tmp_path, preset="gpt2", task="causal_lm", model={"width": 64})
    task = prepare_task(tmp_path, chosen, None, Events([]))
    with pytest.raises(ConfigError, match=r"model.width is 64, and the model's 768"):
        task.new_model()


def test_every_preset_fits_a_task() -> None:
    for name in preset_names():
        tasks = preset_tasks(name)
        assert tasks
        if not has_spec(name):
            assert {"translation", "causal_lm", "classify"} <= set(tasks)


def test_head_width_and_rotary_scaling_are_options_of_a_new_model(tmp_path: Path) -> None:
    rotary = {"positions": "rotary", "rotary_scaling": "yarn", "rotary_factor": 4}
    changes = {"task": "causal_lm", "model": {**SMALL, **rotary, "head_width": 24}}
    run_training(tmp_path / "run", settings(tmp_path, **changes), events=Events([]))
    spec: Any = prepare_task(tmp_path, settings(tmp_path, **changes), None, Events([])).new_model()
    attention = spec.spec.decoder.block.self_attention
    assert attention.head_width == 24
    assert (attention.rotary.scaling, attention.rotary.factor) == ("yarn", 4.0)
    assert attention.rotary.original_length == 16
    unstretched = settings(tmp_path, model={"rotary_scaling": "linear", "rotary_factor": 2})
    with pytest.raises(ConfigError, match="sinusoidal cannot be stretched"):
        prepare_task(tmp_path, unstretched, None, Events([]))


def test_rotary_scaling_overrides_that_of_a_trained_model(tmp_path: Path) -> None:
    model = {**SMALL, "positions": "rotary"}
    before = settings(tmp_path, task="causal_lm", model=model)
    run_training(tmp_path / "run", before, events=Events([]))
    longer = {"train": [{"file": str(tmp_path / "a.txt")}], "max_length": 32, "batch_tokens": 64}
    start = {"task": "causal_lm", "init": str(tmp_path / "run"), "data": longer}
    scaled = settings(tmp_path, **start, model={"rotary_scaling": "yarn", "rotary_factor": 2})
    tuned: Any = prepare_task(tmp_path, scaled, None, Events([])).new_model()
    rotary = tuned.spec.decoder.block.self_attention.rotary
    assert (rotary.scaling, rotary.factor, rotary.original_length) == ("yarn", 2.0, 16)
    assert tuned.spec.max_length == 32
    wrong = settings(tmp_path, **start, model={"head_width": 8})
    with pytest.raises(ConfigError, match=r"model.head_width is 8, and the model's 16"):
        prepare_task(tmp_path, wrong, None, Events([]))


def test_rotary_scaling_needs_rotary_positions(tmp_path: Path) -> None:
    run = settings(tmp_path, task="causal_lm", model=SMALL)
    run_training(tmp_path / "run", run, events=Events([]))
    changes = {"task": "causal_lm", "init": str(tmp_path / "run")}
    scaled = settings(tmp_path, **changes, model={"rotary_scaling": "linear", "rotary_factor": 2})
    task = prepare_task(tmp_path, scaled, None, Events([]))
    with pytest.raises(ConfigError, match="no rotary positions"):
        task.new_model()


def test_a_model_that_never_fits_is_refused_before_it_is_built(tmp_path: Path) -> None:
    chosen = settings(tmp_path, model={"encoder_layers": 100_000})
    with pytest.raises(RunError, match=r"315,\d{3},\d{3},\d{3} parameters; training needs .* TB"):
        check_size(chosen, CPU, available=2**40)
    with pytest.raises(RunError, match=r"model.encoder_layers = 100,000"):
        run_training(tmp_path / "run", chosen, events=Events([]))
    assert not (tmp_path / "run" / "config.toml").exists()
    check_size(settings(tmp_path, model={"encoder_layers": 200}), CPU, available=1)


@pytest.mark.parametrize("task", ["translation", "causal_lm", "masked_lm"])
def test_options_that_make_no_model_are_refused_before_data_are_read(
    tmp_path: Path, task: str
) -> None:
    chosen = settings(tmp_path, task=task, model={**SMALL, "num_heads": 3})
    (tmp_path / "a.txt").unlink()
    with pytest.raises(ConfigError, match="not a multiple of num_heads 3"):
        run_training(tmp_path / "run", chosen, events=Events([]))


def test_a_word_too_long_for_a_tokenizer_is_left_out_and_told(tmp_path: Path) -> None:
    chosen = settings(tmp_path, task="causal_lm", model=SMALL)
    (tmp_path / "a.txt").write_text(TEXT + "x" * (LONGEST_WORD + 1) + " end\n")
    chosen = chosen.model_copy(
        update={"data": chosen.data.model_copy(update={"documents": "line"})}
    )
    recorder = Recorder()
    task = prepare_task(tmp_path, chosen, None, Events([recorder]))
    (warning,) = recorder.texts(Warning)
    assert f"{tmp_path / 'a.txt'}:21 ({LONGEST_WORD + 1:,} characters)" in warning
    assert "x" * 20 not in "".join(task.tokenizers.source.pieces(range(30)))
