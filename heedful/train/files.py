"""Contents of a checkpoint's files: how they are made, and how damage is told later."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor


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
