"""Models that a user drops onto a page: their files are stored until the studio stops.

Only files with names of a model or run directory are accepted: JSON, TOML, safetensors and plain
text, none of which can execute code. They are written chunk by chunk into numbered folders, so that
no name from outside becomes a path. A folder enters the workspace once its model has been loaded.
The folders are removed when the studio stops.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from anyio import to_thread
from pydantic import Field

from heedful.config import Config
from heedful.errors import DataError, ModelError, RunError, UserError

if TYPE_CHECKING:
    from heedful.apps.studio.workspace import Workspace, WorkspaceDirectory

MOST_BYTES = 2 << 30
"""Maximum size in bytes of all models dropped until the studio stops."""
MOST_TEXT = 64 << 20
"""Maximum size in bytes of files other than safetensors; the largest tokenizers have 20 MB."""
_MOST_FILES = 1000
_SPARE = 256 << 20
"""Number of bytes that must stay free on the disk."""

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
    """A file of a dropped folder."""

    name: str = Field(
        max_length=1000, description="path that includes the folder, such as model/config.json"
    )
    size: int = Field(ge=0, lt=1 << 50, description="size in bytes")


class BeginRequest(Config):
    """A dropped folder and its files."""

    name: str = Field(max_length=1000)
    files: tuple[DroppedFile, ...] = Field(max_length=_MOST_FILES)


class EndRequest(Config):
    """A dropped folder whose files have all been sent."""

    drop: int = Field(ge=0)


@dataclass
class Drop:
    """A dropped folder that is being sent.

    Args:
        name: name on pages.
        folder: folder of its files.
        sizes: bytes of each missing file.
        total: bytes of all files.
    """

    name: str
    folder: Path
    sizes: dict[str, int]
    total: int


class DroppedModels:
    """The dropped folders since the start of the studio.

    Args:
        workspace: workspace that complete folders are added to.
        most: maximum size of all folders in bytes.
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
        """Make a folder, and select the files to send.

        An earlier folder that was never completed is removed.

        Returns:
            The number of the drop, the names of files to send, and the names of files left out.

        Raises:
            UserError: when the folder cannot be a model, or there is no room for it.
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
            self._coming[number] = Drop(_display_name(request.name), folder, sizes, total)
            self._bytes += total
        return number, list(sizes), left_out

    async def receive(self, number: int, name: str, content: AsyncIterator[bytes]) -> None:
        """Write a file while its bytes arrive.

        Raises:
            UserError: when the file was not announced, or has another size than announced.
        """
        drop = self._drop(number)
        size = drop.sizes.get(name)
        if size is None:  # only announced names are opened, never a path
            raise DataError(f"No file {name[:60]!r} was announced", where="the dropped folder")
        target = drop.folder / name
        target.parent.mkdir(exist_ok=True)
        try:
            file = target.open("xb")
        except OSError:
            raise DataError("The file is already being sent", where=name) from None
        kept = False
        try:
            with file:
                kept = await _write(file, content, size)
        except OSError as error:
            raise RunError(f"The file cannot be stored: {error.strerror}", where=name) from None
        finally:
            if not kept:
                target.unlink(missing_ok=True)
        if not kept:
            raise DataError(
                f"The file was announced with {size:,} bytes, but has another size",
                where=name,
                remedy="Drop the folder again once nothing writes to it any more",
            )
        del drop.sizes[name]

    def end(self, number: int) -> WorkspaceDirectory:
        """Load the model, and add the folder to the workspace.

        Raises:
            UserError: when files are missing, or the folder is no model or run directory. The
                folder is then removed.
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
                "The upload of this folder has ended or was replaced",
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
                f"The disk has no space for {total:,} more bytes", where=str(root), remedy=remedy
            )


async def _write(file: BinaryIO, content: AsyncIterator[bytes], size: int) -> bool:
    """Write all chunks in a thread, since disks may be slow; return False for a wrong size."""
    written = 0
    async for piece in content:
        written += len(piece)
        if written > size:
            return False
        await to_thread.run_sync(file.write, piece)
    return written == size


def is_taken(name: str) -> bool:
    """Return True for a file that belongs to a model or run directory."""
    file = name.removeprefix("model/")  # none of the accepted names has a slash
    return file in _OTHERS or _WEIGHTS.fullmatch(file) is not None


def _check_files(sizes: Mapping[str, int], left_out: list[str]) -> None:
    """Refuse a folder that cannot be a model or run directory, before its files are sent."""
    for name, size in sizes.items():
        if size > MOST_TEXT and not name.endswith(".safetensors"):
            raise DataError(
                f"The file has {size:,} bytes; at most {MOST_TEXT:,} are allowed for a text file",
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
    """Return a name for pages, with printable characters only and of limited length."""
    shown = "".join(each for each in name if each.isprintable() and each not in "/\\").strip()
    return shown[:60] or "model"


def _without_folder(error: UserError, drop: Drop) -> UserError:
    """Return an error with the user's name for the folder in place of the internal name."""

    def named(text: str | None) -> str | None:
        return text and text.replace(str(drop.folder), drop.name)

    return type(error)(named(error.what) or "", where=named(error.where), remedy=error.remedy)
