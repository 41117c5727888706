"""A program of four processes: known tensors of a model, written and read under every plan.

    python in_pieces.py FOLDER    with RANK and so on as torchrun sets them

Each plan reads what the one before it wrote. What is known is made of random numbers here, whole,
and compared bit for bit. At last the second process has no space, and then is killed, while it
writes.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from heedful.config import merge
from heedful.errors import RunError
from heedful.events import Events
from heedful.models.build import build_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.train import checkpoint_contents
from heedful.train.checkpoints import CheckpointStore
from heedful.train.model_weights import load_weights, weights_of
from heedful.train.parallel.distribution import distribute
from heedful.train.parallel.team import Dimensions, Process, Team
from heedful.train.run_settings import RunSettings
from heedful.train.training_state import SavedTensors

PLANS: tuple[dict[str, int], ...] = (
    {"shard": 4},
    {"data": 2, "shard": 2},
    {"shard": 2, "tensor": 2},
    {"data": 2, "tensor": 2},
    {"data": 2, "shard": 2},
)


def new_model() -> torch.nn.Module:
    """Rows that four do not divide, and fewer than four."""
    shape = TranslatorShape(
        width=16, encoder_layers=1, decoder_layers=1, num_heads=4, feedforward=22
    )
    torch.manual_seed(0)
    return build_model(translator_spec(shape, 37, 37))


def known(model: torch.nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights, and moments with numbers among them, of which the last weight has none."""
    torch.manual_seed(1)
    weights = {name: torch.randn(each.shape) for name, each in weights_of(model).items()}
    names = list(dict(model.named_parameters()))[:-1]
    training = {f"{kind}/{n}": torch.randn(weights[n].shape) for kind in "ab" for n in names}
    return weights, training | {f"step/{name}": torch.tensor(3.0) for name in names}


def check_same(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert ours.keys() == expected.keys(), ours.keys() ^ expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor), name
        assert ours[name].dtype == tensor.dtype, name


def save(
    number: int, saved: SavedTensors, weights: dict[str, Tensor], others: dict[str, Tensor]
) -> None:
    """Write a checkpoint in which processes hand on different numbers of rows, one of them none."""
    rank = saved.team.process.rank
    carried = {} if rank == 1 else {"seen": torch.full((rank + 1, 2), rank)}
    contents = saved.contents(weights, others, carried)
    assert contents is not None
    saved.store.save(number, contents, {})


def try_plan(number: int, plan: dict[str, int], folder: Path) -> SavedTensors:
    """Read what the plan before this one wrote, then write under this one."""
    process = Process.here()
    base = {"data": {"train": [{"source": "a", "target": "b"}]}, "checkpoint": {"sharded": True}}
    settings = RunSettings.parse(merge(base, {"parallel": {**plan, "parts": 4}}))
    team = Team(process, dimensions=Dimensions.fit(settings.parallel, process.size))
    model = new_model()
    weights, training = known(model)
    distribution, _ = distribute(model, None, settings, team, new_model)  # type: ignore[arg-type]
    saved = SavedTensors(distribution, team, CheckpointStore(folder, settings.checkpoint))
    of_all = torch.cat([torch.full((rank + 1, 2), rank) for rank in (0, 2, 3)])
    whole, local_part = distribution.full_tensors, distribution.local_part
    if number:
        if number == len(PLANS) - 1 and process.rank == 1:  # as on a machine with other folders
            saved.store.directory = folder / "elsewhere"
        _, read, others = saved.read(saved.store.newest(Events()) if team.main else None)
        saved.store.directory = folder
        assert torch.equal(others.pop("carried/seen"), of_all)
        read, others = whole(read), whole(others)
        if team.main:
            check_same(read, weights)
            check_same(others, training)
    load_weights(model, {name: local_part(name, each) for name, each in weights.items()})
    others = {name: local_part(name, each) for name, each in training.items()}
    save(number, saved, weights_of(model), others)
    if team.main:
        written = saved.store.newest(Events())
        assert written is not None
        assert written.step == number
        check_same(written.model(), weights)
        check_same(written.training(), {**training, "carried/seen": of_all})
    return saved


def fill_the_disk(path: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def be_killed(path: Path, content: bytes) -> None:
    path.write_bytes(content[:100])
    os.kill(os.getpid(), signal.SIGKILL)


def fail(saved: SavedTensors) -> None:
    """Write two checkpoints that cannot be finished: one process has no space, then is killed."""
    weights = weights_of(saved.distribution.model)
    second = saved.team.process.rank == 1
    if second:
        checkpoint_contents.write_synced = fill_the_disk
    said = "The disk is full; earlier" if saved.team.main else "Another process of this run"
    with pytest.raises(RunError, match=said):
        save(100, saved, weights, {})
    dist.barrier()
    assert not list(saved.store.directory.glob(".temporary-*"))
    if second:
        checkpoint_contents.write_synced = be_killed
    with pytest.raises(RuntimeError, match=r"gloo|closed"):
        save(101, saved, weights, {})


def main() -> None:
    folder = Path(sys.argv[1])
    if Process.here().rank == 0:
        folder.mkdir()
    with Team(Process.here()).joined(torch.device("cpu")):
        for number, plan in enumerate(PLANS):
            saved = try_plan(number, plan, folder)
        fail(saved)
        os._exit(0)  # one of the processes is gone, and PyTorch would wait for it


if __name__ == "__main__":
    main()
