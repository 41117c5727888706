"""A corpus as a folder of compressed shards; a shard is read as a whole.

`index.json` lists the shards with their sizes and SHA-256. A shard holds JSON lines in gzip, as
other `.jsonl` corpora do, so that every command and other programs can read it. Reading 10,000
pairs with Python's gzip, the SHA-256 included, takes 4 ms, tokenising them 90 or more: a faster
compression would gain little.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError, field_validator

from heedful.config import Config, PositiveInt, validation_error
from heedful.data.corpus_spec import SHARD_INDEX, CorpusSpec
from heedful.data.pair_corpus import json_pair
from heedful.data.text_corpus import json_text
from heedful.durable import open_regular
from heedful.errors import DataError

SCHEMA_VERSION = 1

_REMEDY = "Fetch the folder again, or make it anew with: heedful data shard"

Kind = Literal["pairs", "texts"]


class Shard(Config):
    """Entry of a shard in the index."""

    file: str
    examples: PositiveInt
    bytes: PositiveInt
    # UTF-8 bytes of the texts without JSON, by which a run cuts an epoch into blocks.
    text_bytes: Annotated[int, Field(ge=0)]
    sha256: str

    @field_validator("file")
    @classmethod
    def _is_in_the_folder(cls, name: str) -> str:
        # An index from elsewhere must not make training read files outside of its folder.
        if Path(name).name != name or "\\" in name:
            raise ValueError(f"{name!r} is no file of the folder")
        return name


class ShardIndex(Config):
    """The content of `index.json`."""

    # Checked before the other fields, so that a newer index gets an error about its version.
    schema_version: PositiveInt
    kind: Kind
    languages: tuple[str, str] | None = None
    shards: Annotated[tuple[Shard, ...], Field(min_length=1)]


class ShardFolder:
    """The examples of a shard folder, numbered from 0.

    Args:
        path: path of the folder.
        kind: expected kind of the examples.

    Attributes:
        index: content of `index.json`.
        starts: number of the first example of every shard, and the number of examples.

    Raises:
        DataError: when the index is missing, damaged, or of another version or kind.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path = path
        self.index = _read_index(path)
        if self.index.kind != kind:
            raise DataError(
                f"The shards hold {self.index.kind}, and this task is trained on {kind}",
                where=str(path),
                remedy="Name another folder, or another task with --task",
            )
        sizes = [shard.examples for shard in self.index.shards]
        self.starts: npt.NDArray[np.int64] = np.cumsum([0, *sizes], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return sum(shard.text_bytes for shard in self.index.shards)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the kind and of the shards in their order."""
        # Only the index is read: shards are verified when they are read, not at the start of a run.
        parts = [f"{shard.sha256} {shard.examples}" for shard in self.index.shards]
        return hashlib.sha256("\n".join([self.index.kind, *parts]).encode()).hexdigest()

    def pairs(self, shard: int, rows: Iterable[int]) -> list[tuple[str, str]]:
        """Read sources and targets from some lines of a shard.

        Args:
            shard: number of the shard.
            rows: numbers of the lines, from 0.

        Raises:
            DataError: when the shard is missing or changed, or a line is no pair.
        """
        # The whole shard is decompressed and verified even for a few lines.
        lines, path = self._lines(shard), self._file(shard)
        return [json_pair(lines[row], f"{path}:{row + 1}") for row in rows]

    def texts(self, shard: int, rows: Iterable[int]) -> list[str]:
        """Read texts from some lines of a shard; arguments and errors are those of `pairs`."""
        lines, path = self._lines(shard), self._file(shard)
        return [json_text(lines[row], f"{path}:{row + 1}") for row in rows]

    def line_of(self, number: int) -> str:
        """Return the location of an example as "file:line"."""
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        return f"{self._file(shard)}:{number - int(self.starts[shard]) + 1}"

    def _file(self, shard: int) -> Path:
        return self.path / self.index.shards[shard].file

    def _lines(self, shard: int) -> list[str]:
        entry, path = self.index.shards[shard], self._file(shard)
        content = _checked_content(path, entry)
        try:
            # Split at line feeds only: `splitlines` also splits at other characters inside a text.
            lines = gzip.decompress(content).decode().split("\n")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise DataError(
                f"The shard cannot be read: {error}", where=str(path), remedy=_REMEDY
            ) from None
        if lines.pop() != "" or len(lines) != entry.examples:
            raise DataError(
                f"The shard has {len(lines):,} lines, and the index says {entry.examples:,}",
                where=str(path),
                remedy=_REMEDY,
            )
        return lines


def _checked_content(path: Path, entry: Shard) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read()
    except FileNotFoundError:
        raise DataError("The shard is missing", where=str(path), remedy=_REMEDY) from None
    except OSError as error:
        raise DataError(
            f"The shard cannot be read: {error.strerror or error}",
            where=str(path),
            remedy="Check the disk and the permissions",
        ) from None
    if len(content) < entry.bytes:  # a broken download, which deserves a clearer message
        raise DataError(
            f"The shard is cut short: {len(content):,} of {entry.bytes:,} bytes",
            where=str(path),
            remedy=_REMEDY,
        )
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise DataError(
            "The shard is not the one that the index describes: its SHA-256 differs",
            where=str(path),
            remedy=_REMEDY,
        )
    return content


def _read_index(folder: Path) -> ShardIndex:
    path = folder / SHARD_INDEX
    try:
        with open_regular(path) as file:
            content = json.loads(file.read())
        version = content["schema_version"]
    except FileNotFoundError:
        raise DataError(
            f"The folder is not one of shards: there is no {SHARD_INDEX}",
            where=str(folder),
            remedy="Make one with: heedful data shard CORPUS --out FOLDER",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"The index cannot be read: {error}", where=str(path), remedy=_REMEDY
        ) from None
    if version != SCHEMA_VERSION:
        raise DataError(
            f"The index is of schema version {version!r}, and this program reads {SCHEMA_VERSION}",
            where=str(path),
            remedy="Update Heedful, or make the folder anew with: heedful data shard",
        )
    # The version is checked before the fields, which another version may have changed.
    try:
        return ShardIndex.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        what = validation_error(ShardIndex, error, None).what
        raise DataError(f"The index is damaged: {what}", where=str(path), remedy=_REMEDY) from None


def open_shards(specs: Iterable[CorpusSpec], kind: Kind) -> list[ShardFolder]:
    """Open the shard folders of a run.

    Args:
        specs: corpora, each a shard folder.
        kind: expected kind of the examples.

    Raises:
        DataError: as for `ShardFolder`, and when one folder has the languages of another reversed.
    """
    folders = []
    for spec in specs:
        assert spec.shards is not None
        folders.append(ShardFolder(Path(spec.shards), kind))
    # Languages are optional; a folder with reversed ones would train the wrong direction.
    named = {folder.index.languages: folder for folder in folders if folder.index.languages}
    for languages, folder in named.items():
        other = named.get(languages[::-1])
        if other is not None and languages[0] != languages[1]:
            raise DataError(
                f"The languages are mixed up: {' to '.join(languages)} here, the reverse in "
                f"{other.path}",
                where=str(folder.path),
                remedy="Make one of them anew with the sides exchanged; for one model of both "
                "directions, mark each source with its direction and leave out --languages",
            )
    return folders
