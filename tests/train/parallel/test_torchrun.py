"""Processes that `torchrun` starts: on two hosts, here by two launchers, and with a mistake."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from ...process_group import free_port
from .test_several_processes import (
    STEPS,
    alone,
    check_alike,
    command,
    corpus,
    environment,
)

__all__ = ["alone", "corpus"]  # fixtures


def train_on_two(corpus: Path, runs: list[Path], *more: list[str], steps: int = STEPS) -> list[str]:
    """Train on two hosts, each with a run directory and flags of its own; say what they said."""
    endpoint = f"127.0.0.1:{free_port()}"
    hosts = []
    for number, (run, own) in enumerate(zip(runs, more, strict=True)):
        words = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
            *("--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "two"),
            *("--rdzv-endpoint", endpoint, "--rdzv-conf", f"is_host={1 - number}"),
            *("--local-addr", f"127.0.0.{number + 1}"),  # their order is that of the ranks
            *command(corpus, run, *own, steps=steps)[1:],
        ]
        names = {**environment(), "GLOO_SOCKET_IFNAME": "lo"}
        hosts.append(subprocess.Popen(words, env=names, stderr=subprocess.PIPE, text=True))
    try:
        said = [host.communicate(timeout=120)[1] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(said)
    return said


def test_a_run_is_resumed_on_the_first_host_only(corpus: Path, alone: Path, tmp_path: Path) -> None:
    """The others have directories of their own, where there are no checkpoints to resume from."""
    runs = [tmp_path / "first", tmp_path / "second"]
    train_on_two(corpus, runs, [], [], steps=6)
    assert list((runs[0] / "checkpoints").glob("step-*"))
    assert not list(runs[1].rglob("step-*"))
    first, second = train_on_two(corpus, runs, ["--resume"], [])
    assert "Resumed from step 6" in first
    assert "Resumed" not in second
    check_alike(runs[0], alone)


def test_torchrun_ends_with_the_reason(corpus: Path, tmp_path: Path) -> None:
    """Its own traceback cannot be kept away, but its last line is ours."""
    (empty := tmp_path / "empty").touch()
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    words += command(corpus, tmp_path / "run", "--train", str(empty), str(empty))[1:]
    done = subprocess.run(
        words, env=environment(), stderr=subprocess.PIPE, text=True, check=False, timeout=120
    )
    assert done.returncode
    lines = done.stderr.splitlines()
    reason = next(line for line in lines if str(empty) in line)
    assert f"traceback : {reason}" in lines[-2]


def test_a_port_that_another_program_has(corpus: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
        place = dict(zip(names, ("0", "2", "0", "1", "127.0.0.1"), strict=True))
        done = subprocess.run(
            command(corpus, tmp_path / "run"),
            env={**environment(), **place, "MASTER_PORT": port},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()  # and no frames of PyTorch's C++
    assert line.startswith("Process 0 of 2 did not find the others")
    assert f"Another program has the port {port}" in line
