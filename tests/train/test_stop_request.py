"""A stop within an update or a validation ends at once, and leaves no trace in the resumed run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.events import Events, Note, Recorder
from heedful.train.objective import TranslationObjective
from heedful.train.run import run_training
from heedful.train.stop_request import Stopped, StopRequest, interruptible
from heedful.train.tasks import pipeline_scores

from .test_train_resume import assert_same

SETTINGS: dict[str, Any] = {
    "max_steps": 4,
    "validation": {"every_steps": 2},
    "checkpoint": {"every_steps": 2, "average": "best", "average_count": 2},
}


def signalling(real: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The function, which gets a signal before its call of this number."""
    calls = 0

    def call(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            signal.raise_signal(signal.SIGTERM)
        return real(*args, **options)

    return call


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, make_settings: Any) -> Path:
    run = tmp_path_factory.mktemp("unstopped") / "run"
    run_training(run, make_settings(**SETTINGS), events=Events())
    return run


@pytest.mark.parametrize(
    ("owner", "name", "at", "step", "said"),
    [
        (TranslationObjective, "loss", 1, 0, "Update 1 was broken off"),
        (pipeline_scores, "corpus_scores", 1, 2, "The validation of step 2 was broken off"),
        (pipeline_scores, "corpus_scores", 2, 4, "The validation of step 4 was broken off"),
    ],
)
def test_what_had_begun_is_broken_off_and_made_up(
    tmp_path: Path,
    reference: Path,
    make_settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    at: int,
    step: int,
    said: str,
) -> None:
    run, settings, recorder = tmp_path / "run", make_settings(**SETTINGS), Recorder()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, signalling(getattr(owner, name), at))
        summary = run_training(run, settings, events=Events([recorder]))
    assert (summary.finished, summary.steps) == (False, step)
    assert recorder.texts(Note)[-2:] == [said, f"Saved at step {step}; go on with --resume"]
    run_training(run, settings, resume=True, events=Events())
    assert_same(run, reference)


def test_a_signal_outside_of_interruptible_work_is_only_noted() -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.name == "SIGTERM"
        with pytest.raises(Stopped), interruptible():
            pytest.fail("a stop was requested before")
    with interruptible():
        pass  # nobody takes requests any more
