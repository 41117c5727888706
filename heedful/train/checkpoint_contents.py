"""The tensors of a checkpoint in files: written whole by one process, or in pieces by all.

A piece is a box of a tensor with its offsets in the whole tensor. A shard is one box of rows. A
part of a fused matrix is several boxes: `tensor_plan.py` permutes its rows, and every run of rows
that are consecutive in the whole matrix is one box. Files of pieces are safetensors whose headers
hold the offsets, as PyTorch's `HuggingFaceStorageReader` reads them, so any number of processes
can read what any other number wrote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from heedful.durable import sync, write_synced
from heedful.errors import RunError
from heedful.train.model_weights import lies_in_parts
from heedful.train.parallel.team import ElsewhereFailed, Team, gathered_texts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


MODEL_FILE = "model.safetensors"
TRAINING_FILE = "training.safetensors"
MODEL_FOLDER = "model"
TRAINING_FOLDER = "training"
"""Folders of a checkpoint: pieces of the weights, and pieces of all other tensors."""

# Size after which a process begins another file: writing one takes twice its size in memory.
_FILE_BYTES = 128 * 2**20
_OFFSETS = "DCP_SHARDING_INFO"


@dataclass(frozen=True)
class WholeTensors:
    """Tensors that one process writes alone.

    Args:
        model: weights by parameter name.
        training: all other tensors, by kind and parameter name.
    """

    model: Mapping[str, Tensor]
    training: Mapping[str, Tensor]

    waits_for_others = False

    def copy(self) -> WholeTensors:
        """Return the same tensors in memory of their own, which training does not change."""
        model, training = (
            {name: _copy(tensor) for name, tensor in tensors.items()}
            for tensors in (self.model, self.training)
        )
        return WholeTensors(model, training)

    def write(self, folder: Path) -> Mapping[str, Any]:
        """Write files into a new folder, and wait until the disk has them.

        Returns:
            Size and SHA-256 of each file.

        Raises:
            OSError: when they cannot be written.
        """
        folder.mkdir()
        files = ((MODEL_FILE, self.model), (TRAINING_FILE, self.training))
        return {name: _write(folder / name, tensors) for name, tensors in files}


@dataclass(frozen=True)
class TensorPiece:
    """A box of a tensor.

    Args:
        tensor: content of the box, in the memory where the process holds it.
        offsets: offsets of its first element in the whole tensor, by axis.
        size: size of the whole tensor.
    """

    tensor: Tensor
    offsets: tuple[int, ...]
    size: tuple[int, ...]

    def fill_from(self, other: TensorPiece) -> None:
        """Copy the elements that another piece of the same tensor shares with this one."""
        starts = list(map(max, self.offsets, other.offsets))
        stops = list(map(min, _ends(self.tensor, self.offsets), _ends(other.tensor, other.offsets)))
        if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
            return
        here, there = (
            tuple(slice(a - o, b - o) for a, b, o in zip(starts, stops, each, strict=True))
            for each in (self.offsets, other.offsets)
        )
        self.tensor[here].copy_(other.tensor[there])


Pieces = Mapping[str, Sequence[TensorPiece]]
"""Pieces of tensors that a process holds, by tensor name."""


@dataclass(frozen=True)
class ShardedTensors:
    """The tensors of a checkpoint, of which each process writes its own pieces.

    Args:
        model: pieces of the weights by parameter name.
        training: pieces of all other tensors, by kind and parameter name.
        rank: index of this process.
        group: group of all processes for writing alone, in which a thread may wait during training.
    """

    model: Pieces
    training: Pieces
    rank: int
    group: ProcessGroup

    waits_for_others = True

    @classmethod
    def of(cls, model: Pieces, training: Pieces, team: Team, group: ProcessGroup) -> ShardedTensors:
        """Make the pieces of this process, without those that a process of lower rank has, too."""
        both = {**model, **training}
        # Empty pieces are left out, as their offsets equal those of the next process's rows.
        mine = {n: [p.offsets for p in some if p.tensor.numel()] for n, some in both.items()}
        # If several processes have a piece, the first writes it, as in checkpoints of whole
        # tensors.
        texts = team.texts(json.dumps(mine))[: team.process.rank]
        taken = {
            (name, tuple(offsets))
            for text in texts
            for name, all_offsets in json.loads(text).items()
            for offsets in all_offsets
        }
        model, training = (
            {n: [p for p in some if (n, p.offsets) not in taken] for n, some in pieces.items()}
            for pieces in (model, training)
        )
        return cls(model, training, team.process.rank, group)

    def copy(self) -> ShardedTensors:
        """See `WholeTensors.copy`."""
        model, training = (
            {n: [replace(p, tensor=_copy(p.tensor)) for p in some] for n, some in pieces.items()}
            for pieces in (self.model, self.training)
        )
        return replace(self, model=model, training=training)

    def write(self, folder: Path) -> dict[str, Any] | None:
        """Write the pieces of this process, and wait until all have theirs on the disk.

        Args:
            folder: folder that all processes see.

        Returns:
            Size and SHA-256 of every file by path on the first process; None on the others.

        Raises:
            OSError: the error of any process; on all but the first `ElsewhereFailed` instead.
        """
        message: dict[str, Any] = {}
        failure: Exception | None = None
        try:
            message["files"] = self._write(folder)
        # Any error is sent, as the others wait for the message.
        except Exception as error:
            failure = error
            text = getattr(error, "strerror", None) or str(error)
            message["failure"] = (getattr(error, "errno", None), text)
        messages = [json.loads(each) for each in gathered_texts(json.dumps(message), self.group)]
        failures = [each["failure"] for each in messages if "failure" in each]
        if failures:
            # A full disk is reported once, by the first process, which writes `state.json`.
            if self.rank and (failure is None or isinstance(failure, OSError)):
                raise ElsewhereFailed from failure
            raise failure or OSError(*failures[0])
        if self.rank:
            return None
        return {path: facts for each in messages for path, facts in each["files"].items()}

    def _write(self, folder: Path) -> dict[str, Any]:
        files: dict[str, Any] = {}
        for name, pieces in ((MODEL_FOLDER, self.model), (TRAINING_FOLDER, self.training)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            for number, some in enumerate(_by_file(pieces), 1):
                path = f"{name}/shard-{self.rank + 1:05d}-{number:05d}.safetensors"
                begins = {n: {"saved_offsets": list(piece.offsets)} for n, piece in some.items()}
                # Keys and version that `HuggingFaceStorageReader` looks for.
                header = {_OFFSETS: json.dumps(begins), "DCP_VERSION": "1.0", "format": "pt"}
                tensors = {n: piece.tensor for n, piece in some.items()}
                files[path] = _write(folder / path, tensors, header)
            # Names of files survive a power cut only once their folder is synced.
            sync(folder / name)
        return files


Contents = WholeTensors | ShardedTensors
"""The tensors of a checkpoint to be written. `waits_for_others` is true if other processes take
part in writing, any of which may be lost."""


class StoredTensors:
    """Reads tensors from the safetensors files of a folder, whole or in pieces.

    Args:
        folder: folder with the files of any number of processes, or with whole tensors.

    Attributes:
        described: size and type of each tensor, by name.

    Raises:
        RunError: when a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        boxes: dict[str, list[tuple[Tensor, tuple[int, ...]]]] = {}
        try:
            for path in sorted(folder.glob("*.safetensors")):
                with safe_open(path, "pt") as file:
                    begins = json.loads((file.metadata() or {}).get(_OFFSETS, "{}"))
                    for name in file.keys():  # noqa: SIM118  # it is no mapping
                        # Mapped into memory: only elements that are copied are read.
                        tensor = file.get_tensor(name)
                        begin = begins.get(name, {}).get("saved_offsets", [0] * tensor.ndim)
                        boxes.setdefault(name, []).append((tensor, tuple(begin)))
        except (OSError, SafetensorError) as error:
            raise RunError(f"The checkpoint cannot be read: {error}", where=str(folder)) from error
        self.described: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._pieces: dict[str, list[TensorPiece]] = {}
        for name, some in boxes.items():
            size = tuple(map(max, zip(*(_ends(*box) for box in some), strict=True)))
            self.described[name] = (size, some[0][0].dtype)
            self._pieces[name] = [TensorPiece(tensor, begin, size) for tensor, begin in some]

    def read(self, pieces: Pieces) -> None:
        """Read the given pieces, and nothing else, into their tensors.

        Raises:
            RunError: when a tensor is missing, or has another size.
        """
        for name, some in pieces.items():
            size = self.described.get(name, (None,))[0]
            for piece in some:
                if piece.size != size:
                    raise RunError(
                        f"The tensor {name!r} of the checkpoint does not fit the model",
                        where=str(self.folder),
                    )
                for stored in self._pieces[name]:
                    piece.fill_from(stored)

    def read_all(self) -> dict[str, Tensor]:
        """Read all tensors in one piece."""
        tensors = {
            name: torch.empty(size, dtype=dtype) for name, (size, dtype) in self.described.items()
        }
        self.read(all_pieces(tensors, {}))
        return tensors


def all_pieces(tensors: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> Pieces:
    """Return the pieces that a process holds of weights, moments and averages.

    Args:
        tensors: tensors by name (WEIGHT or KIND/WEIGHT), whole or DTensors [N, …].
        rows: original number [N] int64 of every row of a permuted DTensor, by weight name.

    Returns:
        The pieces as views of the process's memory: none of a tensor of which it holds no row,
        several of a permuted one.
    """
    # Moments are permuted like their weight.
    return {
        name: _pieces_of(tensor, rows.get(weight_name(name))) for name, tensor in tensors.items()
    }


def _pieces_of(tensor: Tensor, rows: Tensor | None) -> list[TensorPiece]:
    size = tuple(tensor.shape)
    if not lies_in_parts(tensor):
        return [TensorPiece(tensor.detach(), (0,) * len(size), size)]
    local = cast(Any, tensor.detach()).to_local()
    if not local.numel():  # fewer rows than processes
        return []
    # DTensor's own account of where its local part begins, also for uneven shards.
    (box,) = cast(Any, tensor).__create_chunk_list__()
    first, *others = box.offsets
    if rows is None:
        return [TensorPiece(local, (first, *others), size)]
    # [local rows], original row numbers; a jump by more than 1 begins a new piece.
    numbers = rows[first : first + len(local)]
    breaks = (numbers.diff() != 1).nonzero().flatten() + 1
    bounds = [0, *breaks.tolist(), len(numbers)]
    return [
        TensorPiece(local[start:stop], (int(numbers[start]), *others), size)
        for start, stop in pairwise(bounds)
    ]


def _ends(tensor: Tensor, offsets: tuple[int, ...]) -> list[int]:
    return [offset + count for offset, count in zip(offsets, tensor.shape, strict=True)]


def weight_name(name: str) -> str:
    """Return the weight's name in the name of a moment or average."""
    return name.rpartition("/")[2]


def _by_file(pieces: Pieces) -> Iterable[dict[str, TensorPiece]]:
    """Distribute pieces over files of at most `_FILE_BYTES`, one piece of a tensor in each."""
    files: list[dict[str, TensorPiece]] = []
    sizes: list[int] = []
    for name, piece in ((name, piece) for name, some in pieces.items() for piece in some):
        size = piece.tensor.nbytes
        fitting = (
            number
            for number, file in enumerate(files)
            if name not in file and sizes[number] + size <= _FILE_BYTES
        )
        if (number := next(fitting, None)) is None:
            number = len(files)
            files.append({})
            sizes.append(0)
        files[number][name] = piece
        sizes[number] += size
    return files


def _write(
    path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None
) -> dict[str, Any]:
    """Write a file of tensors; return its size and SHA-256."""
    # safetensors refuses tensors with gaps between their elements.
    packed = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    # The hash is computed from the content in memory: if the file were read back from the disk, a
    # damaged one would get a matching hash.
    content = safetensors.torch.save(packed, header)
    write_synced(path, content)
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _copy(tensor: Tensor) -> Tensor:
    # `cpu` alone returns the same memory for a tensor that is on the CPU already.
    return tensor.detach().cpu().clone()
