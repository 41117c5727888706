"""The examples of deployment: nginx before two servers, and the unit for systemd."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from ...process_group import free_port
from .conftest import FILES, ServerProcess, wait_until
from .test_serve_process import Clients

DEPLOY = FILES / "deploy"


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start nginx by the example before servers at the given addresses; return its address."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    started: list[subprocess.Popen[bytes]] = []

    def start(*addresses: str) -> str:
        text, port = (DEPLOY / "nginx.conf").read_text(), free_port()
        places = ["127.0.0.1:5001", "127.0.0.1:5002", "127.0.0.1:8080"]
        for old, new in zip(places, [*addresses, f"127.0.0.1:{port}"], strict=True):
            assert text.count(f"{old}") == 1
            text = text.replace(old, new)
        (tmp_path / "site.conf").write_text(text)
        folders = " ".join(
            f"{name}_temp_path {tmp_path}/{name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log;"
            f"events {{}} http {{ access_log off; {folders} include {tmp_path}/site.conf; }}"
        )
        words = [program, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
        words += ["-e", str(tmp_path / "error.log")]
        started.append(subprocess.Popen(words))
        wait_until(lambda: _answers(port))
        return f"http://127.0.0.1:{port}"

    yield start
    for process in started:
        process.send_signal(signal.SIGQUIT)
        process.wait(10)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def kill_all(server: ServerProcess) -> None:
    """Kill a server and its workers at once, as a machine that loses power does."""
    processes = [psutil.Process(server.process.pid)]
    processes += processes[0].children(recursive=True)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)


def test_behind_nginx_nothing_is_lost_when_a_server_dies_or_stops(
    start: Callable[..., ServerProcess], nginx: Callable[..., str]
) -> None:
    proxy = ("--forwarded-from", "127.0.0.1")
    servers = [start("en-de", *proxy), start("en-de", *proxy)]
    address = nginx(*(server.address.removeprefix("http://") for server in servers))
    with httpx2.Client() as client:
        for _ in range(4):  # whichever server has the file
            sent = {"file": ("a.txt", b"A dog runs.")}
            values = {"source": "en", "target": "de"}
            answer = client.post(f"{address}/translate_file", files=sent, data=values).json()
            assert answer["translatedFileUrl"].startswith(f"{address}/download_file/")
            assert client.get(answer["translatedFileUrl"]).text == "Ein Hund rennt."
    front = ServerProcess(servers[0].process, address, servers[0].errors)
    with Clients(front, 8) as clients:
        wait_until(lambda: clients.right > 40)
        kill_all(servers[0])
        done = clients.right
        wait_until(lambda: clients.right > done + 100)
        # A new server in its place is found again after `fail_timeout`, then the other one stops.
        port = servers[0].address.rpartition(":")[2]
        start("en-de", *proxy, port=port)
        time.sleep(6)
        servers[1].process.send_signal(signal.SIGTERM)
        done = clients.right
        wait_until(lambda: clients.right > done + 100)
    assert clients.problems == []
    assert servers[1].process.wait(30) == 0


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not installed")
    heedful = tmp_path / "heedful"
    heedful.write_text("#!/bin/sh\n")
    heedful.chmod(0o755)
    unit = (DEPLOY / "heedful.service").read_text()
    assert "/usr/local/bin/heedful" in unit
    (tmp_path / "heedful.service").write_text(unit.replace("/usr/local/bin/heedful", str(heedful)))
    done = subprocess.run(
        [program, "verify", str(tmp_path / "heedful.service")], capture_output=True, text=True
    )
    complaints = [line for line in done.stderr.splitlines() if "heedful" in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr
