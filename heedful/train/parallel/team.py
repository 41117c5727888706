"""The processes that train one model together, and their small agreements around an update.

Tensors of the model are exchanged by PyTorch's own engines (`distribution.py`). This module has the
small agreements: the number of tokens of an update, requests to stop, memory errors, and work that
only the first process does. A single process has a team of its own, in which every agreement
returns the process's own value.

`torchrun` and `heedful train --processes` set the place of each process in the environment (RANK,
WORLD_SIZE, LOCAL_RANK).
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
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import distributed_c10d

from heedful.errors import RunError, UserError, first_line
from heedful.train.parallel.dimensions import Dimensions
from heedful.train.run_settings import RunSettings

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


T = TypeVar("T")

LONGEST_WAIT = timedelta(hours=2)
"""Time limit for reading data and training a tokenizer, which show no progress meanwhile."""

# States of the first process's work. Waiting processes send the smallest one, so that a maximum
# over all processes is the state of the first.
_WORKING, _DONE, _FAILED = 0, 1, 2

# Share of the timeout between two signs of progress: a step may take almost all of the timeout, and
# a sign costs little (0.1 ms between two processes of a machine).
_SIGN_SHARE = 0.1


class ElsewhereFailed(RunError):
    """Another process of the team could not go on, and reports the reason itself."""

    def __init__(self) -> None:
        super().__init__(
            "Another process of this run could not go on", remedy="Look at what it says"
        )


class LostProcesses(RunError):
    """Other processes of the team do not answer."""


@dataclass(frozen=True)
class Process:
    """The place of this process among those that `torchrun` started.

    Args:
        rank: index among all processes, from 0.
        size: number of processes on all machines.
        local_rank: index among the processes of this machine.
        local_size: number of processes on this machine.
        restarts: number of restarts of all processes after one was lost.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    restarts: int = 0

    @classmethod
    def here(cls) -> Process:
        """Read the place from the environment; without WORLD_SIZE the process is alone.

        Raises:
            RunError: when some of `torchrun`'s variables are missing.
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
        process: place of this process.
        timeout: seconds of waiting after which a process counts as lost.
        dimensions: dimensions of the grid of processes.

    Attributes:
        learners: group of processes that train on different tokens; None for all processes.
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
        self._last_sign: float | None = None  # time of the latest sign; None outside `only_main`

    @classmethod
    def of_run(cls, settings: RunSettings) -> Team:
        """Make the team of a run from the environment.

        Raises:
            ConfigError: when the settings contradict the number of processes or each other.
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
        """True for the first process, which writes and reports for all."""
        return self.process.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """A context in which the processes are connected.

        Args:
            device: device of the model.

        Raises:
            LostProcesses: when the processes cannot connect, or lose their connection.
        """
        if self.alone:
            yield
            return
        # Small agreements use tensors on the CPU, so they need gloo next to NCCL.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        limit = timedelta(seconds=self.timeout)
        try:
            dist.init_process_group(backend, timeout=limit)
            # A timeout belongs to a group, so the long waits have a group of their own.
            self._patient = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
        except (RuntimeError, ValueError) as error:
            raise LostProcesses(
                f"Process {self.process.rank} of {self.process.size} did not find the others: "
                f"{_first_sentence(error)}",
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
        dist.destroy_process_group()  # may wait for the others, so only after success

    def limit_waits(self, mesh: DeviceMesh) -> None:
        """Limit waits within the groups of a mesh to the timeout.

        PyTorch gives each new group its own default: 30 minutes with gloo, 10 with NCCL.
        """
        for group in mesh.get_all_groups():
            limit_group(self.timeout, group)

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sum values over the processes that train on different tokens.

        Args:
            values: values of this process, equally many on each.
        """
        if self.alone:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.learners)
        return tensor.tolist()

    def most(self, value: float) -> float:
        """Return the largest value of any process."""
        return self._reduced(value, dist.ReduceOp.MAX)

    def least(self, value: float) -> float:
        """Return the smallest value of any process."""
        return self._reduced(value, dist.ReduceOp.MIN)

    def any(self, flag: object) -> bool:
        """Return True if the flag is true on any process."""
        return self.most(float(bool(flag))) > 0

    def of_main(self, value: float) -> float:
        """Return the first process's value on all processes."""
        return self._reduced(value if self.main else 0.0, dist.ReduceOp.SUM)

    def only_main(self, work: Callable[[], T]) -> T | None:
        """Run work on the first process while the others wait.

        Args:
            work: function that calls `show_progress` at least once a timeout.

        Returns:
            The result on the first process; None on the others.

        Raises:
            UserError: the error of `work` on the first process; `ElsewhereFailed` on the others.
            LostProcesses: on the others, when the first shows no progress for the timeout.
        """
        if self.alone:
            return work()
        if not self.main:
            self._wait_for_main()
            return None
        self._last_sign = time.monotonic()
        try:
            result = work()
        # Only errors that a user can fix are announced; a crash is noticed by the lost
        # connection.
        except UserError:
            self.most(_FAILED)
            raise
        finally:
            self._last_sign = None
        self.most(_DONE)
        return result

    def together(self, work: Callable[[], T]) -> T:
        """Run work on every process; if one fails, all raise.

        Returns:
            The result of this process.

        Raises:
            UserError: the error of this process; `ElsewhereFailed` for that of another.
        """
        try:
            result = work()
        except UserError as error:
            self.check(error)
            raise
        self.check(None)
        return result

    def show_progress(self) -> None:
        """Signal to the waiting processes that the work of `only_main` goes on; else do nothing.

        Called by the work in its own thread: a separate thread would signal progress during a hang.
        Between two signs it only reads the clock.
        """
        # A counter in the store of addresses would need polling, and the store often lives in the
        # very process that hangs.
        last = self._last_sign
        if last is not None and time.monotonic() > last + _SIGN_SHARE * self.timeout:
            self._last_sign = time.monotonic()
            self.most(_WORKING)

    def _wait_for_main(self) -> None:
        """Wait until the first process has finished, renewing the timeout at each sign."""
        state = _WORKING
        while state == _WORKING:
            try:
                state = int(self.most(_WORKING))
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

    def check(self, failure: Exception | None, *, patient: bool = False) -> None:
        """Raise on all processes if any process has failed.

        Args:
            failure: error of this process; None if it can go on.
            patient: waits of up to `LONGEST_WAIT` for the others.

        Raises:
            Exception: the failure of this process; `ElsewhereFailed` for that of another.
        """
        if not self.alone:
            flag = torch.tensor([float(failure is not None)])
            dist.all_reduce(flag, group=self._patient if patient else None)
            if failure is None and flag.item():
                raise ElsewhereFailed
        if failure is not None:
            raise failure

    def texts(self, text: str) -> list[str]:
        """Return the texts of all processes, in the order of ranks."""
        return [text] if self.alone else gathered_texts(text)

    def shared_text(self, text: str | None) -> str:
        """Return the first process's text on all processes; other texts are ignored."""
        letters = torch.tensor(list((text or "").encode()), dtype=torch.uint8)
        return self.shared_tensors({"text": letters})["text"].numpy().tobytes().decode()

    def shared_tensors(
        self, tensors: Mapping[str, Tensor] | None, source: int = 0
    ) -> dict[str, Tensor]:
        """Send the tensors of one process to all, on the CPU.

        Args:
            tensors: tensors by name; ignored on all but the sending process.
            source: rank of the sending process.
        """
        if self.alone:
            assert tensors is not None
            return dict(tensors)
        here = dict(tensors or {}) if self.process.rank == source else {}
        described = {n: [list(t.shape), str(t.dtype)] for n, t in here.items()}
        result: dict[str, Tensor] = {}
        # Sent one after the other: a process needs memory for one tensor beside its result.
        for name, (shape, dtype) in json.loads(self.texts(json.dumps(described))[source]).items():
            if name in here:
                tensor = here[name].detach().cpu().contiguous()
            else:
                tensor = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            dist.broadcast(tensor, source)
            result[name] = tensor
        return result

    def rows_of_all(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Concatenate the rows of all processes along the first axis, in the order of ranks.

        Args:
            tensors: tensors by name; each process has the same names, or none.
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
        # Float64 holds counts of tokens up to 2⁵³ exactly.
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, operation)
        return float(tensor.item())


def gathered_texts(text: str, group: ProcessGroup | None = None) -> list[str]:
    """Return the texts of a group's processes, in the order of ranks.

    Args:
        text: text of this process.
        group: group with gloo; all processes if None.
    """
    content = torch.tensor(list(text.encode()), dtype=torch.uint8)
    longest = torch.tensor(len(content))
    dist.all_reduce(longest, dist.ReduceOp.MAX, group=group)
    # UTF-8 never contains the byte 255, so it ends each text.
    padded = F.pad(content, (0, int(longest) + 1 - len(content)), value=255)
    rows = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, padded, group=group)
    return [bytes(row.tolist()).partition(b"\xff")[0].decode() for row in rows]


def limit_group(seconds: float, group: ProcessGroup | None = None) -> None:
    """Set the timeout of a group's operations; without a group that of all processes."""
    # PyTorch 2.14 has a public name and deprecates the private one, the only one in 2.13.
    set_timeout = getattr(distributed_c10d, "set_timeout", None)
    if set_timeout is None:
        set_timeout = distributed_c10d._set_pg_timeout
    set_timeout(timedelta(seconds=seconds), group)


def _lost(error: Exception, process: Process) -> LostProcesses | None:
    """Translate an error that means lost processes into `LostProcesses`; None for other errors.

    Args:
        error: error raised by PyTorch.
        process: place of this process.
    """
    text = str(error)
    # Some connection errors are plain RuntimeErrors, recognisable by their text alone.
    signs = ("gloo", "NCCL", "Timed out", "Connection closed by peer", "Connection reset by peer")
    if not isinstance(error, dist.DistError) and not any(sign in text for sign in signs):
        return None
    return LostProcesses(
        f"Process {process.rank} of {process.size} lost the others: {_first_sentence(error)}",
        remedy="Look at what the others say; go on with --resume",
    )


def _how_to_meet(error: Exception) -> str:
    """Return the remedy for processes that did not find each other."""
    text = str(error)
    if "EADDRINUSE" in text:
        return (
            f"Another program has the port {os.environ.get('MASTER_PORT')}: take another, by "
            "--master-port or --rdzv-endpoint of torchrun, or by MASTER_PORT"
        )
    if "environment variable" in text:
        return "Start the processes with torchrun or with --processes, which set it"
    return "Check that all are started, and that MASTER_ADDR can be reached"


def _first_sentence(error: Exception) -> str:
    """Return the first sentence of a PyTorch error, without its source location."""
    return re.sub(r"\[/[^]]*\] *", "", first_line(error)).partition(". ")[0]
