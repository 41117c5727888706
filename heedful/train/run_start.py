"""The beginning of a run: its directory, data, model and plan, on one process or several.

The first process does everything that writes: it locks the directory, trains the tokenizer, encodes
the data and makes all choices, which it sends to the others. On every other machine one process
encodes the data for all processes there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from heedful.device import resolve_device
from heedful.errors import ConfigError, DataError, UserError
from heedful.events import Events
from heedful.memory import available_bytes
from heedful.train.checkpoints import Checkpoint, CheckpointStore
from heedful.train.compute_plan import Compiling, ComputePlan
from heedful.train.parallel.dimensions import Dimensions
from heedful.train.parallel.team import Process, Team
from heedful.train.run_config import (
    CONFIG_FILE,
    check_directory,
    locked,
    recorded,
    saved_tokenizers,
    with_choices_of_run,
    with_pinned_init,
    write_run,
    write_tokenizers,
)
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task
from heedful.train.training_memory import check_size, likely_spec, with_budget

T = TypeVar("T")


@dataclass(frozen=True)
class Start:
    """Everything that training starts from.

    Args:
        settings: settings of the run, with all choices made.
        task: task with its data, read and encoded.
        model: model with its initial weights.
        plan: compute plan of the run.
        store: store of the run's checkpoints.
        checkpoint: checkpoint to resume from; None in a new run, and on all but the first process.
        events: receivers of progress, files of the directory among them.
        team: connected processes of the run.
        resume: true if the run continues an earlier one.
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
    """Return the device of a process; every process of a machine has its own GPU.

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
    # NCCL's collectives use the current device.
    torch.cuda.set_device(process.local_rank)
    return torch.device("cuda", process.local_rank)


@contextmanager
def start_run(
    run_dir: Path, settings: RunSettings, *, resume: bool, events: Events
) -> Iterator[Start]:
    """A context in which the run's processes are connected and its directory is locked.

    Args:
        run_dir: run directory; made when missing.
        settings: settings of the new or resumed run.
        resume: continuation from the newest whole checkpoint.
        events: receivers of progress and notes; used by the first process alone.

    Raises:
        UserError: for everything that a user can fix (it or a subclass).
    """
    team = Team.of_run(settings)
    device = device_of(settings, team.process)
    events = events if team.main else Events()
    with ExitStack() as stack:
        stack.enter_context(team.joined(device))
        # After a loss the launcher restarts all processes, which then resume without being told.
        restarted = team.process.restarts > 0 and (run_dir / CONFIG_FILE).exists()
        # The order matters: `any` is a collective, which `resume or …` would skip.
        go_on = team.any(team.main and restarted) or resume

        def first() -> Start:
            stack.enter_context(locked(run_dir))
            start = _start_first(run_dir, settings, go_on, device, team, events)
            step = None if start.checkpoint is None else start.checkpoint.step
            kept = stack.enter_context(recorded(run_dir, events, step, start.settings))
            return dataclasses.replace(start, events=kept)

        start = _in_turn(team, first, team.main)
        if not team.alone:
            start = _start_others(run_dir, start, device, team)
        assert start is not None
        yield start


def _start_first(
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
    # Checked before any work, so that a mistake in a setting is reported within a second.
    check_directory(run_dir, settings, resume=resume)
    store = CheckpointStore(run_dir / "checkpoints", settings.checkpoint)
    # Read before the data, as a damaged checkpoint makes encoding pointless.
    checkpoint = store.newest(events) if resume else None
    check_size(settings, device)
    available = available_bytes(device)
    # Processes of a machine share its memory; each GPU has its own.
    if device.type == "cpu":
        available //= team.process.local_size
    settings = with_budget(settings, device, events, available=available)
    tokenizers = saved_tokenizers(run_dir, settings) if resume else None
    # Prepared once the budget is known, as batches are planned for it.
    task = prepare_task(run_dir, settings, tokenizers, events)
    if checkpoint is not None:
        checkpoint.check_data(task.fingerprint)
    model = task.new_model().to(device)
    # A resumed run keeps kernels, precision and compilation, as others would round differently.
    if checkpoint is not None:
        plan = ComputePlan.stored(checkpoint.state)
    else:
        plan = ComputePlan.choose(settings, device, model, task.source.count(0))
    # The directory becomes a run now, after all checks.
    write_run(run_dir, settings, task.tokenizers)
    store.open()
    # Changed after `write_run`, as a run may be resumed with other dimensions and another plan.
    plan = _for_parts(plan, team.dimensions)
    return Start(settings, task, model, plan, store, checkpoint, events, team, resume)


def _with_parts(
    settings: RunSettings, dimensions: Dimensions, events: Events, *, resume: bool
) -> RunSettings:
    """Return settings whose number of parts leaves no process idle; whole batches if they suffice.

    With a memory of earlier segments each process has the same rows of every batch, as it keeps
    their memory.
    """
    # If processes took whole batches in turn, each would miss the segments in between.
    goes_on = settings.cuts_windows and getattr(likely_spec(settings), "memory", None)
    batches, learners = 1 if goes_on else settings.optimizer.accumulate, dimensions.learners
    given = settings.parallel.parts
    if (given or 1) * batches % learners == 0:
        return settings
    needed = dimensions.parts_needed(batches)
    # A new run without `parts` has no numbers to deviate from, so nothing is reported.
    if resume or given is not None:
        given = given or 1
        events.warn(
            f"{given} part{'s' * (given > 1)} of {batches} batch{'es' * (batches > 1)} cannot be "
            f"shared by {learners} processes; batches are cut into {needed} from now on, which "
            "draw other dropout"
        )
    return settings.with_parts(needed)


def _for_parts(plan: ComputePlan, dimensions: Dimensions) -> ComputePlan:
    """Remove Heedful's kernels and compilation from a plan if parameters are sharded or split."""
    # Our kernels read plain memory; the matmuls of DTensors need PyTorch's operations.
    if dimensions.tensor > 1:
        plan = dataclasses.replace(plan, precision=dataclasses.replace(plan.precision, own=False))
    if not dimensions.only_copies:
        why = Compiling(False, "its parameters lie in parts")
        plan = dataclasses.replace(plan, compiling=why)
    return plan


def _start_others(run_dir: Path, start: Start | None, device: torch.device, team: Team) -> Start:
    """Return the start of each process, made from that of the first process."""
    message = {}
    if start is not None:
        tokenizers = start.task.tokenizers
        message = {
            "settings": start.settings.plain(),
            "plan": start.plan.plain(),
            "tokenizers": None if tokenizers is None else tokenizers.files(),
        }
    message = json.loads(team.shared_text(json.dumps(message)))
    settings = RunSettings.parse(message["settings"], where="the first process")
    plan = ComputePlan.stored(message["plan"])
    # True for the first process of another machine, whose folder may not be shared.
    leads = not team.main and team.process.local_rank == 0

    def prepare() -> Task | None:
        if team.main:
            return None
        if leads and message["tokenizers"] is not None:
            write_tokenizers(run_dir, message["tokenizers"])
        tokenizers = saved_tokenizers(run_dir, settings)
        return prepare_task(run_dir, settings, tokenizers, Events())

    task = start.task if start is not None else None
    # One process per machine encodes; the others then find its files in the cache.
    task = _in_turn(team, prepare, leads) or task
    task = _in_turn(team, prepare, not leads and not team.main) or task
    assert task is not None
    # Different data would train without an error, on a sum of gradients of different corpora.
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
    """Call `prepare` if it is this process's turn, then wait until all processes are done."""
    prepared, failure = None, None
    if mine:
        try:
            prepared = prepare()
        except UserError as error:
            failure = error
    # Encoding a large corpus may take longer than the timeout of ordinary waits.
    team.check(failure, patient=True)
    return prepared
