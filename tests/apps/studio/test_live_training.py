"""A training that a page starts: one at a time, stopped at will, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from heedful.apps.studio import live_training
from heedful.apps.studio.app import build_app
from heedful.apps.studio.live_training import FOLDER_PREFIX, LiveTraining
from heedful.apps.studio.small_translator import VARIANTS, Components
from heedful.apps.studio.workspace import Workspace
from heedful.errors import UserError

HOME = "http://127.0.0.1:8765"
SOON = 60.0
"""Seconds; tests run on busy machines."""


def job(steps: int = 8, pairs: int = 300, held_out: int = 6) -> dict[str, Any]:
    """A training of a few updates."""
    parts = Components(encoder_layers=1, decoder_layers=1)
    settings = parts.settings(seed=1, steps=steps)
    return {
        "components": parts.plain(),
        "settings": settings,
        "pairs": pairs,
        "held_out": held_out,
    }


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds."""
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(what)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def training(scratch: Path) -> Iterator[LiveTraining]:
    """A studio's training, which ends with the test."""
    made = LiveTraining()
    yield made
    made.stop()


def folders(scratch: Path) -> list[Path]:
    return list(scratch.glob(f"{FOLDER_PREFIX}*"))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be read by its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def state_of(training: LiveTraining) -> str:
    found = training.status()
    assert found is not None
    return str(found["state"])


def test_a_training_is_followed_to_its_end(training: LiveTraining, scratch: Path) -> None:
    assert training.status() is None
    training.start(job())
    wait_for(lambda: state_of(training) in ("done", "failed"), "it does not end")
    found = training.status()
    assert found is not None
    assert (found["state"], found["problem"]) == ("done", None)
    assert [step for step, _ in found["train"]] == [5]
    assert [step for step, _ in found["loss"]] == [8]
    assert found["result"]["sentences"] == 6
    assert {"source", "reference", "text"} == set(found["result"]["samples"][0])
    json.dumps(found, allow_nan=False)
    wait_for(lambda: not folders(scratch), "files stay")


def test_there_is_one_at_a_time_and_it_can_be_stopped(
    training: LiveTraining, scratch: Path
) -> None:
    first = training.start(job(steps=5000, pairs=3000))
    with pytest.raises(UserError, match="only one can run at a time"):
        training.start(job())
    assert training.status()["number"] == first["number"]  # type: ignore[index]
    assert training._process is not None
    pid = training._process.pid
    wait_for(lambda: folders(scratch), "it has no folder")
    found = training.stop()
    assert found is not None
    assert found["state"] == "stopped"
    assert not is_alive(pid)
    assert folders(scratch) == []
    assert training.stop() == found  # twice is as once
    again = training.start(job(steps=5000))
    assert again["number"] == first["number"] + 1


def test_a_job_that_fails_says_so(training: LiveTraining, scratch: Path) -> None:
    bad = job()
    bad["settings"]["schedule"]["kind"] = "steep"
    training.start(bad)
    wait_for(lambda: state_of(training) == "failed", "it does not fail")
    assert "schedule.kind" in training.status()["problem"]  # type: ignore[index]
    wait_for(lambda: not folders(scratch), "files stay")


def test_a_process_that_hangs_is_killed(
    training: LiveTraining, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_training, "LIMIT", 0.2)
    training.start(job(steps=5000))
    wait_for(lambda: state_of(training) == "failed", "it goes on")
    wait_for(lambda: not folders(scratch), "files stay")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_studio(given: Any, scratch: Path, ending: int) -> None:
    """However the studio ends: its training, too, and its files are gone."""
    words = [sys.executable, "-c", _STUDIO, str(given.learned)]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as studio:
        assert studio.stdout is not None
        pid = int(studio.stdout.readline())
        assert is_alive(pid)
        wait_for(lambda: [f for f in folders(scratch) if any(f.iterdir())], "nothing is written")
        studio.send_signal(ending)
    wait_for(lambda: not is_alive(pid), "it goes on")
    wait_for(lambda: not folders(scratch), "files stay")


def test_nothing_is_written_after_the_folder_was_removed(tmp_path: Path) -> None:
    """The studio is gone, and the training's thread has not noticed: it goes on writing."""
    for number in range(10):
        folder = tmp_path / f"training-{number}"
        words = [sys.executable, "-c", _WRITES_ON, str(folder)]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
            wait_for(folder.exists, "nothing is written")
            assert process.stdin is not None
            process.stdin.close()
        assert not folder.exists()


_WRITES_ON = """
import sys
import threading
from pathlib import Path
from heedful.apps.studio.training_process import _leave_with

folder = Path(sys.argv[1])
threading.Thread(target=_leave_with, args=(sys.stdin.fileno(), folder), daemon=True).start()
while True:
    folder.mkdir(exist_ok=True)
    try:
        (folder / "file").touch()
    except OSError:
        pass  # the folder was removed
"""

_STUDIO = """
import sys
from pathlib import Path
from heedful.apps.sockets import listen
from heedful.apps.studio.app import serve
from heedful.apps.studio.small_translator import Components
from heedful.apps.studio.workspace import Workspace

workspace = Workspace([Path(sys.argv[1])])

def ready():
    parts = Components()
    settings = parts.settings(1)
    job = {"components": parts.plain(), "settings": settings, "pairs": 3000, "held_out": 20}
    workspace.training.start(job)
    print(workspace.training._process.pid, flush=True)

serve(workspace, "127.0.0.1", listen("127.0.0.1", 0), ready)
"""


# The calls of the page


@pytest.fixture
def client(given: Any, scratch: Path) -> Iterator[TestClient]:
    with TestClient(build_app(Workspace([given.learned])), base_url=HOME) as made:
        yield made


def ask(client: TestClient, call: str, body: dict[str, Any] | None = None) -> Any:
    return client.post(f"/api/without/{call}", json=body or {})


def test_two_clicks_start_one_training(client: TestClient, scratch: Path) -> None:
    assert ask(client, "progress").json() == {"training": None}
    first = ask(client, "train", {"components": {"residual": False}, "seed": 3})
    assert first.json()["training"]["components"]["residual"] is False
    second = ask(client, "train")
    assert second.status_code == 400
    assert "only one can run at a time" in second.json()["what"]
    assert ask(client, "progress").json()["training"]["seed"] == 3
    assert ask(client, "stop").json()["training"]["state"] == "stopped"
    assert folders(scratch) == []


@pytest.mark.parametrize(
    "body",
    [
        {"steps": 100_000},
        {"seed": 0},
        {"seed": 10**9},
        {"components": {"num_heads": 64}},
        {"components": {"encoder_layers": 12}},
        {"components": {"width": 4096}},
        {"components": {"positions": "/etc/passwd"}},
        {"folder": "/tmp"},
        {"settings": {}},
    ],
)
def test_the_server_bounds_what_is_trained(client: TestClient, body: dict[str, Any]) -> None:
    assert ask(client, "train", body).status_code == 400
    assert ask(client, "progress").json() == {"training": None}


SMALL = {"everything", "residual", "positions", "feedforward", "heads"}
REFERENCES = {"everything", "deep", "six", "wide"}


def test_a_lesson_shows_when_its_reference_has_learned(client: TestClient) -> None:
    """A difference to a reference that is half trained teaches nothing."""
    found = ask(client, "recorded").json()
    scores = {each["name"]: each["scores"]["exact"] for each in found["variants"]}
    for name in REFERENCES:
        assert scores[name]["low"] >= 0.9
    for name in ("residual", "positions", "norm"):
        assert scores[name]["high"] < 0.7


def test_recorded_runs_are_those_of_the_variants(client: TestClient) -> None:
    found = ask(client, "recorded").json()
    assert [each["name"] for each in found["variants"]] == list(VARIANTS)
    for each in found["variants"]:
        assert [run["seed"] for run in each["runs"]] == list(range(1, len(each["runs"]) + 1))
        exact = [run["exact"] for run in each["runs"]]
        assert each["scores"]["exact"]["low"] == min(exact)
        assert each["scores"]["exact"]["high"] == max(exact)
        assert each["scores"]["exact"]["mean"] == pytest.approx(sum(exact) / len(exact))
        for run in each["runs"]:
            assert run["loss"][-1][0] == each["steps"]
        assert set(found["samples"][0]["texts"]) == set(VARIANTS)
        assert each["small"] == (each["name"] in SMALL)
    # A translator is compared with one that has the part, and with a reference in the end.
    names = {each["name"]: each["reference"] for each in found["variants"]}
    assert {name for name, reference in names.items() if not reference} == REFERENCES
    assert {reference for reference in names.values() if reference} <= set(names)
