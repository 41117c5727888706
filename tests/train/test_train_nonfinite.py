from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heedful.engines.training import processor
from heedful.errors import RunError
from heedful.events import Events, Recorder, Warning
from heedful.models.translator import Translator
from heedful.train import task as tasks
from heedful.train.nonfinite import find_nonfinite
from heedful.train.run import run_training


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_first_module_and_rows_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Twice(), nn.Linear(2, 2))
    x = torch.ones(4, 3, 2)
    x[2, 1] = torch.inf
    found = find_nonfinite(model, lambda: model(x).sum(), 4)
    assert found is not None
    assert (found.place, found.rows) == ("the output of 0", (2,))


def test_gradient_that_is_not_finite_is_named() -> None:
    model = nn.Linear(1, 1, bias=False)
    x = torch.zeros(1, 1)
    found = find_nonfinite(model, lambda: model(x).sqrt().sum(), 1)
    assert found is not None
    assert found.place == "the gradient of weight"


def test_finite_is_finite() -> None:
    model = nn.Linear(2, 2)
    assert find_nonfinite(model, lambda: model(torch.ones(1, 2)).sum(), 1) is None


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The feed-forward of the encoder gives infinity for sources of these lengths."""
    lengths: list[int] = []
    # With its padding, or no length is to be seen.
    monkeypatch.setattr(processor, "real_rows", lambda _positions, **_how: None)

    def poison(_module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if not _module.training:
            return output
        bad = torch.zeros_like(output)
        for length in lengths:
            if output.shape[1] == length:
                bad[0] = torch.inf
        return output + bad

    original = tasks.initial_model

    def build(*arguments: Any) -> Translator:
        model = original(*arguments)
        assert isinstance(model, Translator)
        model.encoder.blocks[0].feedforward.register_forward_hook(poison)
        return model

    monkeypatch.setattr(tasks, "initial_model", build)
    return lengths


def weights(run: Path, step: int) -> bytes:
    return (run / f"checkpoints/step-{step:08}/model.safetensors").read_bytes()


def test_skips_and_says_where(tmp_path: Path, make_settings: Any, poisoned: list[int]) -> None:
    poisoned.append(6)
    recorder = Recorder()
    settings = make_settings(max_steps=12, data={"valid": []})
    run_training(tmp_path / "run", settings, events=Events([recorder]))
    warnings = [w for w in recorder.texts(Warning) if "Not finite" in w]
    assert warnings
    assert "the output of encoder.blocks.0.feedforward" in warnings[0]
    assert "train.source:" in warnings[0]
    assert warnings[0].count("train.source:") == 1  # only the row that went wrong
    assert warnings[0].endswith("The update was skipped")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    events = [line for line in lines if line.get("event") == "nonfinite"]
    assert len(events) == len(warnings)
    assert events[0]["action"] == "skip"
    assert any(line["loss"] == "nan" for line in lines if "event" not in line and "loss" in line)


def test_stops_when_asked_to(tmp_path: Path, make_settings: Any, poisoned: list[int]) -> None:
    poisoned.extend(range(20))
    settings = make_settings(on_nonfinite="stop", data={"valid": []})
    with pytest.raises(RunError, match=r"encoder\.blocks\.0\.feedforward"):
        run_training(tmp_path / "run", settings, events=Events())


def test_many_skips_in_a_row_give_up(
    tmp_path: Path, make_settings: Any, poisoned: list[int]
) -> None:
    poisoned.extend(range(20))
    with pytest.raises(RunError, match="10 updates in a row"):
        run_training(tmp_path / "run", make_settings(data={"valid": []}), events=Events())


def test_rolls_back_to_the_checkpoint_and_goes_on_with_other_data(
    tmp_path: Path, make_settings: Any, poisoned: list[int]
) -> None:
    class PoisonOnce(Recorder):
        def handle(self, event: Any) -> None:
            super().handle(event)
            step = getattr(event, "step", 0)
            if step == 5 and not self.texts(Warning):
                poisoned.extend(range(20))
            elif step == 6:
                poisoned.clear()

    recorder = PoisonOnce()
    settings = make_settings(on_nonfinite="rollback", data={"valid": []})
    summary = run_training(tmp_path / "run", settings, events=Events([recorder]))
    warnings = recorder.texts(Warning)
    assert [w.endswith("Went back to the checkpoint of step 4") for w in warnings] == [True]
    assert summary.steps == 20
    metrics = recorder.metrics()
    assert [metric.step for metric in metrics] == [*range(1, 7), *range(5, 21)]
    # the batches after the one that failed, not the same ones again
    first, second = (m.values["tokens"] for m in metrics if m.step == 5)
    assert first != second


def test_rolling_back_for_ever_gives_up(
    tmp_path: Path, make_settings: Any, poisoned: list[int]
) -> None:
    class Poison(Recorder):
        def handle(self, event: Any) -> None:
            if getattr(event, "step", 0) == 6:
                poisoned.extend(range(20))

    settings = make_settings(on_nonfinite="rollback", data={"valid": []})
    with pytest.raises(RunError, match="returns to step 4 did not help"):
        run_training(tmp_path / "run", settings, events=Events([Poison()]))
