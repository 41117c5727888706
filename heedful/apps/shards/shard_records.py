"""The folder of translated shards: which are done, by what settings, and who writes there.

`heedful-shards.json` has the settings and, after a run, a record of every shard. While a run lasts,
each shard leaves its record in `.heedful-shards/`, written by the worker that made it; so whatever
ends, what was done is known. A shard is published by a hard link, which the file system makes once.
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
"""From the link of a shard to its record: two small writes, on a slow network disk."""


@dataclass(frozen=True)
class ShardRecord:
    """A shard that is done.

    Args:
        rows: lines of text, or rows of a table.
        input_sha256: of the shard, in hexadecimal.
        output_sha256: of its translation.
        seconds: that its translation took.
        counts: of tokens, and of what else the command counts.
    """

    rows: int
    input_sha256: str
    output_sha256: str
    seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)


class TranslatedFolder:
    """A folder that holds, or will hold, the translation of every shard.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._work = path / _WORK

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of it.

        Raises:
            RunError: when another run works there.
        """
        self._work.mkdir(parents=True, exist_ok=True)
        with (self._work / "lock").open("ab") as lock:
            if not try_lock(lock.fileno()):
                raise RunError(
                    "Another run translates shards into this folder",
                    where=str(self.path),
                    remedy="Wait until it has ended, or choose another folder",
                )
            for file in self._work.iterdir():  # of a run that was killed
                if file.suffix in (".partial", ".attempt"):
                    file.unlink(missing_ok=True)
            yield
            shutil.rmtree(self._work, ignore_errors=True)

    def open(self, settings: Mapping[str, Any], names: list[str]) -> dict[str, ShardRecord]:
        """Begin or continue to fill the folder, while it is `locked`.

        Args:
            settings: on which translations depend, as JSON data.
            names: of all shards.

        Returns:
            The records of shards that are done.

        Raises:
            DataError: when the folder was filled with other settings, or has files of these names.
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
        # Workers take a shard with a record for done, which another run must find out anew.
        self.close(settings, records)
        for path in self._work.glob("*.record"):
            path.unlink()
        return records

    def close(self, settings: Mapping[str, Any], records: Mapping[str, ShardRecord]) -> None:
        """Write the manifest, with the records of all shards that are done."""
        shards = {name: asdict(records[name]) for name in sorted(records)}
        content = {"settings": dict(settings), "shards": shards}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        replace_synced(self.path / MANIFEST, text.encode())

    def record(self, name: str) -> ShardRecord | None:
        """The record that a worker of this run or a killed one left of a shard."""
        path = self._work / f"{name}.record"
        return ShardRecord(**_read(path)) if path.exists() else None

    def is_whole(self, name: str, record: ShardRecord) -> bool:
        """Return True if the translated shard is there.

        Raises:
            DataError: when it is another than was written.
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
        """Note that a worker begins with a shard; return how many have in this run."""
        for number in itertools.count(1):
            try:
                (self._work / f"{name}.{number}.attempt").open("x").close()
            except FileExistsError:
                continue
            return number
        raise AssertionError

    @contextmanager
    def partial(self, name: str) -> Iterator[Path]:
        """A place for a shard that is being written, which no other worker has."""
        path = self._work / f"{name}.{uuid.uuid4().hex}.partial"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def publish(self, name: str, partial: Path, record: ShardRecord) -> ShardRecord:
        """Put a translated shard in its place, unless another worker has.

        Args:
            name: of the shard.
            partial: the whole translated shard.
            record: of it.

        Returns:
            The record of the shard that is in place now.

        Raises:
            DataError: when something else is there.
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
        """The record of another worker, whose processor may round otherwise; wait for it a bit."""
        until = time.monotonic() + _OTHER_WORKER_SECONDS
        while time.monotonic() < until:
            if (record := self.record(name)) is not None:
                return record
            time.sleep(0.1)
        raise DataError(
            "Another file has the place of the translated shard",
            where=str(self.path / name),
            remedy="Move it away to have the translation written",
        )


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
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
    """Name what differs: "beam was 4 and is 5"."""
    if not isinstance(stored, dict):
        return "none are recorded"
    names = [name for name in {**stored, **settings} if stored.get(name) != settings.get(name)]
    return "; ".join(
        f"{name} was {json.dumps(stored.get(name))} and is {json.dumps(settings.get(name))}"
        for name in names
    )
