"""Processes that wait for work of tests, and talk to each other through gloo.

They are started once, as forks of one that has loaded PyTorch: to load it in four processes takes
longer than what tests ask of them.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import pickle
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

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
        self._parent: subprocess.Popen[bytes] | None = None
        self._workers: list[tuple[BinaryIO, BinaryIO]] = []

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
            for rank, (requests, results) in enumerate(self._workers[:size]):
                requests.write(job)
                requests.flush()
                selector.register(results, selectors.EVENT_READ, rank)
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
        if self._parent is not None:
            os.killpg(self._parent.pid, signal.SIGKILL)
            self._parent.wait()
        for stream in itertools.chain(*self._workers):
            with suppress(BrokenPipeError):  # of a request that was not read
                stream.close()
        self._parent, self._workers = None, []

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
        pipes = [(os.pipe(), os.pipe()) for _ in range(max(SIZES))]
        theirs = [(requests[0], answers[1]) for requests, answers in pipes]
        self._workers = [
            (os.fdopen(requests[1], "wb"), os.fdopen(answers[0], "rb"))
            for requests, answers in pipes
        ]
        self._parent = subprocess.Popen(
            [sys.executable, __file__, str(store), json.dumps(theirs)],
            pass_fds=[*itertools.chain(*theirs)],
            env=environment,
            start_new_session=True,  # one signal ends all
        )
        for end in itertools.chain(*theirs):
            os.close(end)


def _fork(store: str, pipes: list[tuple[int, int]]) -> None:
    """Load what tests need, then become several processes, and wait for them."""
    for name in ("torch.distributed", "heedful.train.run"):
        importlib.import_module(name)
    for rank, pipe in enumerate(pipes):
        if os.fork() == 0:
            for end in {*itertools.chain(*pipes)} - {*pipe}:
                os.close(end)  # else nobody would see that another process has ended
            _work(store, rank, *pipe)
            return
    for pipe in pipes:
        for end in pipe:
            os.close(end)
    for _ in pipes:
        os.wait()


def _work(store: str, rank: int, incoming: int, outgoing: int) -> None:
    """Do what comes in, until it ends."""
    import torch.distributed as dist

    requests, answers = os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb")
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
    _fork(sys.argv[1], json.loads(sys.argv[2]))
