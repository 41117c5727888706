from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heedful.errors import RunError, UserError
from heedful.events import Events, Recorder, Warning
from heedful.train import checkpoint_contents, checkpoints
from heedful.train.checkpoint_contents import (
    ShardedTensors,
    StoredTensors,
    TensorPiece,
    WholeTensors,
)
from heedful.train.checkpoints import CheckpointStore, whole_models
from heedful.train.run_settings import CheckpointSettings

SILENT = Events()


def save(store: CheckpointStore, step: int, *, regular: bool = True) -> Path:
    model = {"w": torch.full((3,), float(step))}
    training = {"exp_avg/w": torch.full((3,), -float(step))}
    return store.save(step, WholeTensors(model, training), {"regular": regular, "note": "ü"})


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", CheckpointSettings(average_count=4))
    store.open()
    return store


def test_round_trip(store: CheckpointStore) -> None:
    save(store, 7)
    found = store.newest(SILENT)
    assert found is not None
    assert found.step == 7
    assert found.state["note"] == "ü"
    assert found.path.name == "step-00000007"
    assert found.model()["w"].tolist() == [7, 7, 7]
    assert found.training()["exp_avg/w"].tolist() == [-7, -7, -7]


def test_no_checkpoint_at_all(store: CheckpointStore) -> None:
    assert store.newest(SILENT) is None


def test_keeps_two_whole_slims_the_window_and_deletes_the_rest(store: CheckpointStore) -> None:
    for step in range(1, 8):
        save(store, step, regular=step != 3)
    listed = {c.step: c.resumable for c in store.all()}
    assert listed == {4: False, 5: False, 6: True, 7: True}
    slim = store.directory / "step-00000004"
    assert {p.name for p in slim.iterdir()} == {"model.safetensors", "state.json"}
    assert [c.step for c in whole_models(store.window(), SILENT)] == [4, 5, 6, 7]


def test_irregular_checkpoints_are_not_averaged(store: CheckpointStore) -> None:
    """One made by SIGTERM would make the average depend on when that came."""
    for step in (1, 2, 3):
        save(store, step, regular=step != 3)
    assert [c.step for c in store.window()] == [1, 2]
    assert store.newest(SILENT).step == 3  # type: ignore[union-attr]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_damage_is_detected_and_the_one_before_used(
    store: CheckpointStore, name: str, damage: Callable[[Path], None]
) -> None:
    save(store, 1)
    newest = save(store, 2)
    if name == "state.json" and damage is flip:
        (newest / name).write_text("[]")
    else:
        damage(newest / name)
    recorder = Recorder()
    found = store.newest(Events([recorder]))
    assert found is not None
    assert found.step == 1
    (warning,) = recorder.texts(Warning)
    assert "step-00000002" in warning
    assert name in warning
    save(store, 2)
    assert store.newest(SILENT).step == 2  # type: ignore[union-attr]


def test_none_good_is_an_error(store: CheckpointStore) -> None:
    for step in (1, 2):
        cut(save(store, step) / "model.safetensors")
    with pytest.raises(RunError, match="None of the checkpoints"):
        store.newest(SILENT)


def test_newer_schema_is_an_error(store: CheckpointStore) -> None:
    path = save(store, 1) / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"schema_version": 99}))
    with pytest.raises(RunError, match="99"):
        store.newest(SILENT)


def test_stray_directories_and_files_are_removed(store: CheckpointStore) -> None:
    for step in range(1, 5):
        save(store, step)
    stray = store.directory / ".temporary-write-step-00000009"
    stray.mkdir()
    (stray / "model.safetensors").write_bytes(b"half")
    left = store.directory / "step-00000001" / "training.safetensors"
    left.write_bytes(b"a kill came between the two steps of slimming")
    store.open()
    assert not stray.exists()
    assert not left.exists()


@pytest.mark.parametrize("moment", range(3))
def test_full_disk_leaves_earlier_checkpoints_whole(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    save(store, 1)
    calls = iter(range(9))

    def write(path: Path, content: bytes) -> None:
        if next(calls) == moment:
            path.write_bytes(content[:3])
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(content)

    for module in (checkpoint_contents, checkpoints):
        monkeypatch.setattr(module, "write_synced", write)
    with pytest.raises(RunError, match="disk is full") as caught:
        save(store, 2)
    assert caught.value.exit_status == 1
    assert [p.name for p in store.directory.iterdir()] == ["step-00000001"]
    assert store.newest(SILENT).step == 1  # type: ignore[union-attr]


def test_unwritable_directory_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        CheckpointStore(tmp_path / "file" / "checkpoints", CheckpointSettings()).open()
    assert caught.value.exit_status == 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_pytorch_reads_files_of_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in several boxes and files, with a scalar beside them."""
    monkeypatch.setattr(checkpoint_contents, "gathered_texts", lambda text, group: [text])
    monkeypatch.setattr(checkpoint_contents, "_FILE_BYTES", 40)
    table, scalar = torch.randn(5, 3), torch.tensor(2.0)
    rows = [
        TensorPiece(table[start:stop].clone(), (start, 0), (5, 3))
        for start, stop in ((3, 5), (0, 1), (1, 3))
    ]
    contents = ShardedTensors({"table": rows, "scalar": [TensorPiece(scalar, (), ())]}, {}, 0, None)  # type: ignore[arg-type]
    files = contents.write(tmp_path)
    assert files is not None
    assert len(files) == 3
    ours = StoredTensors(tmp_path / "model").read_all()
    theirs = {"table": torch.zeros(5, 3), "scalar": torch.zeros(())}
    storage = pytest.importorskip("torch.distributed.checkpoint.hf_storage")
    reader = storage.HuggingFaceStorageReader(str(tmp_path / "model"))
    torch.distributed.checkpoint.load(theirs, storage_reader=reader, no_dist=True)
    for tensors in (ours, theirs):
        assert torch.equal(tensors["table"], table)
        assert torch.equal(tensors["scalar"], scalar)
