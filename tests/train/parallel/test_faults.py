"""Processes that are lost, hang, or lose who started them: the run ends, and goes on the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.launcher import api

from heedful.apps.launcher import check_restarts, launch, run_worker
from heedful.errors import RunError
from heedful.train.run_settings import RunSettings

from .test_several_processes import (
    alone,
    check_alike,
    command,
    corpus,
    environment,
    train,
    wait_for,
    workers_of,
)

__all__ = ["alone", "corpus"]  # fixtures

ELASTIC = {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_MAX_RESTARTS": "3"}


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_the_launcher_processes_end(corpus: Path, alone: Path, tmp_path: Path) -> None:
    """A killed launcher cannot end its processes; they hold the directory until they are gone.

    Nor can it remove its temporary folder, which they do.
    """
    run, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    words = command(corpus, run, "--processes", "2", steps=4000)
    names = {**environment(), "TMPDIR": str(temporary)}
    process = subprocess.Popen(words, env=names, stderr=subprocess.DEVNULL)
    wait_for(run / "metrics.jsonl", 6, process)
    assert len(list(temporary.glob("heedful-*"))) == 1
    workers = workers_of(process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(workers) == 2
    assert not list(temporary.glob("heedful-*"))
    train(corpus, run, "--resume", "--processes", "2")
    check_alike(run, alone)


def test_a_process_that_hangs_is_noticed(corpus: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "errors"
    more = ("--processes", "2", "--restarts", "0", "--parallel.timeout", "2")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command(corpus, run, *more, steps=4000), env=environment(), stderr=errors
        )
        wait_for(run / "metrics.jsonl", 5, process)
        hanging = workers_of(process)[1]
        os.kill(hanging, signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while "lost the others" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(hanging, signal.SIGKILL)  # as the launcher would, half a minute later
        assert process.wait(60) != 0
    text = log.read_text()
    assert "Process 0 of 2 lost the others" in text
    assert "--resume" in text
    assert "Traceback" not in text


def validates(run: Path) -> bool:
    """True while a run is in the validation after an update."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return "event" not in last and last["step"] % 6 == 0


def test_a_hang_in_validation_is_noticed(corpus: Path, alone: Path, tmp_path: Path) -> None:
    """The first process alone is at work there; the others neither trust it nor wait for hours."""
    run, log = tmp_path / "run", tmp_path / "errors"
    more = ("--processes", "2", "--restarts", "1", "--parallel.timeout", "5")
    with log.open("wb") as errors:
        process = subprocess.Popen(command(corpus, run, *more), env=environment(), stderr=errors)
    wait_for(run / "metrics.jsonl", 6, process)
    first = next(each for each in workers_of(process) if b"RANK=0" in environment_of(each))
    while not validates(run):
        time.sleep(0.001)
    os.kill(first, signal.SIGSTOP)
    since = time.monotonic()
    try:
        assert validates(run), "it was stopped too late"
        while "Process 1 of 2 lost the first one" not in log.read_text():
            assert time.monotonic() < since + 12  # 5, and what a busy machine needs to say so
            time.sleep(0.05)
    finally:
        os.kill(first, signal.SIGKILL)  # as the launcher would, half a minute later
    assert process.wait(60) == 0
    text = log.read_text()
    assert "no progress for 5 seconds" in text
    assert "--parallel.timeout" in text
    assert "Resumed from step 4" in text
    assert "Traceback" not in text
    check_alike(run, alone)


def environment_of(process: int) -> list[bytes]:
    """The environment of a process."""
    return Path(f"/proc/{process}/environ").read_bytes().split(b"\0")


def test_new_starts_by_torchrun_need_a_store_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ELASTIC.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    check_restarts()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(RunError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        check_restarts()
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    check_restarts()


def test_interrupted_before_it_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise SignalException("stopped", signal.SIGINT)

    monkeypatch.setattr(api, "elastic_launch", lambda *_: interrupted)
    settings = RunSettings.parse({"data": {"train": [{"file": "pairs.tsv"}]}}, where="test")
    assert launch(["train"], settings, 2, 0) == 130


def test_what_two_processes_cannot_do_is_told_by_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, told = tmp_path / "status", []
    monkeypatch.setenv("HEEDFUL_STATUS_FILE", str(status))

    def fails() -> int:
        raise RunError("There is no such device")

    def fails_later() -> int:
        assert run_worker(fails, report) == 0  # the other process
        raise RunError("There is no such device")

    def report(error: Exception) -> int:
        told.append(str(error))
        return 2

    assert run_worker(fails_later, report) == 0
    assert (len(told), status.read_text()) == (1, "2")


def test_a_process_started_as_its_launcher_ended(tmp_path: Path) -> None:
    """It finds another parent than the one that is named."""
    program = (
        "import time\n"
        "from heedful.apps.launcher import end_with_launcher\n"
        "end_with_launcher()\n"
        "time.sleep(20)\n"
    )
    names = {"TORCHELASTIC_RUN_ID": "a", "HEEDFUL_LAUNCHER": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment(), **names}, check=False
    )
    assert done.returncode == -signal.SIGKILL
