"""The processes that train one model together, and the few things they tell each other.

Tensors of the model travel through PyTorch's own engines (`distribution.py`). Here are the small
agreements around an update: how many tokens all of them learn from, whether one was asked to stop
or ran out of memory, and what only the first process does. A process that trains alone has a team
of its own, in which every agreement is what it says itself.

`torchrun` tells each process its place through the environment (RANK, WORLD_SIZE, LOCAL_RANK); so
does `heedful train --processes`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from heedful.errors import RunError, UserError
from heedful.train.parallel.dimensions import Dimensions

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from heedful.train.run_settings import RunSettings

__all__ = [
    "Dimensions",
    "ElsewhereFailed",
    "LostProcesses",
    "Process",
    "Team",
    "limit_group",
]

T = TypeVar("T")

LONGEST_WAIT = timedelta(hours=2)
"""For reading data and making a tokenizer, which show no progress while they run."""

_WORKING, _DONE, _FAILED = 0, 1, 2
"""States of the work that the first process does alone, as it tells them."""

_SHOWN = 0.1
"""Part of the timeout between two signs of progress: a step may take almost all of it, and a sign
(0.1 ms between two processes of a machine) costs nothing."""


class ElsewhereFailed(RunError):
    """Another process of the team could not go on, and says why itself."""

    def __init__(self) -> None:
        super().__init__(
            "Another process of this run could not go on", remedy="Look at what it says"
        )


class LostProcesses(RunError):
    """Other processes of the team do not answer any more, or never did."""


@dataclass(frozen=True)
class Process:
    """The place of this process among those that `torchrun` started.

    Args:
        rank: its number, from 0.
        size: how many there are, on all machines.
        local_rank: its number on this machine.
        local_size: how many there are on this machine.
        restarts: how often all of them were started anew, after one was lost.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    restarts: int = 0

    @classmethod
    def here(cls) -> Process:
        """The place that the environment tells; alone if it tells none.

        Raises:
            RunError: when the environment is that of `torchrun` in parts only.
        """
        if "WORLD_SIZE" not in os.environ:
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        try:
            rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
            restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        except (KeyError, ValueError):
            raise RunError(
                f"The environment has WORLD_SIZE, but {', '.join(names)} are not all numbers",
                remedy="Start several processes with torchrun or with --processes; to train with "
                "one process unset WORLD_SIZE",
            ) from None
        return cls(rank, size, local_rank, local_size, restarts)


class Team:
    """The processes of a run.

    Args:
        process: this one.
        timeout: seconds after which a process that the others wait for counts as lost.
        dimensions: along which they are arranged.

    Attributes:
        learners: the group whose processes learn from different tokens; all of them at first.
    """

    def __init__(
        self,
        process: Process | None = None,
        timeout: float = 300.0,
        dimensions: Dimensions | None = None,
    ) -> None:
        self.process = process or Process()
        self.timeout = timeout
        self.dimensions = dimensions or Dimensions(data=self.process.size)
        self.learners: ProcessGroup | None = None
        self._patient: ProcessGroup | None = None
        self._shown: float | None = None  # when it last showed progress of work it does alone

    @classmethod
    def of_run(cls, settings: RunSettings) -> Team:
        """The team of a run, of as many processes as there are.

        Raises:
            ConfigError: when the settings do not fit their number, or each other.
        """
        process = Process.here()
        dimensions = Dimensions.fit(settings.parallel, process.size)
        dimensions.check(settings)
        return cls(process, settings.parallel.timeout, dimensions)

    @property
    def alone(self) -> bool:
        """True for a team of one process."""
        return self.process.size == 1

    @property
    def main(self) -> bool:
        """True for the process that reads, writes and speaks for all."""
        return self.process.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """A context in which the processes are connected.

        Args:
            device: that they train on.

        Raises:
            LostProcesses: when they do not find each other, or lose each other.
        """
        if self.alone:
            yield
            return
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        limit = timedelta(seconds=self.timeout)
        try:
            dist.init_process_group(backend, timeout=limit)
            self._patient = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
        except (RuntimeError, ValueError) as error:
            raise LostProcesses(
                f"Process {self.process.rank} of {self.process.size} did not find the others: "
                f"{_first_line(error)}",
                remedy=_how_to_meet(error),
            ) from error
        try:
            yield
        except RuntimeError as error:
            if (known := _lost(error, self.process)) is not None:
                raise known from error
            raise
        finally:
            self.learners = self._patient = None
        dist.destroy_process_group()  # which may wait for the others: only if all went well

    def limit_waits(self, mesh: DeviceMesh) -> None:
        """Have the processes of a mesh wait for each other no longer than the timeout.

        Each of its groups begins with PyTorch's own, 30 minutes with gloo and 10 with NCCL.
        """
        for group in mesh.get_all_groups():
            limit_group(self.timeout, group)

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sums over the processes that learn from different tokens.

        Args:
            values: as many on each process.
        """
        if self.alone:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.learners)
        return tensor.tolist()

    def most(self, value: float) -> float:
        """The largest of the numbers that the processes give."""
        return self._reduced(value, dist.ReduceOp.MAX)

    def least(self, value: float) -> float:
        """The smallest of the numbers that the processes give."""
        return self._reduced(value, dist.ReduceOp.MIN)

    def any(self, flag: object) -> bool:
        """True if it is true on any process."""
        return self.most(float(bool(flag))) > 0

    def of_main(self, value: float) -> float:
        """The number that the first process gives."""
        return self._reduced(value if self.main else 0.0, dist.ReduceOp.SUM)

    def only_main(self, work: Callable[[], T]) -> T | None:
        """Have the first process do some work while the others wait.

        Args:
            work: calls `show_progress` wherever it may take longer than the timeout.

        Returns:
            What came of it; None on the others.

        Raises:
            UserError: that kept the first process from it; on the others `ElsewhereFailed`.
            LostProcesses: on the others, when the first shows no progress for the timeout.
        """
        if self.alone:
            return work()
        if not self.main:
            self._wait_for_main()
            return None
        self._shown = time.monotonic()
        try:
            result = work()
        except UserError:
            self._told(_FAILED)
            raise
        finally:
            self._shown = None
        self._told(_DONE)
        return result

    def together(self, work: Callable[[], T]) -> T:
        """Work on every process; all of them go on, or none does.

        Returns:
            What came of it.

        Raises:
            UserError: that kept this process from it; `ElsewhereFailed` where it was another.
        """
        try:
            result = work()
        except UserError as error:
            self.check(error)
            raise
        self.check(None)
        return result

    def show_progress(self) -> None:
        """Show the processes that wait that the work of `only_main` goes on; elsewhere nothing.

        To be called by the work itself, from its own thread, never beside it: others would take a
        hang for progress then. It costs the time of a look at the clock.
        """
        if self._shown is not None and time.monotonic() > self._shown + _SHOWN * self.timeout:
            self._shown = time.monotonic()
            self._told(_WORKING)

    def _wait_for_main(self) -> None:
        """Wait until the first process is done with its work, asleep but for its signs."""
        state = _WORKING
        while state == _WORKING:
            try:
                state = self._told(_WORKING)
            except RuntimeError as error:
                if "Timed out" not in str(error):
                    raise
                raise LostProcesses(
                    f"Process {self.process.rank} of {self.process.size} lost the first one, which "
                    f"has shown no progress for {self.timeout:g} seconds in what it does alone "
                    "(validation, checkpoints, RUN/model)",
                    remedy="Look whether it hangs or cannot be reached, and go on with --resume; "
                    "if a batch or a file honestly takes it longer, raise --parallel.timeout",
                ) from error
        if state == _FAILED:
            raise ElsewhereFailed

    def _told(self, state: int) -> int:
        """The largest state that the processes tell; those that wait tell the smallest."""
        return int(self.most(state))

    def check(self, failure: Exception | None, *, patient: bool = False) -> None:
        """Go on together, or stop together.

        Args:
            failure: of this process, if it cannot go on.
            patient: wait up to `LONGEST_WAIT` for the others.

        Raises:
            Exception: the failure; `ElsewhereFailed` where another process had one.
        """
        if not self.alone:
            flag = torch.tensor([float(failure is not None)])
            dist.all_reduce(flag, group=self._patient if patient else None)
            if failure is None and flag.item():
                raise ElsewhereFailed
        if failure is not None:
            raise failure

    def texts(self, text: str) -> list[str]:
        """The texts that the processes give, in their order."""
        if self.alone:
            return [text]
        content = text.encode()
        padded = torch.full((int(self.most(len(content))) + 1,), 255, dtype=torch.uint8)
        padded[: len(content)] = torch.tensor(list(content), dtype=torch.uint8)
        rows = [torch.empty_like(padded) for _ in range(self.process.size)]
        dist.all_gather(rows, padded)
        # no text in UTF-8 holds the byte 255
        return [bytes(row.tolist()).partition(b"\xff")[0].decode() for row in rows]

    def shared_text(self, text: str | None) -> str:
        """The text that the first process has; those of the others do not count."""
        if self.alone:
            return text or ""
        content = bytearray((text or "").encode())
        size = int(self.of_main(len(content)))
        if not size:
            return ""
        letters = torch.frombuffer(content if self.main else bytearray(size), dtype=torch.uint8)
        dist.broadcast(letters, 0)
        return letters.numpy().tobytes().decode()

    def shared_tensors(
        self, tensors: Mapping[str, Tensor] | None, source: int = 0
    ) -> dict[str, Tensor]:
        """The tensors that one process has, on the processor.

        Args:
            tensors: by name; only those of that process count.
            source: its rank.
        """
        if self.alone:
            assert tensors is not None
            return dict(tensors)
        here = dict(tensors or {}) if self.process.rank == source else {}
        described = {n: [list(t.shape), str(t.dtype)] for n, t in here.items()}
        result: dict[str, Tensor] = {}
        for name, (shape, dtype) in json.loads(self.texts(json.dumps(described))[source]).items():
            if name in here:
                tensor = here[name].detach().cpu().contiguous()
            else:
                tensor = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            dist.broadcast(tensor, source)
            result[name] = tensor
        return result

    def rows_of_all(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors with the rows of all processes along the first axis, in their order.

        Args:
            tensors: by name; the same names on each process, or none.
        """
        if self.alone:
            return dict(tensors)
        each = [self.shared_tensors(tensors, rank) for rank in range(self.process.size)]
        some = [found for found in each if found]
        names = some[0] if some else {}
        return {name: torch.cat([found[name] for found in some]) for name in names}

    def _reduced(self, value: float, operation: Any) -> float:
        if self.alone:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, operation)
        return float(tensor.item())


def limit_group(seconds: float, group: ProcessGroup | None = None) -> None:
    """Have operations of a group wait no longer than this; of all processes without a group."""
    # PyTorch 2.14 has the public name and warns of the other, the only one that 2.13 has.
    set_timeout = getattr(distributed_c10d, "set_timeout", None)
    if set_timeout is None:
        set_timeout = distributed_c10d._set_pg_timeout
    set_timeout(timedelta(seconds=seconds), group)


def _lost(error: Exception, process: Process) -> LostProcesses | None:
    """The error to show for one by which a process noticed that others are gone, or None.

    Args:
        error: as PyTorch raised it.
        process: this one.
    """
    text = str(error)
    signs = ("gloo", "NCCL", "Timed out", "Connection closed by peer", "Connection reset by peer")
    if not isinstance(error, dist.DistError) and not any(sign in text for sign in signs):
        return None
    return LostProcesses(
        f"Process {process.rank} of {process.size} lost the others: {_first_line(error)}",
        remedy="Look at what the others say; go on with --resume",
    )


def _how_to_meet(error: Exception) -> str:
    """The remedy for processes that did not find each other."""
    text = str(error)
    if "EADDRINUSE" in text:
        return (
            f"Another program has the port {os.environ.get('MASTER_PORT')}: take another, by "
            "--master-port or --rdzv-endpoint of torchrun, or by MASTER_PORT"
        )
    if "environment variable" in text:
        return "Start the processes with torchrun or with --processes, which set it"
    return "Check that all are started, and that MASTER_ADDR can be reached"


def _first_line(error: Exception) -> str:
    """The first sentence of an error of PyTorch's, without the place in its source."""
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return re.sub(r"\[/[^]]*\] *", "", line).partition(". ")[0]
