"""`heedful studio` on the command line."""

from __future__ import annotations

import json
import re
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


def test_an_address_without_an_export(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", "--address", "https://example.org"]) == 2
    assert "Add --export" in capsys.readouterr().err


def test_a_path_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", str(tmp_path), "--no-browser"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_without_the_extra(given: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["studio", str(given.run)]) == 2
    assert "pip install 'heedful[studio]'" in capsys.readouterr().err


def only_say(workspace: Any, host: str, listening: Any, ready: Any, token: str) -> None:
    """A server that stops as soon as it is up."""
    with listening:
        ready()


def test_the_addresses_for_this_machine_and_for_others(
    given: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("heedful.apps.sockets.outside_address", lambda: "192.0.2.7")
    monkeypatch.setattr("heedful.apps.studio.app.serve", only_say)
    words = ["studio", str(given.run), "--host", "0.0.0.0", "--port", "0", "--no-browser"]
    assert main(words) == 0
    said = capsys.readouterr().err
    found = re.findall(r"http://([\d.]+):(\d+)/\?token=(\S+)", said)
    assert [host for host, _, _ in found] == ["127.0.0.1", "192.0.2.7"]
    assert found[0][1:] == found[1][1:]
    assert "Everyone who has this address" in said


def test_a_run_that_has_only_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The studio may be started first; it says that the model is still to come."""
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "config.toml").write_text("", encoding="utf-8")
    monkeypatch.setattr("heedful.apps.studio.app.serve", only_say)
    assert main(["studio", str(tmp_path / "young"), "--port", "0", "--no-browser"]) == 0
    assert "young has no model yet" in capsys.readouterr().err
