"""`heedful train --processes N`: the launcher of `torchrun`, inside of the command.

PyTorch's elastic agent starts N processes on this machine, watches them, and ends all of them when
one is lost; torchelastic then starts them anew, and the run goes on from its last checkpoint. What
a person has to mend ends the run at once, since it would only happen again.
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
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.device import usable_cores
from heedful.errors import RunError, UserError
from heedful.train.parallel.dimensions import Dimensions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heedful.train.run_settings import RunSettings

_STATUS = "HEEDFUL_STATUS_FILE"
"""The variable that names the file in which a process leaves the exit status of the command. Any
status but 0 makes the agent start all processes anew; with the file there they end at once."""

_STORE_EACH_START = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""PyTorch's variable that gives every start a store of addresses of its own. In a store that all
starts share, PyTorch 2.13 finds the addresses of processes that are gone, and waits for them."""

_LAUNCHER = "HEEDFUL_LAUNCHER"
"""The variable that names the process that started this one."""

_LOOK_SECONDS = 1.0
"""Between two looks whether it is still there."""

_SHUTDOWN_SECONDS = 600
"""For processes that were asked to stop and are writing a checkpoint."""


def launch(arguments: Sequence[str], settings: RunSettings, processes: int, restarts: int) -> int:
    """Run a command of `heedful` in several processes on this machine.

    Args:
        arguments: of the command, as on the command line.
        settings: of the run.
        processes: how many.
        restarts: how often all may be started anew after one was lost.

    Returns:
        The exit status of the command; after a signal that came before it trained, 128 and more.

    Raises:
        ConfigError: when the settings do not fit so many processes.
        RunError: when processes were lost more often than that.
    """
    Dimensions.fit(settings.parallel, processes).check(settings)
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters is said below
    with tempfile.TemporaryDirectory(prefix="heedful-") as folder, _environment(folder, processes):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=restarts,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            **_patience(LaunchConfig),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "heedful", *arguments)
        except SignalException as error:
            status = _status(folder)  # of processes that have saved; none did before they trained
            return 128 + error.sigval if status is None else status
        except ChildFailedError as error:
            status = _status(folder)
            if status is None:
                raise _lost(error, restarts) from error
            return status
        return _status(folder) or 0


def _patience(config: Callable[..., object]) -> dict[str, Any]:
    """The argument that gives processes time to save; PyTorch 2.11 has none, and gives 30 s."""
    known = "shutdown_timeout" in inspect.signature(config).parameters
    return {"shutdown_timeout": _SHUTDOWN_SECONDS} if known else {}


def end_with_launcher() -> None:
    """End this process when the one that started it is gone, which could not end it any more.

    A process in a session of its own would train on; one that waits for lost processes would hold
    the run directory. Ended at once it loses what is after the last checkpoint, which is computed
    again, the same bit for bit. The launcher's temporary folder goes too. Only under an elastic
    agent: elsewhere a parent may go.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent, status = int(os.environ.get(_LAUNCHER, os.getppid())), os.environ.get(_STATUS)

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        if status is not None:
            shutil.rmtree(Path(status).parent, ignore_errors=True)  # others may be at it
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, name="launcher", daemon=True).start()


def check_restarts() -> None:
    """Refuse new starts by `torchrun` that would look for each other in the store of old ones.

    Raises:
        RunError: naming the variable to set.
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shared and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise RunError(
            "After a new start by torchrun, processes would look for those that are gone",
            where="--max-restarts",
            remedy=f"Set {_STORE_EACH_START}=1 where torchrun is started, or leave out "
            "--max-restarts",
        )


def one_of_many(work: Callable[[], int], report: Callable[[Exception], int]) -> int:
    """Do the work of a process that may have been launched: all that ends it for good ends all.

    Args:
        work: trains, and returns the exit status of the command.
        report: tells an error, and returns the exit status it stands for.

    Returns:
        The status to exit with. Any but 0 makes the agent start all processes anew.

    Raises:
        RunError: when `torchrun` may start them anew in a way that they could not survive.
    """
    check_restarts()
    end_with_launcher()
    if not os.environ.get("HEEDFUL_DEBUG"):
        # What PyTorch writes of lost processes, forty lines of frames each time, is raised, too.
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
    if Path(path).exists():  # started anew although the command has its exit status
        return 0
    try:
        status = work()
    except LostProcesses:
        raise
    except ElsewhereFailed:
        return 0
    except Exception as error:  # it would only happen again
        failure = error
        _leave_status(path, lambda: report(failure))
    else:
        if not Process.here().rank:
            _leave_status(path, lambda: status)
    return 0


def _leave_status(path: str, status: Callable[[], int]) -> None:
    """Leave the exit status of the command, unless another process has: all may fail alike.

    Args:
        path: of the file.
        status: tells what ended this process, which is told once, and returns the exit status.
    """
    with suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
        json.dump(status(), file)


def _tell_torchrun(error: UserError) -> None:
    """Have `torchrun` close its own traceback, which nothing prevents, with the reason.

    It reads a file of the form that `torch.distributed.elastic.multiprocessing.errors` writes.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is not None:
        told = {"message": str(error), "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):  # the error itself is told anyway
            Path(path).write_text(json.dumps({"message": told}), encoding="utf-8")


@contextmanager
def _environment(folder: str, processes: int) -> Iterator[None]:
    """A context with the variables that the processes get."""
    before = dict(os.environ)
    os.environ[_STATUS] = str(Path(folder) / "status")
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
    """The error for processes that were lost once more than they may be."""
    failures = getattr(error, "failures", {})
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
