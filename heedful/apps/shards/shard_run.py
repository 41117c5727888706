"""Translation of a corpus of shards into a folder, which continues an interrupted run."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.apps.shards.ray_workers import RayPool, translate_on_ray
from heedful.apps.shards.shard_paths import find_shards
from heedful.apps.shards.shard_records import ShardRecord, TranslatedFolder, digest
from heedful.apps.shards.shard_translation import (
    ShardJob,
    ShardOutcome,
    ShardWorker,
    verified,
)
from heedful.errors import UserError
from heedful.events import Events
from heedful.models.model_directory import find_model_directory

_WITHOUT_EFFECT = {"device", "batch_size", "batch_tokens", "stream"}
"""Settings of `heedful translate` that do not change translations."""


def run_shards(
    paths: Sequence[Path],
    job: ShardJob,
    settings: Mapping[str, Any],
    events: Events,
    pool: RayPool | None = None,
) -> dict[str, Any]:
    """Translate every shard that is not finished yet.

    Args:
        paths: files, patterns and folders.
        job: job of the workers.
        settings: settings of the translator as JSON data, with Heedful's version; `model`,
            `ensemble`, `shortlist` and `glossary` name files.
        events: receiver of progress and warnings.
        pool: pool of Ray actors, to which the job is sent; this process translates without one.

    Returns:
        Counts as JSON data: `shards`, `translated`, `done_before`, the reasons of `failed` shards
        by name, the translated `rows`, and the counts of the translator.

    Raises:
        UserError: when a package is missing, the folder has other settings, or no shard can be
            translated.
    """
    if pool is not None:
        _check_packages("--engine ray needs", "ray", "pyarrow")
    shards = find_shards(paths, job.out)
    if any(shard.suffix == ".parquet" for shard in shards):
        _check_packages("Shards in Parquet need the package", "pyarrow")
    deciding = _deciding(job, settings)
    folder = TranslatedFolder(job.out)
    with folder.locked():
        records = folder.open(deciding, [shard.name for shard in shards])
        pending, outcomes = verified(folder, shards, records)
        work = _Work(events, len(shards), outcomes)
        try:
            for outcome in _outcomes(pool, job, pending, work.add_rows) if pending else ():
                work.add(outcome)
        finally:
            folder.close(deciding, records | work.records)
    return work.facts()


def _check_packages(what: str, *names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{what} {' and '.join(missing)}",
            remedy="Install it with: pip install 'heedful[ray]'",
        )


def _deciding(job: ShardJob, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change translations, with digests of their files."""
    deciding = {name: value for name, value in settings.items() if name not in _WITHOUT_EFFECT}
    models = [settings["model"], *settings["ensemble"]]
    files = [each for each in (settings["shortlist"], settings["glossary"]) if each]
    return deciding | {
        "column": job.columns.text,
        "translation_column": job.columns.translation,
        "models_sha256": [_model_digest(Path(model)) for model in models],
        "files_sha256": [digest(Path(file)) for file in files if isinstance(file, str)],
    }


def _model_digest(path: Path) -> str:
    """Return the SHA-256 of the names and contents of a model's files."""
    files = sorted(file for file in find_model_directory(path).iterdir() if file.is_file())
    content = [[file.name, digest(file)] for file in files]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _outcomes(
    pool: RayPool | None, job: ShardJob, shards: list[Path], add_rows: Callable[[int], None]
) -> Iterator[ShardOutcome]:
    """Translate shards on the pool or in this process; report the number of translated rows."""
    if pool is not None:
        for outcome in translate_on_ray(job, shards, pool):
            add_rows(0 if outcome.record is None else outcome.record.rows)
            yield outcome
    else:
        worker = ShardWorker(job)
        for shard in shards:
            yield worker.translate(shard, add_rows)


class _Work:
    """The shards of a run: finished before, finished now, and failed."""

    def __init__(self, events: Events, total: int, outcomes: list[ShardOutcome]) -> None:
        self.records: dict[str, ShardRecord] = {}
        self._events, self._total = events, total
        self._failed = {each.name: each.reason for each in outcomes if each.record is None}
        self._done_before = len(outcomes) - len(self._failed)
        self._start, self._rows, self._ended = time.perf_counter(), 0, len(outcomes)
        if self._done_before:
            events.note(f"{self._done_before:,} of {total:,} shards were done before")
        self.add_rows(0)

    def add_rows(self, count: int) -> None:
        """Add a number of translated rows to the progress."""
        self._rows += count
        speed = round(self._rows / max(time.perf_counter() - self._start, 1e-9), 1)
        self._events.progress(
            self._ended, self._total, "shards", sentences=self._rows, per_second=speed
        )

    def add(self, outcome: ShardOutcome) -> None:
        """Record the outcome of a shard.

        Raises:
            UserError: when no shard can be translated.
        """
        for text in outcome.warnings:
            self._events.warn(f"{outcome.name}: {text}")
        if outcome.is_fatal:
            raise UserError(outcome.reason)
        if outcome.record is None:
            self._failed[outcome.name] = outcome.reason
        else:
            self.records[outcome.name] = outcome.record
        self._ended += 1
        self.add_rows(0)

    def facts(self) -> dict[str, Any]:
        """Report finished and failed shards; return the counts of `run_shards`."""
        counts: Counter[str] = Counter()
        for record in self.records.values():
            counts.update(record.counts)
        self._events.note(
            f"{len(self.records):,} shards translated, {self._done_before:,} done before, "
            f"{len(self._failed):,} failed"
        )
        for name, reason in sorted(self._failed.items()):
            self._events.note(f"failed: {name}: {reason}")
        return {
            **counts,
            "shards": self._total,
            "translated": len(self.records),
            "done_before": self._done_before,
            "failed": dict(sorted(self._failed.items())),
            "rows": sum(record.rows for record in self.records.values()),
        }
