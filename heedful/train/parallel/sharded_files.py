"""Tensors in pieces, written by the processes that keep them into one folder, and read in pieces.

`torch.distributed.checkpoint` (DCP) plans who writes what and who reads which rows of which file.
The files are safetensors that say in their headers where each piece begins, as PyTorch's
`HuggingFaceStorageReader` reads them. DCP's own index is a pickle; here is none, and none is read.
Plans and results travel between the processes of a run as PyTorch sends objects.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from heedful.durable import sync, write_synced
from heedful.errors import RunError, UserError
from heedful.train.parallel.pieces import (
    MODEL_FOLDER,
    TRAINING_FOLDER,
    Pieces,
    TensorPiece,
    pieces_of,
)
from heedful.train.parallel.team import ElsewhereFailed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from heedful.train.parallel.team import Team

_FILE_BYTES = 128 * 2**20
"""After which a process begins another file: writing takes two copies of one, not of all."""

_NOTICE_SECONDS = 60.0
"""In which a folder that another machine made has to be seen: its names may be cached (NFS: 30)."""


@dataclass(frozen=True)
class ShardedTensors:
    """The tensors of a checkpoint of which each process writes its pieces.

    Args:
        model: weights by parameter name.
        training: everything else that is a tensor.
        group: all processes, for this alone: a thread may wait in it while training goes on.
    """

    model: Pieces
    training: Pieces
    group: ProcessGroup

    waits_for_others = True

    def copied(self) -> ShardedTensors:
        """The same with copies of what this process keeps."""
        return ShardedTensors(_copied(self.model), _copied(self.training), self.group)

    def write(self, folder: Path) -> dict[str, Any] | None:
        """Write the pieces of this process, and wait until all have theirs on the disk.

        Args:
            folder: that all processes see.

        Returns:
            On the first process size and SHA-256 of every file, by its path; None on the others.

        Raises:
            OSError: that a process had; on all but the first `ElsewhereFailed` instead.
        """
        try:
            return self._write(folder)
        except OSError as error:
            if dist.get_rank() != 0:
                raise ElsewhereFailed from error
            raise

    def _write(self, folder: Path) -> dict[str, Any] | None:
        files: dict[str, Any] = {}
        for name, tensors in ((MODEL_FOLDER, self.model), (TRAINING_FOLDER, self.training)):
            writer = _Writer(folder / name)
            with _told_plainly():
                save(
                    dict(tensors),
                    storage_writer=writer,
                    planner=_Saving(),
                    process_group=self.group,
                )
            files |= {f"{name}/{file}": facts for file, facts in writer.files.items()}
        if dist.get_rank() != 0:
            return None
        for name in (MODEL_FOLDER, TRAINING_FOLDER):
            sync(folder / name)
        return files


class StoredTensors:
    """The tensors in the safetensors files of a folder, whole or in pieces.

    Args:
        folder: with files of any number of processes, or of one.

    Attributes:
        described: size and type of each tensor, by name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        described = self._reader().read_metadata().state_dict_metadata
        self.described: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            name: (tuple(each.size), each.properties.dtype)
            for name, each in described.items()
            if isinstance(each, TensorStorageMetadata)
        }

    def read(self, pieces: Pieces) -> None:
        """Read the content of pieces, and nothing else, into their tensors.

        Raises:
            RunError: when there is no tensor of that name and size, or it cannot be read.
        """
        for name, some in pieces.items():
            size = self.described.get(name, (None,))[0]
            if any(piece.size != size for piece in some):
                raise RunError(
                    f"The tensor {name!r} of the checkpoint does not fit the model",
                    where=str(self.folder),
                )
        try:
            with _told_plainly(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                load(dict(pieces), storage_reader=self._reader(), planner=_Loading(), no_dist=True)
        except OSError as error:
            raise RunError(
                f"The checkpoint cannot be read: {error.strerror or error}", where=str(self.folder)
            ) from error

    def whole(self) -> dict[str, Tensor]:
        """All tensors, put together."""
        tensors = {
            name: torch.empty(size, dtype=dtype) for name, (size, dtype) in self.described.items()
        }
        self.read({name: pieces_of(tensor) for name, tensor in tensors.items()})
        return tensors

    def _reader(self) -> HuggingFaceStorageReader:
        return HuggingFaceStorageReader(str(self.folder))


def connect(seconds: float) -> ProcessGroup:
    """A group of all processes to write in; they call this together.

    Args:
        seconds: that one may write longer than the others.
    """
    group: ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    return group


def check_shared(folder: Path, team: Team) -> None:
    """Refuse a folder that is not the same on all machines.

    Args:
        folder: where checkpoints go; the first process has made it.
        team: the processes.

    Raises:
        UserError: naming the machine that does not see what the first process writes.
    """
    made = folder / f".temporary-{team.shared_text(uuid.uuid4().hex)}"
    team.only_main(made.mkdir)
    deadline = time.monotonic() + _NOTICE_SECONDS
    while not made.is_dir() and folder.is_dir() and time.monotonic() < deadline:
        time.sleep(0.5)
    failure = None
    if not made.is_dir():
        failure = UserError(
            f"{socket.gethostname()} (process {team.process.rank}) does not see the checkpoints "
            "that the first process writes, and each process has to write its own part there",
            where=str(folder),
            remedy="Take a run directory on a file system that all machines share, or leave out "
            "--checkpoint.sharded",
        )
    team.check(failure)
    team.only_main(made.rmdir)


class _Saving(DefaultSavePlanner):
    """Plans to write each piece once: of copies that of the first process.

    The first, as elsewhere: what it has is what a checkpoint holds.
    """

    state_dict: Pieces  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(
            flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=True
        )

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan(
            [
                WriteItem(
                    MetadataIndex(name, piece.offsets),
                    WriteItemType.SHARD,
                    tensor_data=TensorWriteData(
                        _box(piece),
                        TensorProperties.create_from_tensor(piece.tensor),
                        torch.Size(piece.size),
                    ),
                )
                for name, some in self.state_dict.items()
                for piece in some
            ]
        )
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return _piece_at(self.state_dict, index)


class _Loading(DefaultLoadPlanner):
    """Plans to read what pieces need from whatever pieces were written."""

    state_dict: Pieces  # type: ignore[assignment]

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict, self.metadata = state_dict, metadata

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for name, some in self.state_dict.items():
            stored = self.metadata.state_dict_metadata[name]
            assert isinstance(stored, TensorStorageMetadata)
            items += create_read_items_for_chunk_list(name, stored, [_box(each) for each in some])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return _piece_at(self.state_dict, index)


class _Writer(HuggingFaceStorageWriter):
    """Writes the pieces of this process into files of moderate size.

    PyTorch's own makes one file of all, for which it holds two copies of it in memory, and has one
    piece of a tensor in a file.

    Args:
        folder: made if missing.

    Attributes:
        files: once all is written, on the first process: size and SHA-256 of every file.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        for number, items in enumerate(_by_file(plan.items), 1):
            name = f"shard-{plan.storage_data['shard_index']:05d}-{number:05d}.safetensors"
            facts = {"file": name, **self._write(name, items, planner)}
            results += [
                WriteResult(item.index, item.tensor_storage_size() or 0, facts) for item in items
            ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _write(self, name: str, items: list[WriteItem], planner: SavePlanner) -> dict[str, Any]:
        tensors, begins = {}, {}
        for item in items:
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)
            tensors[item.index.fqn] = tensor.cpu().contiguous()
            begins[item.index.fqn] = {"saved_offsets": list(item.index.offset or ())}
        header = {"DCP_SHARDING_INFO": json.dumps(begins), "DCP_VERSION": "1.0", "format": "pt"}
        content = safetensors.torch.save(tensors, header)
        write_synced(self.folder / name, content)
        return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        for result in (each for some in results for each in some):
            facts = dict(result.storage_data)
            self.files[facts.pop("file")] = facts


def _by_file(items: Iterable[WriteItem]) -> list[list[WriteItem]]:
    """Items in files of at most so many bytes, with one piece of a tensor each."""
    files: list[dict[str, WriteItem]] = []
    sizes: list[int] = []
    for item in items:
        name, size = item.index.fqn, item.tensor_storage_size() or 0
        fitting = (
            number
            for number, file in enumerate(files)
            if name not in file and sizes[number] + size <= _FILE_BYTES
        )
        if (number := next(fitting, None)) is None:
            number = len(files)
            files.append({})
            sizes.append(0)
        files[number][name] = item
        sizes[number] += size
    return [list(file.values()) for file in files]


@contextmanager
def _told_plainly() -> Iterator[None]:
    """A context in which what kept one of the processes is raised by all, as an exception.

    Raises:
        OSError: of the first process that had one.
    """
    try:
        yield
    except CheckpointException as error:  # which is no Exception
        causes = [cause for cause, _ in error.failures.values()]
        for cause in causes:
            if isinstance(cause, OSError):
                raise OSError(cause.errno, cause.strerror or str(cause)) from cause
        raise RuntimeError(str(causes[0])) from causes[0]


def _box(piece: TensorPiece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.offsets), piece.tensor.size())


def _piece_at(pieces: Pieces, index: MetadataIndex) -> Tensor:
    for piece in pieces[index.fqn]:
        if index.offset is not None and piece.offsets == tuple(index.offset):
            return piece.tensor
    raise AssertionError(index)


def _copied(pieces: Pieces) -> dict[str, list[TensorPiece]]:
    return {name: [piece.copied() for piece in some] for name, some in pieces.items()}
