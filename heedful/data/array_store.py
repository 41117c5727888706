"""Store of an encoded corpus: a folder of plain arrays, either complete and verified or absent.

The folder is written under a temporary name and renamed when everything is on the disk. Its
`header.json` holds the type and SHA-256 of every array; a folder that does not match it is never
used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.durable import whole_folder
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
        self._hashes = {name: hashlib.sha256() for name in dtypes}
        self._open = ExitStack()  # closes every file, even if another one cannot be flushed
        self.close = self._open.close
        self._files = {n: self._open.enter_context((folder / n).open("wb")) for n in dtypes}

    def append(self, name: str, values: Array) -> None:
        """Add values at the end of an array."""
        # Hashed on the way to the disk, so a corpus larger than memory is read once.
        content = np.ascontiguousarray(values, dtype=self._dtypes[name]).tobytes()
        self._hashes[name].update(content)
        self._files[name].write(content)

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Write the header.

        Args:
            metadata: JSON data that is kept in the header.
        """
        arrays = {
            name: {"dtype": dtype, "sha256": self._hashes[name].hexdigest()}
            for name, dtype in self._dtypes.items()
        }
        header = {"schema_version": SCHEMA_VERSION, "arrays": arrays, "metadata": dict(metadata)}
        (self._folder / _HEADER).write_bytes(json.dumps(header, indent=1).encode())


@contextmanager
def writing(folder: Path, dtypes: Mapping[str, str]) -> Iterator[StoreWriter]:
    """Write a store atomically: `folder` holds all of it or does not exist.

    Args:
        folder: folder of the store.
        dtypes: element type of every array, as NumPy spells it.

    Raises:
        RunError: when the disk is full or cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder) as partial, closing(StoreWriter(partial, dtypes)) as writer:
            yield writer
    except OSError as error:
        # Another run may have put the same content there in between.
        if not (folder / _HEADER).exists():
            raise _cannot_write(folder, error) from None


def open_or_write(
    cache: Path, content: str, write: Callable[[Path], None], notice: Notice | None
) -> tuple[dict[str, Array], dict[str, Any], str]:
    """Open a store, after writing it where it is missing or damaged.

    Args:
        cache: folder of stores; may be shared between runs.
        content: description of the content: hashes of the inputs and of everything that changes
            the encoding.
        write: function that writes the store into a folder.
        notice: function that is called with a sentence when a damaged store is written again.

    Returns:
        The arrays as read-only memory maps, the metadata, and the SHA-256 of the description, in
        hexadecimal, which names the store.
    """
    key = hashlib.sha256(content.encode()).hexdigest()
    # 32 hexadecimal digits are 128 bits: enough to tell stores apart.
    folder = cache / key[:32]
    if folder.exists():
        try:
            return *read_store(folder), key
        except DamagedStore as damage:
            # A damaged store would be in the way of the new one.
            shutil.rmtree(folder, ignore_errors=True)
            if notice:
                notice(f"{folder}: the stored corpus is damaged ({damage}) and is encoded again.")
    write(folder)
    return *read_store(folder), key


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
