"""The first process shows those that wait that its work goes on, batch by batch of a validation."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing
from torch.distributed.distributed_c10d import _world

from heedful.device import Precision
from heedful.errors import RunError
from heedful.events import Events
from heedful.train.parallel.distribution import distribute
from heedful.train.parallel.team import ElsewhereFailed, LostProcesses, Process, Team, limit_group
from heedful.train.run_config import resolve_settings
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task

from ...process_group import free_port


def wait_as(rank: int, address: str, folder: str, steps: int, pause: float, shows: bool) -> None:
    """One of two processes, of which the first works; write how it ended."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=address, RANK=str(rank), WORLD_SIZE="2")
    team = Team(Process(rank, 2))

    def work() -> None:
        for _ in range(steps):
            time.sleep(pause)
            if shows:
                team.show_progress()
        if not steps:
            raise RunError("the disk is full")

    ended = "well"
    try:
        with team.joined(torch.device("cpu")):
            team.timeout = 3.0  # from here on: until they meet, a busy machine may take longer
            limit_group(team.timeout)
            busy = time.process_time()
            try:
                team.only_main(work)
            finally:
                busy = time.process_time() - busy
    except (RunError, LostProcesses, ElsewhereFailed) as error:
        ended = f"{type(error).__name__}: {error}"
    Path(folder, str(rank)).write_text(f"{busy:.3f} {ended}")
    os._exit(0)  # threads of gloo that wait for a lost process would abort it


@pytest.mark.parametrize(
    ("steps", "shows", "ends"),
    [
        (10, True, ("well", "well")),
        (10, False, ("LostProcesses: Process 0", "LostProcesses: Process 1 of 2 lost the first")),
        (0, True, ("RunError: the disk is full", "ElsewhereFailed: ")),
    ],
    ids=["progress", "no progress", "failure"],
)
def test_work_of_the_first_process(
    tmp_path: Path, steps: int, shows: bool, ends: tuple[str, str]
) -> None:
    """Work may last longer than the timeout as long as each step of it does not."""
    arguments = (str(free_port()), str(tmp_path), steps, 0.5, shows)
    torch.multiprocessing.spawn(wait_as, arguments, nprocs=2)
    for rank, expected in enumerate(ends):
        busy, _, ended = (tmp_path / str(rank)).read_text().partition(" ")
        assert ended.startswith(expected)
        assert float(busy) < 0.5  # of 5 seconds: those that wait sleep


WORDS = ("sun", "rain", "wind", "snow")
SENTENCES = [" ".join(WORDS[: 1 + number % 4]) for number in range(12)]
ROWS: dict[str, list[dict[str, Any]]] = {
    "translation": [{"source": text, "target": text.upper()} for text in SENTENCES],
    "classify": [{"text": text, "label": text[-1]} for text in SENTENCES],
    "tag": [{"tokens": text.split(), "tags": [*text.split()]} for text in SENTENCES],
    "answer": [
        {"question": "sun", "context": text, "answers": [{"text": "sun", "start": 0}]}
        for text in SENTENCES
    ],
}


def prepared(folder: Path, task: str, **changes: Any) -> tuple[RunSettings, Task]:
    """A tiny run of a task."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[task]))
    values: dict[str, Any] = {
        "task": task,
        "model": {"width": 16, "encoder_layers": 1, "num_heads": 2, "feedforward": 32},
        "tokenizer": {"vocabulary_size": 50},
        "data": {kind: [{"file": str(path)}] for kind in ("train", "valid")},
    }
    values["data"] |= {"max_length": 24, "batch_tokens": 48}
    settings = resolve_settings(None, None, values | changes)
    return settings, prepare_task(folder / "run", settings, None, Events())


@pytest.mark.parametrize("task", ROWS)
def test_each_batch_of_a_validation_is_a_sign(tmp_path: Path, task: str) -> None:
    """Of its loss, and of the metrics too, which take longer."""
    settings, of = prepared(tmp_path, task)
    signs: list[bool] = []
    validator = of.validator(settings, Precision("fp32", "cpu"), lambda: signs.append(True))
    assert validator is not None
    validator(of.new_model().eval())
    of_loss = len(list(validator.batches))
    assert len(signs) > of_loss > 1


def connect(rank: int, address: str, folder: Path) -> None:
    """One of four processes: two halves of each matrix, in two shards; write how long they wait."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=address, RANK=str(rank), WORLD_SIZE="4")
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="4")
    own = folder / str(rank)
    own.mkdir()
    parallel = {"shard": 2, "tensor": 2, "timeout": 77.0}
    settings, of = prepared(own, "translation", parallel=parallel)
    team = Team.of_run(settings)
    with team.joined(torch.device("cpu")):
        distribute(of.new_model(), of.objective, settings, team, of.new_model)
        backends = [each._get_backend(torch.device("cpu")) for each in _world.pg_map]
        waits = [each.options._timeout.total_seconds() for each in backends]
        (own / "waits").write_text(json.dumps(waits))
    os._exit(0)


def test_every_group_of_processes_waits_as_long(tmp_path: Path) -> None:
    """But the one for reading data, which shows no progress."""
    torch.multiprocessing.spawn(connect, (str(free_port()), tmp_path), nprocs=4)
    waits = json.loads((tmp_path / "0" / "waits").read_text())
    assert len(waits) > 4
    assert sorted(set(waits)) == [77, 7200]
    assert waits.count(7200) == 1
