"""The beginning of a run: its directory, data, model and plan, on one process or several.

The first process does everything that writes: it holds the directory, trains the tokenizer, encodes
the data and chooses. The others hear of its choices; on other machines one process encodes the data
there, and the rest find it done.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from heedful.device import resolve_device
from heedful.durable import replace_synced
from heedful.errors import ConfigError, DataError, UserError
from heedful.events import Events, TensorBoard
from heedful.memory import available_bytes
from heedful.train.checkpoints import Checkpoint, CheckpointStore
from heedful.train.compute_plan import Compiling, ComputePlan
from heedful.train.parallel.team import Dimensions, Process, Team
from heedful.train.run_config import (
    CONFIG_FILE,
    check_directory,
    locked,
    recorded,
    saved_tokenizers,
    with_choices_of_run,
    with_pinned_init,
    write_run,
)
from heedful.train.run_settings import RunSettings
from heedful.train.tasks import Task, prepare_task
from heedful.train.training_memory import check_size, likely_spec, with_budget

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")


@dataclass(frozen=True)
class Start:
    """Everything that training starts from.

    Args:
        settings: of the run, complete.
        task: its data, read and encoded.
        model: with its first weights.
        plan: of its products.
        store: of its checkpoints.
        checkpoint: that it goes on from; None on a process that is not the first.
        events: receive progress, and are kept in the directory.
        team: the processes, connected.
        resume: whether the run goes on.
    """

    settings: RunSettings
    task: Task
    model: nn.Module
    plan: ComputePlan
    store: CheckpointStore
    checkpoint: Checkpoint | None
    events: Events
    team: Team
    resume: bool


def device_of(settings: RunSettings, process: Process) -> torch.device:
    """The device of a process; each on a machine has a GPU of its own.

    Raises:
        ConfigError: when there are fewer GPUs than processes.
    """
    device = resolve_device(settings.device)
    if device.type != "cuda" or process.size == 1:
        return device
    named, there = str(device) != "cuda", torch.cuda.device_count()
    if named or process.local_size > there:
        shared = f"the device {device}" if named else f"{there} GPUs"
        raise ConfigError(
            f"{process.local_size} processes cannot share {shared}",
            where="device",
            remedy="Start a process for each GPU, with device = cuda",
        )
    torch.cuda.set_device(process.local_rank)
    return torch.device("cuda", process.local_rank)


def _lost_before(run_dir: Path, team: Team) -> bool:
    """Return whether all were started anew after one was lost, and there is a run to go on with."""
    return team.any(team.main and team.process.restarts > 0 and (run_dir / CONFIG_FILE).exists())


@contextmanager
def started(
    run_dir: Path, settings: RunSettings, *, resume: bool, events: Events
) -> Iterator[Start]:
    """A context of a run: its processes are connected, and the directory is held.

    Args:
        run_dir: the run directory; made when missing.
        settings: with which the run begins or is resumed.
        resume: go on from the newest whole checkpoint.
        events: receive progress and notes; of the first process alone.

    Raises:
        UserError: and its kinds, for everything a person can mend.
    """
    team = Team.of_run(settings)
    device = device_of(settings, team.process)
    events = events if team.main else Events()
    with ExitStack() as stack:
        stack.enter_context(team.joined(device))
        go_on = _lost_before(run_dir, team) or resume  # in this order: all of them ask

        def first() -> Start:
            stack.enter_context(locked(run_dir))
            start = _first(run_dir, settings, go_on, device, team, events)
            step = None if start.checkpoint is None else start.checkpoint.step
            tensorboard = start.settings.tensorboard
            kept = stack.enter_context(recorded(run_dir, events, step, tensorboard=tensorboard))
            return dataclasses.replace(start, events=kept)

        start = _in_turn(team, first, team.main)
        if not team.alone:
            start = _with_others(run_dir, start, device, team)
        assert start is not None
        yield start


def _first(
    run_dir: Path,
    settings: RunSettings,
    resume: bool,
    device: torch.device,
    team: Team,
    events: Events,
) -> Start:
    if resume:
        settings = with_choices_of_run(run_dir, settings)
    settings = with_pinned_init(run_dir, settings, resume=resume)
    settings = _with_parts(settings, team.dimensions, events, resume=resume)
    check_directory(run_dir, settings, resume=resume)
    if settings.tensorboard:
        TensorBoard.check()
    store = CheckpointStore(run_dir / "checkpoints", settings.checkpoint)
    checkpoint = store.newest(events) if resume else None
    check_size(settings, device)
    available = available_bytes(device)
    if device.type == "cpu":
        available //= team.process.local_size
    settings = with_budget(settings, device, events, available=available)
    tokenizers = saved_tokenizers(run_dir, settings) if resume else None
    task = prepare_task(run_dir, settings, tokenizers, events)
    if checkpoint is not None:
        checkpoint.check_data(task.fingerprint)
    model = task.new_model().to(device)
    if checkpoint is not None:
        plan = ComputePlan.stored(checkpoint.state)
    else:
        plan = ComputePlan.choose(settings, device, model, task.source.count(0))
    write_run(run_dir, settings, task.tokenizers)
    store.open()
    plan = _for_parts(plan, team.dimensions)
    return Start(settings, task, model, plan, store, checkpoint, events, team, resume)


def _with_parts(
    settings: RunSettings, dimensions: Dimensions, events: Events, *, resume: bool
) -> RunSettings:
    """The settings with a number of parts that leaves no process idle; unset, batches are whole.

    Where texts go on from batch to batch, each process has the same rows of every batch, as it
    remembers what came before them.
    """
    goes_on = settings.task == "causal_lm" and getattr(likely_spec(settings), "memory", None)
    batches, learners = 1 if goes_on else settings.optimizer.accumulate, dimensions.learners
    given = settings.parallel.parts
    if (given or 1) * batches % learners == 0:
        return settings
    needed = dimensions.parts_needed(batches)
    if resume or given is not None:
        given = given or 1
        events.warn(
            f"{given} part{'s' * (given > 1)} of {batches} batch{'es' * (batches > 1)} cannot be "
            f"shared by {learners} processes; batches are cut into {needed} from now on, which "
            "draw other dropout"
        )
    return settings.with_parts(needed)


def _for_parts(plan: ComputePlan, dimensions: Dimensions) -> ComputePlan:
    """The plan without what matrices in parts cannot have: kernels of our own, and graphs."""
    if dimensions.tensor > 1:
        plan = dataclasses.replace(plan, precision=dataclasses.replace(plan.precision, own=False))
    if not dimensions.only_copies:
        why = Compiling(False, "its parameters lie in parts")
        plan = dataclasses.replace(plan, compiling=why)
    return plan


def _with_others(run_dir: Path, start: Start | None, device: torch.device, team: Team) -> Start:
    """The start of each process, from that of the first."""
    said = {}
    if start is not None:
        tokenizers = start.task.tokenizers
        said = {
            "settings": start.settings.plain(),
            "plan": start.plan.plain(),
            "tokenizers": None if tokenizers is None else tokenizers.files(),
        }
    said = json.loads(team.shared_text(json.dumps(said)))
    settings = RunSettings.parse(said["settings"], where="the first process")
    plan = ComputePlan.stored(said["plan"])
    leads = not team.main and team.process.local_rank == 0

    def prepare() -> Task | None:
        if team.main:
            return None
        if leads and said["tokenizers"] is not None:
            _write_tokenizers(run_dir / "tokenizer", said["tokenizers"])
        tokenizers = saved_tokenizers(run_dir, settings)
        return prepare_task(run_dir, settings, tokenizers, Events())

    task = start.task if start is not None else None
    task = _in_turn(team, prepare, leads) or task
    task = _in_turn(team, prepare, not leads and not team.main) or task
    assert task is not None
    if len(set(team.texts(task.fingerprint))) > 1:
        raise DataError(
            "The training files, their weights or the tokenizer are not the same on all machines",
            where=str(run_dir),
            remedy="Copy the files of the first machine to the others",
        )
    if start is not None:
        return start
    store = CheckpointStore(run_dir / "checkpoints", settings.checkpoint)
    model = task.new_model().to(device)
    return Start(settings, task, model, plan, store, None, Events(), team, True)


def _in_turn(team: Team, prepare: Callable[[], T | None], mine: bool) -> T | None:
    """Prepare if it is this process's turn, and wait for those whose turn it is."""
    prepared, failure = None, None
    if mine:
        try:
            prepared = prepare()
        except UserError as error:
            failure = error
    team.check(failure, patient=True)
    return prepared


def _write_tokenizers(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / name
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            replace_synced(path, content.encode())
