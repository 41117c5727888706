"""`heedful studio` on the command line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from heedful.cli.main import main
from heedful.cli.studio import cache_folder, demo_run
from heedful.events import Events, Recorder


def test_it_serves_until_it_is_interrupted(given: Any) -> None:
    command = [sys.executable, "-m", "heedful", "studio", str(given.run), "--port", "0"]
    started = subprocess.Popen(
        [*command, "--no-browser", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    told = json.loads(started.stdout.readline())
    assert told["models"][0] == "run"
    before = time.perf_counter()
    # The address carries the key of this start; without it nobody is answered.
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(told["address"], timeout=20) as response:
        assert b"Heedful studio" in response.read()
        assert "token" not in response.url
    bare = told["address"].partition("?")[0]
    with browser.open(f"{bare}api/studio", timeout=20) as response:
        assert json.load(response)["places"][0]["kind"] == "translator"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{bare}api/studio", timeout=20)
    assert refused.value.code == 401
    refused.value.close()
    assert time.perf_counter() - before < 10  # a second on a quiet machine: torch is not waited for
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=30)
    assert started.returncode == 0, err
    assert out == ""
    assert told["address"] in err


@pytest.mark.parametrize("port", ["-1", "70000"])
def test_ports_that_are_none(given: Any, capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert main(["studio", str(given.run), "--port", port]) == 2
    assert "--port 0" in capsys.readouterr().err


def test_a_port_that_is_taken(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["studio", str(given.run), "--port", str(port)]) == 2
    assert "Another program" in capsys.readouterr().err


def test_a_path_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", str(tmp_path), "--no-browser"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_without_the_extra(given: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["studio", str(given.run)]) == 2
    assert "pip install 'heedful[studio]'" in capsys.readouterr().err


def test_the_demo_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    trained: list[Path] = []

    def train(out: Path, plan: Any, events: Events) -> None:
        trained.append(out)
        out.mkdir()
        note = {"settings": plan.plain(), "training": {"steps": plan.steps}}
        (out / "demo.json").write_text(json.dumps(note), encoding="utf-8")

    monkeypatch.setattr("heedful.cli.demo_run.run_demo", train)
    told = Recorder()
    first, second = demo_run(Events([told])), demo_run(Events([told]))
    assert first == second == cache_folder() / "demo-en-fr" / "run"
    assert trained == [tmp_path / "heedful" / "demo-en-fr"]
    assert len(told.events) == 1
