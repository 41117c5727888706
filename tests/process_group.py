"""Processes that wait for work of tests, and talk to each other through gloo.

They are started once: to load PyTorch in four processes takes longer than what tests ask of them.
"""

from __future__ import annotations

import os
import pickle
import runpy
import selectors
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES = (1, 2, 4)
PATIENCE = 60.0
"""Seconds from one answer to the next."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """Four processes; the first one, two or all of them run a function together.

    Args:
        directory: where they find each other.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._starts = 0
        self._workers: list[subprocess.Popen[bytes]] = []

    def run(self, function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
        """Return what a function returns in each of some processes.

        Args:
            function: of a test file; called with the group of the processes and the arguments.
            size: how many processes.
            args: more arguments; like the results, anything that pickle takes.

        Raises:
            RuntimeError: when a process fails, with its traceback, or does not answer.
        """
        if not self._workers:
            self._start()
        job = pickle.dumps((function.__code__.co_filename, function.__name__, size, args))
        answers: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self._workers[:size]):
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write(job)
                worker.stdin.flush()
                selector.register(worker.stdout, selectors.EVENT_READ, rank)
            while len(answers) < size:
                ready = selector.select(PATIENCE)
                for key, _ in ready:
                    is_result, answers[key.data] = pickle.load(key.fileobj)  # type: ignore[arg-type]
                    selector.unregister(key.fileobj)
                    if not is_result:  # the others wait for it
                        self.stop()
                        raise RuntimeError(answers[key.data])
                if not ready:
                    self.stop()
                    raise RuntimeError(f"Only {sorted(answers)} answered in {PATIENCE:.0f} s")
        return [answers[rank] for rank in range(size)]

    def stop(self) -> None:
        """End the processes; others are started when they are needed."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.communicate()
        self._workers = []

    def _start(self) -> None:
        names = {name for _, name in socket.if_nameindex()}
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            # Else it asks for the address of the machine's name, which may have none.
            **({"GLOO_SOCKET_IFNAME": "lo"} if "lo" in names else {}),
        }
        self._starts += 1
        store = self._directory / f"store-{self._starts}"
        self._workers = [
            subprocess.Popen(
                [sys.executable, __file__, str(store), str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            for rank in range(max(SIZES))
        ]


def _work(store: str, rank: int) -> None:
    """Do what comes in at standard input, until it ends."""
    import torch.distributed as dist

    # Gloo may print; what it prints is no answer.
    answers, requests = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=max(SIZES))
    groups = {size: dist.new_group(list(range(size))) for size in SIZES}
    modules: dict[str, dict[str, Any]] = {}
    while True:
        try:
            path, name, size, args = pickle.load(requests)
        except EOFError:
            return
        try:
            if path not in modules:
                modules[path] = runpy.run_path(path)
            answer = True, modules[path][name](groups[size], *args)
        except Exception:
            answer = False, f"process {rank}: {traceback.format_exc()}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))
