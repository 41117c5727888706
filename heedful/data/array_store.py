"""Store of an encoded corpus: a folder of plain arrays, either complete and verified or absent.

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
    """The error that the content of a store has changed; the message says how."""


class StoreWriter:
    """A writer of arrays that are appended to chunk by chunk.

    Args:
        folder: existing folder of the files.
        dtypes: element type of every array, as NumPy spells it.
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
        # Hashed on the way to the disk, so a corpus larger than memory is read once.
        content = np.ascontiguousarray(values, dtype=self._dtypes[name]).tobytes()
        self._hashes[name].update(content)
        self._files[name].write(content)

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Write everything to the disk, the header last.

        Args:
            metadata: JSON data that is kept in the header.
        """
        arrays = {}
        for name, file in self._files.items():
            arrays[name] = {
                "dtype": self._dtypes[name],
                "sha256": self._hashes[name].hexdigest(),
            }
            _sync_and_close(file)
        # The header is the mark of a complete store: no folder with a header lacks content.
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
    """Write a store atomically: `folder` holds all of it or does not exist.

    Args:
        folder: folder of the store, replaced if it exists.
        dtypes: element type of every array, as NumPy spells it.

    Raises:
        RunError: when the disk is full or cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Beside the store, since a rename across file systems would not be atomic.
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
    """Return the name of a store: SHA-256, in hexadecimal, of a description of its content.

    Args:
        content: hashes of the inputs and of everything that changes the encoding.
    """
    return hashlib.sha256(content.encode()).hexdigest()


def open_or_write(
    cache: Path, key: str, write: Callable[[Path], None], notice: Notice | None
) -> Contents:
    """Open a store, after writing it where it is missing or damaged.

    Args:
        cache: folder of stores; may be shared between runs.
        key: name of the store, from `store_key`.
        write: function that writes the store into a folder.
        notice: function that is called with a sentence when a damaged store is written again.

    Returns:
        The arrays as read-only memory maps, and the metadata.
    """
    # 32 hexadecimal digits are 128 bits: enough to tell stores apart.
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
        # a cached store is rewritten, never migrated
        if header["schema_version"] != SCHEMA_VERSION:
            raise DamagedStore(f"written by another version ({header['schema_version']})")
        arrays = {
            name: _read_array(folder / name, entry) for name, entry in header["arrays"].items()
        }
        return arrays, dict(header["metadata"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStore(f"the header or a file cannot be read ({error})") from None


def _read_array(path: Path, entry: Mapping[str, Any]) -> Array:
    with path.open("rb") as file:  # also warms the page cache for the map
        if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            raise DamagedStore(f"the content of {path.name} has changed")
    dtype = np.dtype(str(entry["dtype"]))
    if path.stat().st_size == 0:  # mmap refuses an empty file
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)  # plain arrays slice faster


def _replace(folder: Path, partial: Path) -> None:
    # A damaged store is in the way of the rename.
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
