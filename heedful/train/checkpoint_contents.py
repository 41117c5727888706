"""The tensors of a checkpoint to be written: an interface, and its form for one process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import safetensors.torch

from heedful.durable import write_synced

if TYPE_CHECKING:
    from torch import Tensor

MODEL_FILE = "model.safetensors"
TRAINING_FILE = "training.safetensors"


class Contents(Protocol):
    """The tensors of a checkpoint to be written.

    Attributes:
        waits_for_others: true if other processes take part in writing; any of them may be lost.
    """

    waits_for_others: bool

    def copy(self) -> Self:
        """Return the same contents in memory of their own, which training does not change."""

    def write(self, folder: Path) -> Mapping[str, Any] | None:
        """Write files and wait until the disk has them.

        Args:
            folder: target folder; made if missing.

        Returns:
            Size and SHA-256 of each file; None where another process completes the checkpoint.

        Raises:
            OSError: when they cannot be written.
        """


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
        """See `Contents.copy`."""
        return WholeTensors(_copies(self.model), _copies(self.training))

    def write(self, folder: Path) -> Mapping[str, Any]:
        """See `Contents.write`."""
        folder.mkdir()
        files = {}
        for name, tensors in ((MODEL_FILE, self.model), (TRAINING_FILE, self.training)):
            # safetensors refuses tensors with gaps between their elements.
            packed = {n: t.detach().contiguous().cpu() for n, t in tensors.items()}
            # The hash is computed from the content in memory: if the file were read back from the
            # disk, a damaged one would get a matching hash.
            content = safetensors.torch.save(packed)
            write_synced(folder / name, content)
            files[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        return files


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # `cpu` alone returns the same memory for a tensor that is on the CPU already.
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
