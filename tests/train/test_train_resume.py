"""A run that is killed and resumed ends exactly like one that never was."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import ConfigError, DataError, UserError
from heedful.events import Event, Events, Metric, Note, Recorder, Warning
from heedful.train.checkpoints import CheckpointStore
from heedful.train.run import run_training
from heedful.train.run_config import settings_of_run
from heedful.train.run_settings import RunSettings

from .conftest import Crash

TIMES = {"tokens_per_second", "seconds", "peak_memory_bytes", "precision"}

EVERYTHING: dict[str, Any] = {
    "optimizer": {"accumulate": 2},
    "objective": {"bpe_dropout": 0.1, "scheduled_sampling": 0.2, "r_drop": 0.5},
    "checkpoint": {"every_steps": 3, "ema_decay": 0.9, "average_count": 3},
    "validation": {"every_steps": 6, "patience": 100},
    "max_steps": 24,
}


class At:
    """A sink that does something at the training metrics of certain steps."""

    def __init__(self, act: Any, *steps: int) -> None:
        self.act = act
        self.steps = set(steps)

    def handle(self, event: Event) -> None:
        if isinstance(event, Metric) and event.kind == "train" and event.step in self.steps:
            self.steps.remove(event.step)
            self.act()

    def close(self) -> None:
        pass


def crash() -> None:
    raise Crash


def lines(run: Path) -> list[dict[str, Any]]:
    text = (run / "metrics.jsonl").read_text()
    return [
        {key: value for key, value in json.loads(line).items() if key not in TIMES}
        for line in text.splitlines()
    ]


def end_state(run: Path) -> dict[str, Any]:
    """Everything a run leaves behind that does not hold times."""
    last = max((run / "checkpoints").glob("step-*"))
    state = json.loads((last / "state.json").read_text())
    state["training"].pop("seconds")
    files = [last / "model.safetensors", last / "training.safetensors"]
    files.append(run / "model/model.safetensors")
    tensors = {f"{file.parent.name}/{file.name}": file.read_bytes() for file in files}
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    return {"state": state, "checkpoints": names, "metrics": lines(run), **tensors}


def assert_same(run: Path, reference: Path) -> None:
    found, expected = end_state(run), end_state(reference)
    assert found["metrics"] == expected["metrics"]
    assert found.keys() == expected.keys()
    for key in expected:
        assert found[key] == expected[key], key


@pytest.fixture(scope="module")
def reference(
    tmp_path_factory: pytest.TempPathFactory, make_settings: Any
) -> tuple[Path, RunSettings]:
    run = tmp_path_factory.mktemp("reference") / "run"
    settings = make_settings(**EVERYTHING)
    run_training(run, settings, events=Events())
    return run, settings


def test_crashes_leave_no_trace(tmp_path: Path, reference: tuple[Path, RunSettings]) -> None:
    """Also before the first checkpoint, twice after the same one, in the middle of an epoch."""
    run, settings = tmp_path / "run", reference[1]
    resume = False
    for step in (2, 10, 11, 17):
        with pytest.raises(Crash):
            run_training(run, settings, resume=resume, events=Events([At(crash, step)]))
        resume = True
    run_training(run, settings, resume=True, events=Events())
    assert_same(run, reference[0])


def test_a_crash_before_the_last_old_checkpoint_goes(
    tmp_path: Path, reference: tuple[Path, RunSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, settings = tmp_path / "run", reference[1]
    prune = CheckpointStore._prune

    def crash_at_the_end(store: CheckpointStore) -> None:
        if any(checkpoint.step == settings.max_steps for checkpoint in store.all()):
            raise Crash
        prune(store)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "_prune", crash_at_the_end)
        with pytest.raises(Crash):
            run_training(run, settings, events=Events())
    run_training(run, settings, resume=True, events=Events())
    assert_same(run, reference[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_stop(
    tmp_path: Path, reference: tuple[Path, RunSettings], number: signal.Signals
) -> None:
    run, settings = tmp_path / "run", reference[1]
    before = signal.getsignal(number)
    recorder = Recorder()
    stopper = At(lambda: signal.raise_signal(number), 5)
    summary = run_training(run, settings, events=Events([recorder, stopper]))
    assert (summary.finished, summary.steps, summary.exit_status) == (False, 5, 1)
    assert {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}[number] in summary.reason
    assert "--resume" in recorder.texts(Note)[-1]
    assert signal.getsignal(number) is before
    assert (run / "checkpoints/step-00000005").is_dir()
    summary = run_training(run, settings, resume=True, events=Events())
    assert (summary.finished, summary.exit_status) == (True, 0)
    assert_same(run, reference[0])


def test_second_interrupt_aborts_at_once(
    tmp_path: Path, reference: tuple[Path, RunSettings]
) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path / "run", reference[1], events=Events([At(twice, 2)]))


def test_damaged_newest_checkpoint_costs_steps_but_changes_nothing(
    tmp_path: Path, reference: tuple[Path, RunSettings]
) -> None:
    run, settings = tmp_path / "run", reference[1]
    with pytest.raises(Crash):
        run_training(run, settings, events=Events([At(crash, 10)]))
    damaged = run / "checkpoints/step-00000009/training.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    recorder = Recorder()
    run_training(run, settings, resume=True, events=Events([recorder]))
    assert any("step-00000009" in text for text in recorder.texts(Warning))
    assert "Resumed from step 6" in recorder.texts(Note)
    aside = run / "checkpoints/damaged-step-00000009"
    assert aside.is_dir()
    for file in aside.iterdir():
        file.unlink()
    aside.rmdir()
    assert_same(run, reference[0])


SERVER = """
import json, os, signal, sys
import torch
from pathlib import Path
from heedful.events import Events
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings

def kill_at(moment):
    calls = 0
    for name in ("fsync", "replace", "unlink", "rmdir"):
        def counted(*args, _real=getattr(os, name), **kwargs):
            nonlocal calls
            calls += 1
            if calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return _real(*args, **kwargs)
        setattr(os, name, counted)

torch.set_num_threads(1)
first = json.loads(sys.stdin.readline())  # loads what training needs, for all that follow
run_training(Path(first["run"]), RunSettings.parse(first["settings"]), events=Events())
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        if job["moment"]:
            kill_at(job["moment"])
        run = Path(job["run"])
        settings = RunSettings.parse(job["settings"])
        resume = (run / "config.toml").exists()
        run_training(run, settings, resume=resume, events=Events())
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Forker:
    """Starts runs that can be killed, without importing what training needs each time.

    Args:
        run: folder of a run that is let end.
        settings: its settings.
    """

    def __init__(self, run: Path, settings: RunSettings) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._ask(run=str(run), settings=settings.plain())

    def train(self, run: Path, settings: RunSettings, *, after: float = 0, moment: int = 0) -> int:
        """Train, to be killed after so many seconds or at a disk operation; the exit status."""
        assert self.process.stdout
        self._ask(run=str(run), settings=settings.plain(), moment=moment)
        child = int(self.process.stdout.readline())
        if after:
            time.sleep(after)
            with contextlib.suppress(ProcessLookupError):  # it may have ended
                os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(int(self.process.stdout.readline()))

    def _ask(self, **job: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory, make_settings: Any) -> Iterator[Forker]:
    forker = Forker(tmp_path_factory.mktemp("first") / "run", make_settings(max_steps=4))
    yield forker
    forker.close()


def test_killed_at_random_moments(
    tmp_path: Path, reference: tuple[Path, RunSettings], forker: Forker
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    draw = random.Random(seed)
    status, kills = 1, 0
    while status != 0:
        after = draw.uniform(0.05, 0.8) if kills < 4 else 0
        status = forker.train(tmp_path / "run", reference[1], after=after)
        assert status in (0, -signal.SIGKILL), f"seed {seed}"
        kills += status != 0
    assert_same(tmp_path / "run", reference[0])


def test_killed_while_writing(
    tmp_path: Path, reference: tuple[Path, RunSettings], forker: Forker
) -> None:
    """At fsync, rename and unlink calls, which are those of checkpoints and models."""
    seed = random.SystemRandom().randrange(10**6)
    draw = random.Random(seed)
    status, kills = 1, 0
    while status != 0:
        moment = draw.randrange(8, 60) if kills < 8 else 0
        status = forker.train(tmp_path / "run", reference[1], moment=moment)
        assert status in (0, -signal.SIGKILL), f"seed {seed}"
        kills += status != 0
    assert_same(tmp_path / "run", reference[0])


# what is refused


@pytest.fixture
def stopped(tmp_path: Path, make_settings: Any) -> tuple[Path, RunSettings]:
    run, settings = tmp_path / "run", make_settings(max_steps=4, data={"valid": []})
    run_training(run, settings, events=Events())
    return run, settings


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"precision": "bf16"},
        {"optimizer": {"accumulate": 2}},
        {"model": {"dropout": 0.2}},
        {"data": {"batch_tokens": 150}},
        {"objective": {"label_smoothing": 0.0}},
        {"checkpoint": {"ema_decay": 0.5}},
        {"validation": {"choose_by": "chrf"}},
        {"schedule": {"kind": "cosine"}},
    ],
    ids=str,
)
def test_changes_that_break_exactness_are_refused(
    stopped: tuple[Path, RunSettings], change: dict[str, Any]
) -> None:
    run, _ = stopped
    changed = settings_of_run(run, change)
    ((table, value),) = change.items()
    name = f"{table}.{next(iter(value))}" if isinstance(value, dict) else table
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        run_training(run, changed, resume=True, events=Events())


def test_limits_and_cadence_may_change(stopped: tuple[Path, RunSettings]) -> None:
    run, _ = stopped
    change = {"max_steps": 6, "max_minutes": 5, "validation": {"every_steps": 2}}
    assert run_training(run, settings_of_run(run, change), resume=True, events=Events()).steps == 6
    assert settings_of_run(run).max_steps == 6


def test_end_of_a_cosine_schedule_may_not_move(tmp_path: Path, make_settings: Any) -> None:
    settings = make_settings(schedule={"kind": "cosine"}, max_steps=4, data={"valid": []})
    run_training(tmp_path / "run", settings, events=Events())
    with pytest.raises(ConfigError, match="max_steps"):
        run_training(
            tmp_path / "run",
            settings_of_run(tmp_path / "run", {"max_steps": 6}),
            resume=True,
            events=Events(),
        )


def test_changed_data_is_refused(tmp_path: Path, make_settings: Any) -> None:
    paths = {side: tmp_path / side for side in ("source", "target")}
    for path in paths.values():
        path.write_text("one two\nthree four\nfive\n")
    train = [{side: str(path) for side, path in paths.items()}]
    settings = make_settings(data={"train": train, "valid": []}, max_steps=2)
    run_training(tmp_path / "run", settings, events=Events())
    paths["target"].write_text("one two\nthree four\nsix\n")
    with pytest.raises(DataError, match="not those the run began with"):
        run_training(tmp_path / "run", settings, resume=True, events=Events())


def test_nothing_to_resume(tmp_path: Path, make_settings: Any) -> None:
    with pytest.raises(UserError, match="no run to resume"):
        run_training(tmp_path / "run", make_settings(), resume=True, events=Events())
