"""`heedful train --processes N`: the launcher of `torchrun`, inside of the command.

PyTorch's elastic agent starts N processes on this machine, watches them, and ends all of them when
one is lost; then it restarts them, and the run resumes from its latest checkpoint. An error that a
user has to fix ends the run at once, as it would only happen again.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heedful.device import usable_cores
from heedful.errors import RunError, UserError
from heedful.train.parallel.dimensions import Dimensions
from heedful.train.run_settings import RunSettings

# Environment variable with the file in which a process leaves the exit status of the command. Any
# exit status but 0 makes the agent restart all processes; if the file exists they end at once.
_STATUS = "HEEDFUL_STATUS_FILE"

# PyTorch's variable that gives every restart its own store of addresses. In a shared store, PyTorch
# 2.13 finds the addresses of dead processes and waits for them.
_STORE_EACH_START = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

# Environment variable with the id of the process that started this one.
_LAUNCHER = "HEEDFUL_LAUNCHER"

_LOOK_SECONDS = 1.0  # time between two checks that the launcher is alive

# Time to write a last checkpoint after a request to stop.
_SHUTDOWN_SECONDS = 600


def launch(arguments: Sequence[str], settings: RunSettings, processes: int, restarts: int) -> int:
    """Run a command of `heedful` in several processes on this machine.

    Args:
        arguments: arguments of the command, as on the command line.
        settings: settings of the training run.
        processes: number of processes.
        restarts: largest number of restarts after a process was lost.

    Returns:
        The exit status of the command; 128 plus the signal if one came before training began.

    Raises:
        ConfigError: when the settings do not fit the number of processes.
        RunError: when processes were lost more often than `restarts` allows.
    """
    Dimensions.fit(settings.parallel, processes).check(settings)
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are reported below
    with tempfile.TemporaryDirectory(prefix="heedful-") as folder, _environment(folder, processes):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            # Port 0: the system picks a free one, so several runs fit on a machine.
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=restarts,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            **_patience(LaunchConfig),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "heedful", *arguments)
        except SignalException as error:
            # Processes that saved after the signal left their status; before training none does.
            status = _status(folder)
            return 128 + error.sigval if status is None else status
        except ChildFailedError as error:
            status = _status(folder)
            if status is None:
                raise _lost(error, restarts) from error
            return status
        return _status(folder) or 0


def _patience(config: Callable[..., object]) -> dict[str, Any]:
    """Return the argument that gives processes time to save; PyTorch 2.11 lacks it (30 s)."""
    known = "shutdown_timeout" in inspect.signature(config).parameters
    return {"shutdown_timeout": _SHUTDOWN_SECONDS} if known else {}


def end_with_launcher() -> None:
    """Watch the launcher in a thread, and end this process when the launcher is gone.

    A process without launcher would train on, or hold the run directory while it waits for lost
    processes. Killed at once, it loses the updates since the last checkpoint, which a resumed run
    repeats bit for bit. The launcher's temporary folder is removed, too. Without an elastic
    agent a parent may end, so nothing is watched.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent, status = int(os.environ.get(_LAUNCHER, os.getppid())), os.environ.get(_STATUS)

    def look() -> None:
        # An orphan gets another parent; no signal or pipe is needed to notice it.
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        if status is not None:
            # Several processes may remove the folder at the same time.
            shutil.rmtree(Path(status).parent, ignore_errors=True)
        # `sys.exit` would end only this thread; SIGTERM would ask for a checkpoint and may hang.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, name="launcher", daemon=True).start()


def check_restarts() -> None:
    """Refuse restarts by `torchrun` that would look for dead processes in a shared store.

    Raises:
        RunError: when restarts would hang; the environment variable to set is named.
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shared and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise RunError(
            "After a new start by torchrun, processes would look for those that are gone",
            where="--max-restarts",
            remedy=f"Set {_STORE_EACH_START}=1 where torchrun is started, or leave out "
            "--max-restarts",
        )


def run_worker(work: Callable[[], int], report: Callable[[Exception], int]) -> int:
    """Run the work of one process; an error that restarting cannot cure ends all processes.

    Args:
        work: function that trains and returns the exit status of the command.
        report: function that prints an error and returns its exit status.

    Returns:
        The exit status of the process. Any but 0 makes the agent restart all processes.

    Raises:
        RunError: when `torchrun` is set up for restarts that would hang.
    """
    check_restarts()
    end_with_launcher()
    if not os.environ.get("HEEDFUL_DEBUG"):
        # PyTorch prints forty lines of C++ frames for every lost process; we raise the error.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from heedful.train.parallel.team import ElsewhereFailed, LostProcesses, Process

    path = os.environ.get(_STATUS)
    if path is None:
        try:
            return work()
        except UserError as error:
            if not isinstance(error, ElsewhereFailed):
                _tell_torchrun(error)
            raise
    # Restarted although the command has its exit status already: nothing is left to do.
    if Path(path).exists():
        return 0
    try:
        status = work()
    # The one error that restarting cures: it leaves this process with a status other than 0.
    except LostProcesses:
        raise
    except ElsewhereFailed:
        return 0
    except Exception as error:  # would only fail again after a restart
        failure = error
        _leave_status(path, lambda: report(failure))
    else:
        if not Process.here().rank:
            _leave_status(path, lambda: status)
    return 0


def _leave_status(path: str, status: Callable[[], int]) -> None:
    """Leave the exit status of the command, unless another process did: all may have failed.

    Args:
        path: path of the status file.
        status: function that reports the end of this process and returns the exit status.
    """
    # Mode "x" is atomic: of processes that fail at once only one reports.
    with suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
        json.dump(status(), file)


def _tell_torchrun(error: UserError) -> None:
    """Make `torchrun` print the reason below its own traceback, which cannot be suppressed.

    It reads a file in the format of `torch.distributed.elastic.multiprocessing.errors`.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is not None:
        report = {"message": str(error), "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):  # the error itself is reported anyway
            Path(path).write_text(json.dumps({"message": report}), encoding="utf-8")


@contextmanager
def _environment(folder: str, processes: int) -> Iterator[None]:
    """A context with the environment variables of the processes."""
    before = dict(os.environ)
    os.environ[_STATUS] = str(Path(folder) / "status")
    # Without this variable each process would start a thread for every core.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // processes)))
    os.environ[_STORE_EACH_START] = "1"
    os.environ[_LAUNCHER] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _status(folder: str) -> int | None:
    try:
        return int(json.loads((Path(folder) / "status").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _lost(error: Exception, restarts: int) -> RunError:
    """Make the error for processes that were lost more often than `restarts` allows."""
    failures = getattr(error, "failures", {})
    # The earliest failure is the cause; the agent killed the others afterwards.
    first = min(failures.values(), key=lambda each: each.timestamp, default=None)
    how = "for a reason it says itself"
    if first is not None and first.exitcode < 0:
        how = f"by {first.signal_name()}"
    elif first is not None:
        how = f"with status {first.exitcode}"
    rank = getattr(first, "local_rank", 0)
    again = f", after {restarts} new starts" if restarts else ""
    return RunError(
        f"Process {rank} ended {how}{again}",
        remedy="Go on with --resume; --restarts lets the processes start anew by themselves",
    )
