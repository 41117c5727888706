"""The folder of translated shards, with its settings, locks and records of finished shards.

`heedful-shards.json` has the settings and, after a run, a record of every shard. During a run each
worker writes the records of its shards to `.heedful-shards/`, so finished shards are known however
the run ends. A shard is published by a hard link, which the file system creates only once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from heedful.durable import replace_synced, sync, try_lock, whole
from heedful.errors import DataError, RunError

MANIFEST = "heedful-shards.json"
_WORK = ".heedful-shards"
_OTHER_WORKER_SECONDS = 5.0
"""Maximum seconds from the link of a shard to its record: two small writes on a slow network
disk."""


@dataclass(frozen=True)
class ShardRecord:
    """The record of a translated shard.

    Args:
        rows: number of lines of text, or of rows of a table.
        input_sha256: SHA-256 of the shard, in hexadecimal.
        output_sha256: SHA-256 of its translation, in hexadecimal.
        seconds: seconds of its translation.
        counts: tokens and other counts of the command.
    """

    rows: int
    input_sha256: str
    output_sha256: str
    seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)


class TranslatedFolder:
    """A folder for the translations of all shards.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._work = path / _WORK

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and lock it against other runs.

        Raises:
            RunError: when another run uses the folder.
        """
        self._work.mkdir(parents=True, exist_ok=True)
        with (self._work / "lock").open("ab") as lock:
            if not try_lock(lock.fileno()):
                raise RunError(
                    "Another run translates shards into this folder",
                    where=str(self.path),
                    remedy="Wait until it has ended, or choose another folder",
                )
            for file in self._work.iterdir():  # partial shards of a run that was killed
                if file.suffix in (".partial", ".attempt"):
                    file.unlink(missing_ok=True)
            yield
            shutil.rmtree(self._work, ignore_errors=True)

    def open(self, settings: Mapping[str, Any], names: list[str]) -> dict[str, ShardRecord]:
        """Begin or continue the folder, while it is `locked`.

        Args:
            settings: settings that translations depend on, as JSON data.
            names: names of all shards.

        Returns:
            The records of finished shards.

        Raises:
            DataError: when the folder has other settings, or other files of these names.
        """
        manifest = self.path / MANIFEST
        if not manifest.exists():
            for name in names:
                if (self.path / name).exists():
                    raise DataError(
                        f"The folder has a file of this name, and no {MANIFEST} that knows it",
                        where=str(self.path / name),
                        remedy="Choose another folder, or move the file away",
                    )
            self.close(settings, {})
            return {}
        stored = _read(manifest)
        if stored.get("settings") != dict(settings):
            changed = _differences(stored.get("settings", {}), settings)
            raise DataError(
                f"Shards in this folder were translated with other settings: {changed}",
                where=str(manifest),
                remedy="Give the same settings, or another folder",
            )
        known = stored.get("shards", {})
        for path in sorted(self._work.glob("*.record")):
            known[path.name.removesuffix(".record")] = _read(path)
        try:
            records = {name: ShardRecord(**record) for name, record in known.items()}
        except (AttributeError, TypeError):
            raise _damaged(manifest) from None
        # Workers trust records, so those of earlier runs are removed until this run verifies them.
        self.close(settings, records)
        for path in self._work.glob("*.record"):
            path.unlink()
        return records

    def close(self, settings: Mapping[str, Any], records: Mapping[str, ShardRecord]) -> None:
        """Write the manifest, with the records of all finished shards."""
        shards = {name: asdict(records[name]) for name in sorted(records)}
        content = {"settings": dict(settings), "shards": shards}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        replace_synced(self.path / MANIFEST, text.encode())

    def record(self, name: str) -> ShardRecord | None:
        """Return the record of a shard from this run or from a killed one, or None."""
        path = self._work / f"{name}.record"
        return ShardRecord(**_read(path)) if path.exists() else None

    def is_whole(self, name: str, record: ShardRecord) -> bool:
        """Return True if the translated shard exists.

        Raises:
            DataError: when the file was changed after it was written.
        """
        path = self.path / name
        if not path.exists():
            return False
        if digest(path) != record.output_sha256:
            raise DataError(
                "The translated shard was changed after it was written",
                where=str(path),
                remedy="Move it away to have it written again",
            )
        return True

    def attempt(self, name: str) -> int:
        """Count an attempt at a shard; return the number of attempts in this run."""
        for number in itertools.count(1):
            try:
                (self._work / f"{name}.{number}.attempt").open("x").close()
            except FileExistsError:
                continue
            return number
        raise AssertionError

    @contextmanager
    def partial(self, name: str) -> Iterator[Path]:
        """A context with a file for a shard being written, which no other worker uses."""
        path = self._work / f"{name}.{uuid.uuid4().hex}.partial"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def publish(self, name: str, partial: Path, record: ShardRecord) -> ShardRecord:
        """Publish a translated shard, unless another worker has done so.

        Args:
            name: name of the shard.
            partial: file with the whole translated shard.
            record: record of the translated shard.

        Returns:
            The record of the published shard.

        Raises:
            DataError: when another file has its name.
        """
        sync(partial)
        path = self.path / name
        try:
            os.link(partial, path)
        except FileExistsError:
            if digest(path) != record.output_sha256:
                return self._other_record(name)
        sync(self.path)
        with whole(self._work / f"{name}.record") as file:
            file.write(json.dumps(asdict(record)).encode())
        return record

    def _other_record(self, name: str) -> ShardRecord:
        """Wait for the record of another worker, whose processor may have rounded differently."""
        until = time.monotonic() + _OTHER_WORKER_SECONDS
        while time.monotonic() < until:
            if (record := self.record(name)) is not None:
                return record
            time.sleep(0.1)
        raise DataError(
            "Another file already has the name of the translated shard",
            where=str(self.path / name),
            remedy="Move it away to have the translation written",
        )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    if not isinstance(content, dict):
        raise _damaged(path)
    return content


def _damaged(path: Path) -> DataError:
    return DataError(
        "This record of translated shards is damaged",
        where=str(path),
        remedy="Choose another folder, or remove it with the shards that it names",
    )


def _differences(stored: Any, settings: Mapping[str, Any]) -> str:
    """Describe the settings that differ, such as "beam was 4 and is 5"."""
    if not isinstance(stored, dict):
        return "none are recorded"
    names = [name for name in {**stored, **settings} if stored.get(name) != settings.get(name)]
    return "; ".join(
        f"{name} was {json.dumps(stored.get(name))} and is {json.dumps(settings.get(name))}"
        for name in names
    )
