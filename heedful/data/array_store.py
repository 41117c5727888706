"""A corpus encoded once: a folder of plain arrays, complete and verified or not there at all.

The folder is written under a temporary name and renamed when everything is on the disk. Its
`header.json` holds the type and SHA-256 of every array; a folder that does not match it is never
used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from heedful.durable import sync
from heedful.errors import RunError

SCHEMA_VERSION = 1
_HEADER = "header.json"

Array = npt.NDArray[Any]
Contents = tuple[dict[str, Array], dict[str, Any]]
Notice = Callable[[str], None]


class DamagedStore(Exception):
    """A store that differs from what was written; the message says how."""


class StoreWriter:
    """A writer of arrays, piece by piece.

    Args:
        folder: where the files go; exists.
        dtypes: the element type of every array.
    """

    def __init__(self, folder: Path, dtypes: Mapping[str, str]) -> None:
        self._folder = folder
        self._dtypes = dict(dtypes)
        self._files: dict[str, IO[bytes]] = {}
        self._hashes = {name: hashlib.sha256() for name in dtypes}
        for name in dtypes:
            self._files[name] = (folder / name).open("wb")

    def append(self, name: str, values: Array) -> None:
        """Add values at the end of an array."""
        content = np.ascontiguousarray(values, dtype=self._dtypes[name]).tobytes()
        self._hashes[name].update(content)
        self._files[name].write(content)

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Write everything to the disk, the header last."""
        arrays = {}
        for name, file in self._files.items():
            arrays[name] = {
                "dtype": self._dtypes[name],
                "sha256": self._hashes[name].hexdigest(),
            }
            _sync_and_close(file)
        header = {"schema_version": SCHEMA_VERSION, "arrays": arrays, "metadata": dict(metadata)}
        file = (self._folder / _HEADER).open("wb")
        file.write(json.dumps(header, indent=1).encode())
        _sync_and_close(file)

    def close(self) -> None:
        """Close the files, finished or not."""
        for file in self._files.values():
            file.close()


@contextmanager
def writing(folder: Path, dtypes: Mapping[str, str]) -> Iterator[StoreWriter]:
    """Write a store so that `folder` holds all of it, or is not there.

    Args:
        folder: the store; replaced if it is there.
        dtypes: the element type of every array, as NumPy spells it.

    Raises:
        RunError: when the disk is full or cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    except OSError as error:
        raise _cannot_write(folder, error) from None
    writer = None
    try:
        writer = StoreWriter(partial, dtypes)
        yield writer
        writer.close()
        _replace(folder, partial)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    finally:
        if writer is not None:
            _close_quietly(writer)
        shutil.rmtree(partial, ignore_errors=True)


def store_key(content: str) -> str:
    """The name of what is stored: SHA-256, in hexadecimal, of what it is made from and how."""
    return hashlib.sha256(content.encode()).hexdigest()


def open_or_write(
    cache: Path, key: str, write: Callable[[Path], None], notice: Notice | None
) -> Contents:
    """Open a store, after writing it where it is missing or damaged.

    Args:
        cache: folder of stores; may be shared between runs.
        key: of the store, from `store_key`.
        write: writes it into the folder it is given.
        notice: called with a sentence when a damaged store is written again.

    Returns:
        The arrays as read-only memory maps, and the metadata.
    """
    folder = cache / key[:32]
    if folder.exists():
        try:
            return read_store(folder)
        except DamagedStore as damage:
            if notice:
                notice(f"{folder}: the stored corpus is damaged ({damage}) and is encoded again.")
    write(folder)
    return read_store(folder)


def read_store(folder: Path) -> Contents:
    """Open a store after reading all of it once to verify it.

    Returns:
        The arrays as read-only memory maps, and the metadata.

    Raises:
        DamagedStore: when the folder is not a complete store of this version.
    """
    try:
        header = json.loads((folder / _HEADER).read_bytes())
        if header["schema_version"] != SCHEMA_VERSION:
            raise DamagedStore(f"written by another version ({header['schema_version']})")
        arrays = {
            name: _read_array(folder / name, entry) for name, entry in header["arrays"].items()
        }
        return arrays, dict(header["metadata"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStore(f"the header or a file cannot be read ({error})") from None


def _read_array(path: Path, entry: Mapping[str, Any]) -> Array:
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            raise DamagedStore(f"the content of {path.name} has changed")
    dtype = np.dtype(str(entry["dtype"]))
    if path.stat().st_size == 0:  # nothing to map
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)  # plain arrays slice faster


def _replace(folder: Path, partial: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        partial.rename(folder)
    except OSError:
        # Another run may have put the same content there in between.
        if not (folder / _HEADER).exists():
            raise
    sync(folder.parent)


def _sync_and_close(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _close_quietly(writer: StoreWriter) -> None:
    # A full disk fails again when the buffers are flushed; it was reported already.
    with suppress(OSError):
        writer.close()


def _cannot_write(folder: Path, error: OSError) -> RunError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            "The disk is full; nothing was left behind",
            where=str(folder),
            remedy="Free space, or set data.cache to a folder on another disk",
        )
    return RunError(
        f"The encoded corpus cannot be written: {error.strerror or error}",
        where=str(folder),
        remedy="Set data.cache to a folder that can be written",
    )
