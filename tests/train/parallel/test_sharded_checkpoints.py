"""Checkpoints of which every process writes its part: whole, read by any plan, or not there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heedful.config import merge
from heedful.errors import ConfigError
from heedful.events import Events
from heedful.train.checkpoints import CheckpointStore, verify
from heedful.train.parallel.dimensions import Dimensions
from heedful.train.run_settings import CheckpointSettings, RunSettings

from ...process_group import free_port
from .test_several_processes import check_alike, command, corpus, environment, train

__all__ = ["corpus"]  # a fixture

SHARDS = ("--processes", "2", "--parallel.shard", "2", "--checkpoint.sharded", "true")
MORE = ("--parallel.parts", "2", "--checkpoint.ema-decay", "0.9")


def started(words: list[str], rank: int, size: int, port: int) -> subprocess.Popen[str]:
    """A process that torchrun would start, as if each were on a machine of its own."""
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    variables = {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return subprocess.Popen(
        words,
        env={**environment(), **{name: str(value) for name, value in variables.items()}},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_known_tensors_under_every_plan(tmp_path: Path) -> None:
    """Written and read by four processes; then one has no space, and then is killed."""
    folder, port = tmp_path / "checkpoints", free_port()
    program = [sys.executable, str(Path(__file__).with_name("in_pieces.py")), str(folder)]
    processes = [started(program, rank, 4, port) for rank in range(4)]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, -9, 0, 0], "".join(said)
    assert list(folder.glob(".temporary-write-step-00000101"))
    store = CheckpointStore(folder, CheckpointSettings())
    store.open()
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000003", "step-00000004"]
    newest = store.newest(Events())
    assert newest is not None
    assert newest.step == 4


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process that nothing happened to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(corpus, run, *MORE)
    return run


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_two_shards_then_one_process(corpus: Path, whole: Path, tmp_path: Path) -> None:
    """It goes on from the checkpoint before one of which a process's file is damaged."""
    run = tmp_path / "run"
    train(corpus, run, *MORE, *SHARDS, "--checkpoint.background", "true", steps=8)
    store = CheckpointStore(run / "checkpoints", CheckpointSettings())
    checkpoints = store.all()
    assert [(each.step, each.sharded) for each in checkpoints] == [(4, True), (8, True)]
    files = [path for path in checkpoints[-1].path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}  # no pickle
    (damaged,) = checkpoints[-1].model_folder.glob("shard-00002-*")
    damage(damaged)
    alone = ("--parallel.shard", "1", "--checkpoint.sharded", "false")
    said = train(corpus, run, *MORE, "--resume", *alone)
    assert f"the content of model/{damaged.name} has changed" in said
    assert "Resumed from step 4" in said
    check_alike(run, whole)
    assert "average of 3 checkpoints" in said  # of which the first is in pieces


def test_one_process_then_two_shards(corpus: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    damage(run / "checkpoints" / "step-00000012" / "training.safetensors")
    assert "Resumed from step 8" in train(corpus, run, *MORE, "--resume", *SHARDS)
    check_alike(run, whole)
    store = CheckpointStore(run / "checkpoints", CheckpointSettings())
    assert [each.sharded for each in store.all()] == [False, False, True]


def test_files_of_others_are_damage(tmp_path: Path, corpus: Path) -> None:
    """A reader of a folder would take them for its own."""
    folder = tmp_path / "step-00000001" / "model"
    folder.mkdir(parents=True)
    (folder / "shard-00009-00001.safetensors").write_bytes(b"")
    (folder.parent / "state.json").write_text(
        '{"schema_version": 2, "step": 1, "resumable": true, "files": {}}'
    )
    (checkpoint,) = CheckpointStore(tmp_path, CheckpointSettings()).all()
    with pytest.raises(ValueError, match=r"shard-00009-00001\.safetensors is not of"):
        verify(checkpoint)


def test_a_folder_that_is_not_shared(corpus: Path, tmp_path: Path) -> None:
    port = free_port()
    shards = ("--parallel.shard", "2", "--checkpoint.sharded", "true")
    runs = [tmp_path / "first", tmp_path / "second"]
    processes = [
        started(command(corpus, run, *shards), rank, 2, port) for rank, run in enumerate(runs)
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert all(process.returncode for process in processes)
    assert "does not see the checkpoints that the first process writes" in said[1]
    assert str(runs[1] / "checkpoints") in said[1]
    assert "leave out --checkpoint.sharded" in said[1]
    assert "Traceback" not in "".join(said)


@pytest.mark.parametrize("plan", [{}, {"data": 2}, {"context": 2}])
def test_whole_models_have_no_parts(plan: dict[str, int]) -> None:
    base = {"data": {"train": [{"source": "a", "target": "b"}]}, "checkpoint": {"sharded": True}}
    settings = RunSettings.parse(merge(base, {"parallel": plan}))
    with pytest.raises(ConfigError, match="no parts for each to write") as failure:
        Dimensions(**plan).check(settings)
    assert "--parallel.shard 2" in str(failure.value)
