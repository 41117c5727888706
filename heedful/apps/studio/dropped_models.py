"""Models that a person drops onto a page: files written to a folder of this start of the studio.

Only files of a model or run directory are taken, by their names: JSON, TOML, safetensors and plain
text, which are read and never executed. They go to disk piece by piece, into folders that are named
by numbers, so that no name from outside becomes a path. A folder is a place of the workspace once
its model has been loaded. The folders are removed when the studio stops.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from anyio import to_thread
from pydantic import Field

from heedful.config import Config
from heedful.errors import DataError, ModelError, RunError, UserError

if TYPE_CHECKING:
    from heedful.apps.studio.workspace import Workspace, WorkspaceDirectory

MOST_BYTES = 2 << 30
"""Bytes of all dropped models of a start together."""
MOST_TEXT = 64 << 20
"""Bytes of a file that is no safetensors; the largest tokenizers have 20 MB."""
_MOST_FILES = 1000
_SPARE = 256 << 20
"""Bytes of the disk that stay free."""

_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_OTHERS = frozenset(
    {
        "added_tokens.json",
        "config.json",
        "config.toml",
        "generation_config.json",
        "merges.txt",
        "metrics.jsonl",
        "model.safetensors.index.json",
        "preprocessor_config.json",
        "special_tokens_map.json",
        "target_tokenizer.json",
        "target_vocab.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)
_PICKLES = re.compile(r".*\.(bin|pt|pth|ckpt|pkl|pickle|h5|npz|npy)")
_CONFIGS = {"config.json", "config.toml", "model/config.json"}


class DroppedFile(Config):
    """A file of the folder that is dropped."""

    name: Annotated[str, Field(max_length=1000, description="as in the folder, model/config.json")]
    size: Annotated[int, Field(ge=0, lt=1 << 50, description="in bytes")]


class BeginRequest(Config):
    """A folder, and all that is in it."""

    name: Annotated[str, Field(max_length=1000)]
    files: Annotated[tuple[DroppedFile, ...], Field(max_length=_MOST_FILES)]


class EndRequest(Config):
    """A folder whose files have all been sent."""

    drop: Annotated[int, Field(ge=0)]


@dataclass
class Drop:
    """A folder that is being sent.

    Args:
        name: a name for pages.
        folder: of its files.
        sizes: bytes of each file that is still missing.
    """

    name: str
    folder: Path
    sizes: dict[str, int]
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(self.sizes.values())


class DroppedModels:
    """The folders of this start.

    Args:
        workspace: gets a place for each folder that is whole.
        most: bytes of all folders together.
    """

    def __init__(self, workspace: Workspace, most: int = MOST_BYTES) -> None:
        self.most = most
        self._workspace = workspace
        self._lock = threading.Lock()
        self._root: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0
        self._bytes = 0
        self._coming: dict[int, Drop] = {}

    def begin(self, request: BeginRequest) -> tuple[int, list[str], list[str]]:
        """Make a folder, and choose the files to send.

        A folder that was begun before and never ended gives its room back.

        Returns:
            The number of the drop, the names of files to send, and the names of files left out.

        Raises:
            UserError: when it cannot be a model, or there is no room for it.
        """
        sizes = {each.name: each.size for each in request.files if is_taken(each.name)}
        left_out = [each.name for each in request.files if each.name not in sizes]
        _check_files(sizes, left_out)
        total = sum(sizes.values())
        with self._lock:
            for drop in self._coming.values():
                self._remove(drop)
            self._coming.clear()
            root = self._folder()
            self._check_room(total, root)
            self._count += 1
            number = self._count
            folder = root / str(number)
            folder.mkdir()
            self._coming[number] = Drop(_display_name(request.name), folder, sizes)
            self._bytes += total
        return number, list(sizes), left_out

    async def receive(self, number: int, name: str, content: AsyncIterator[bytes]) -> None:
        """Write a file as its bytes come in.

        Raises:
            UserError: when it was not announced, or has another size than announced.
        """
        drop = self._drop(number)
        size = drop.sizes.get(name)
        if size is None:  # announced names only: whatever else a path could mean is never opened
            raise DataError(f"No file {name[:60]!r} was announced", where="the dropped folder")
        target = drop.folder / name
        target.parent.mkdir(exist_ok=True)
        try:
            file = target.open("xb")
        except OSError:
            raise DataError("The file is being sent already", where=name) from None
        kept = False
        try:
            with file:
                kept = await _write(file, content, size)
        except OSError as error:
            raise RunError(f"The file cannot be kept: {error.strerror}", where=name) from None
        finally:
            if not kept:
                target.unlink(missing_ok=True)
        if not kept:
            raise DataError(
                f"The file was announced with {size:,} bytes, but another number came",
                where=name,
                remedy="Drop the folder again once nothing writes to it any more",
            )
        del drop.sizes[name]

    def end(self, number: int) -> WorkspaceDirectory:
        """Load the model, and make a place of the folder.

        Raises:
            UserError: when files are missing, or it is no model or run directory. The folder is
                removed then.
        """
        with self._lock:
            drop = self._coming.pop(number, None) or self._drop(number)
        place: WorkspaceDirectory | None = None
        try:
            if drop.sizes:
                raise DataError(
                    f"The file {next(iter(drop.sizes))} is still missing",
                    where=drop.name,
                    remedy="Drop the folder again",
                )
            place = self._workspace.add(drop.name, drop.folder)
        except UserError as error:
            raise _without_folder(error, drop) from None
        finally:
            if place is None:
                with self._lock:
                    self._remove(drop)
        return place

    def close(self) -> None:
        """Remove all folders."""
        with self._lock:
            if self._root is not None:
                self._root.cleanup()
            self._root = None
            self._coming.clear()

    def _drop(self, number: int) -> Drop:
        drop = self._coming.get(number)
        if drop is None:
            raise DataError(
                "This folder is not expected any more",
                where="the dropped folder",
                remedy="Drop it again; one folder is sent at a time",
            )
        return drop

    def _remove(self, drop: Drop) -> None:
        self._bytes -= drop.total
        shutil.rmtree(drop.folder, ignore_errors=True)

    def _folder(self) -> Path:
        if self._root is None:
            self._root = tempfile.TemporaryDirectory(prefix="heedful-studio-")
        return Path(self._root.name)

    def _check_room(self, total: int, root: Path) -> None:
        remedy = "Start the studio with the directory, which copies nothing: heedful studio DIR"
        if self._bytes + total > self.most:
            before = f", after {self._bytes:,} before it" if self._bytes else ""
            raise DataError(
                f"The folder has {total:,} bytes{before}; a page takes {self.most:,} in all",
                where="the dropped folder",
                remedy=remedy,
            )
        if total + _SPARE > shutil.disk_usage(root).free:
            raise RunError(
                f"The disk has no room for {total:,} bytes more", where=str(root), remedy=remedy
            )


async def _write(file: BinaryIO, content: AsyncIterator[bytes], size: int) -> bool:
    """Write all pieces, in a thread as a disk may be slow; False if they are not of this size."""
    written = 0
    async for piece in content:
        written += len(piece)
        if written > size:
            return False
        await to_thread.run_sync(file.write, piece)
    return written == size


def is_taken(name: str) -> bool:
    """Return whether a file of a dropped folder is one that a model or run directory has."""
    file = name.removeprefix("model/")  # none of the names below has a slash
    return file in _OTHERS or _WEIGHTS.fullmatch(file) is not None


def _check_files(sizes: Mapping[str, int], left_out: list[str]) -> None:
    """Refuse what cannot be a model or run directory before any of it is sent."""
    for name, size in sizes.items():
        if size > MOST_TEXT and not name.endswith(".safetensors"):
            raise DataError(
                f"The file has {size:,} bytes; at most {MOST_TEXT:,} are taken of a file of text",
                where=name,
            )
    if not _CONFIGS & sizes.keys():
        raise ModelError(
            "This is neither a model directory nor a run directory: it has no config.json",
            where="the dropped folder",
            remedy="Drop the folder that holds config.json and model.safetensors",
        )
    if "config.toml" in sizes or any(name.endswith(".safetensors") for name in sizes):
        return
    pickles = [name for name in left_out if _PICKLES.fullmatch(name.rpartition("/")[2])]
    raise ModelError(
        f"The weights are in {pickles[0][-60:]}, and such a file can run code when it is read"
        if pickles
        else "The folder has no weights: model.safetensors is missing",
        where="the dropped folder",
        remedy="Drop a folder whose weights are safetensors",
    )


def _display_name(name: str) -> str:
    """Return a name for pages: of printable characters, and not too long."""
    shown = "".join(each for each in name if each.isprintable() and each not in "/\\").strip()
    return shown[:60] or "model"


def _without_folder(error: UserError, drop: Drop) -> UserError:
    """Return the error with the person's name of the folder in the place of ours."""

    def named(text: str | None) -> str | None:
        return text and text.replace(str(drop.folder), drop.name)

    return type(error)(named(error.what) or "", where=named(error.where), remedy=error.remedy)
