"""Writing so that a kill or a full disk never leaves half a file under a final name."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old or the new content is there, whole."""
    partial = path.with_name(path.name + ".partial")
    write_synced(partial, content)
    os.replace(partial, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Wait until the disk has a directory's entries."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_bytes(values: Mapping[str, Any]) -> bytes:
    """Plain data as indented JSON."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors in the safetensors format."""
    from safetensors.torch import save

    return save({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})


def digest(content: bytes) -> dict[str, Any]:
    """What is needed to tell later that a file is whole: its size and SHA-256."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def file_digest(path: Path) -> dict[str, Any]:
    """`digest` of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": file.tell(), "sha256": sha256}


def writing_failed(path: Path, error: OSError, kept: str) -> RunError:
    """The error for a write that failed while running.

    Args:
        path: what could not be written.
        error: why.
        kept: what is still whole, a clause.
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "The disk is full" if full else f"Cannot be written ({error.strerror or error})"
    remedy = "Free some space" if full else "Make the directory writable"
    return RunError(f"{what}; {kept}", where=str(path), remedy=f"{remedy}, then use --resume")
