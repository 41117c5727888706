"""Sharded checkpoint files: each process writes the pieces that it holds, and reads those it needs.

`torch.distributed.checkpoint` (DCP) plans which process writes which piece, and which rows of which
file a process reads. The files are safetensors whose headers hold the offset of each piece, in the
format of PyTorch's `HuggingFaceStorageReader`. DCP's own index, a pickle, is neither written nor
read. Plans and results are exchanged between processes by PyTorch's object collectives.
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

# Size after which a process begins another file: writing needs two copies of one file in memory.
_FILE_BYTES = 128 * 2**20

# Time within which a folder made by another machine must appear; NFS caches names for 30 seconds.
_NOTICE_SECONDS = 60.0


@dataclass(frozen=True)
class ShardedTensors:
    """The tensors of a checkpoint, of which each process writes its own pieces.

    Args:
        model: pieces of the weights by parameter name.
        training: pieces of all other tensors, by kind and parameter name.
        group: group of all processes for writing alone, in which a thread may wait during training.
    """

    model: Pieces
    training: Pieces
    group: ProcessGroup

    waits_for_others = True

    def copy(self) -> ShardedTensors:
        """See `Contents.copy`."""
        return ShardedTensors(_copy_pieces(self.model), _copy_pieces(self.training), self.group)

    def write(self, folder: Path) -> dict[str, Any] | None:
        """Write the pieces of this process, and wait until all have theirs on the disk.

        Args:
            folder: folder that all processes see.

        Returns:
            Size and SHA-256 of every file by path on the first process; None on the others.

        Raises:
            OSError: the error of any process; on all but the first `ElsewhereFailed` instead.
        """
        try:
            return self._write(folder)
        except OSError as error:
            # One message for one full disk: that of the first process, which writes `state.json`.
            if dist.get_rank() != 0:
                raise ElsewhereFailed from error
            raise

    def _write(self, folder: Path) -> dict[str, Any] | None:
        files: dict[str, Any] = {}
        for name, tensors in ((MODEL_FOLDER, self.model), (TRAINING_FOLDER, self.training)):
            writer = _Writer(folder / name)
            with _plain_errors():
                save(
                    dict(tensors),
                    storage_writer=writer,
                    planner=_Saving(),
                    process_group=self.group,
                )
            files |= {f"{name}/{file}": facts for file, facts in writer.files.items()}
        if dist.get_rank() != 0:
            return None
        # Names of files survive a power cut only once their folder is synced.
        for name in (MODEL_FOLDER, TRAINING_FOLDER):
            sync(folder / name)
        return files


class StoredTensors:
    """Reads tensors from the safetensors files of a folder, whole or in pieces.

    Args:
        folder: folder with the files of any number of processes.

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
        """Read the given pieces, and nothing else, into their tensors.

        Raises:
            RunError: when a tensor is missing, has another size, or cannot be read.
        """
        for name, some in pieces.items():
            size = self.described.get(name, (None,))[0]
            # DCP would read what overlaps, and leave the rest of a larger tensor as it was.
            if any(piece.size != size for piece in some):
                raise RunError(
                    f"The tensor {name!r} of the checkpoint does not fit the model",
                    where=str(self.folder),
                )
        try:
            with _plain_errors(), warnings.catch_warnings():
                # `no_dist`: every process reads by itself and never waits inside of DCP for a slow
                # one.
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                load(dict(pieces), storage_reader=self._reader(), planner=_Loading(), no_dist=True)
        except OSError as error:
            raise RunError(
                f"The checkpoint cannot be read: {error.strerror or error}", where=str(self.folder)
            ) from error

    def read_all(self) -> dict[str, Tensor]:
        """Read all tensors in one piece."""
        tensors = {
            name: torch.empty(size, dtype=dtype) for name, (size, dtype) in self.described.items()
        }
        self.read({name: pieces_of(tensor) for name, tensor in tensors.items()})
        return tensors

    def _reader(self) -> HuggingFaceStorageReader:
        return HuggingFaceStorageReader(str(self.folder))


def connect(seconds: float) -> ProcessGroup:
    """Make a process group for writing checkpoints; a collective of all processes.

    Args:
        seconds: longest time by which one process may finish after the others.
    """
    # Gloo, as NCCL's operations would wait behind those of training on the GPU.
    group: ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    return group


def check_shared(folder: Path, team: Team) -> None:
    """Refuse a folder that not all machines share.

    Args:
        folder: folder of the checkpoints, made by the first process.
        team: processes of the run.

    Raises:
        UserError: when a machine does not see the files of the first process; it is named.
    """
    # A random name: a folder left over on another machine must not pass for this one.
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
    """Plans to write each piece once; of replicated pieces the first process's copy.

    DCP's default spreads copies over processes; whole checkpoints also hold the first one's.
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
    """Plans to read the needed pieces from files with any other division into pieces."""

    state_dict: Pieces  # type: ignore[assignment]

    # DCP's own flattens nested dictionaries and unwraps DTensors; ours hold lists of pieces.
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

    PyTorch's writer makes a single file, holds two copies of it in memory, and has room for one
    piece of a tensor in it.

    Args:
        folder: target folder; made if missing.

    Attributes:
        files: size and SHA-256 of every file, on the first process after writing.
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
        # Keys and version that `HuggingFaceStorageReader` looks for.
        header = {"DCP_SHARDING_INFO": json.dumps(begins), "DCP_VERSION": "1.0", "format": "pt"}
        content = safetensors.torch.save(tensors, header)
        write_synced(self.folder / name, content)
        return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        # Called on the first process with the results of all: it alone writes `state.json`.
        for result in (each for some in results for each in some):
            facts = dict(result.storage_data)
            self.files[facts.pop("file")] = facts


def _by_file(items: Iterable[WriteItem]) -> list[list[WriteItem]]:
    """Distribute items over files of at most `_FILE_BYTES`, one piece of a tensor in each."""
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
def _plain_errors() -> Iterator[None]:
    """A context that turns DCP's error, raised by all processes, into an ordinary exception.

    Raises:
        OSError: the first one among the errors of all processes.
        RuntimeError: the first error, if none is an OSError.
    """
    try:
        yield
    except CheckpointException as error:  # derived from BaseException
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


def _copy_pieces(pieces: Pieces) -> dict[str, list[TensorPiece]]:
    return {name: [piece.copy() for piece in some] for name, some in pieces.items()}
