"""Translation of one shard by any worker: attempts, retries and a single publication."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heedful.apps.shards.shard_forms import TableColumns, translate_parquet, translate_text
from heedful.apps.shards.shard_records import ShardRecord, TranslatedFolder, digest
from heedful.data.text_file import file_form
from heedful.errors import RunError, UserError

Warn = Callable[[str], None]
Progress = Callable[[int], None]

_WARNINGS = 10
"""Maximum number of warnings that are kept per shard, which could have one for each line."""


class LineTranslator(Protocol):
    """A translator of lines that serves many shards."""

    def translate(self, texts: list[str], first_line: int, warn: Warn) -> list[str]:
        """Return an output line, without line end, for each text; `first_line` is a line number."""

    def counts(self) -> dict[str, int]:
        """Return the counts since the last call, and reset them."""


@dataclass(frozen=True)
class ShardJob:
    """The settings of a worker, which are sent to other machines.

    Args:
        out: absolute path of the folder of translated shards, to which all workers can write.
        columns: columns of tables.
        load: function that loads the translator.
        retries: number of further attempts for a shard.
        threads: threads of a worker on another machine.
        cwd: folder that relative paths start from.
    """

    out: Path
    columns: TableColumns
    load: Callable[[], LineTranslator]
    retries: int
    threads: int
    cwd: Path


@dataclass(frozen=True)
class ShardOutcome:
    """The outcome of the translation of one shard.

    Args:
        name: name of the shard.
        record: record of the translated shard; None if it failed.
        reason: reason of a failure.
        warnings: first warnings.
        is_fatal: true if no other shard can be translated either.
    """

    name: str
    record: ShardRecord | None = None
    reason: str = ""
    warnings: tuple[str, ...] = ()
    is_fatal: bool = False


class ShardWorker:
    """A worker that translates shards one after the other with one translator.

    Args:
        job: job of the run.

    Raises:
        UserError: when the translator cannot be loaded.
    """

    def __init__(self, job: ShardJob) -> None:
        self.job = job
        self.folder = TranslatedFolder(job.out)
        self.translator = job.load()

    def translate(self, shard: Path, progress: Progress = lambda rows: None) -> ShardOutcome:
        """Translate a shard and publish it, unless it is finished already.

        Args:
            shard: absolute path of a shard of the run.
            progress: function called with the number of rows translated since the last call.
        """
        reason = "the worker ended each time, perhaps for want of memory"
        while True:
            if (record := self.folder.record(shard.name)) is not None:
                return ShardOutcome(shard.name, record)
            attempt = self.folder.attempt(shard.name)
            if attempt > self.job.retries + 1:
                reason = f"{reason} (tried {attempt - 1} times)"
                return ShardOutcome(shard.name, reason=reason)
            warnings: list[str] = []
            try:
                record = self._publish(shard, warnings.append, progress)
            except RunError as error:  # an error of the machine: another attempt may succeed
                reason = str(error)
            except UserError as error:  # an error of the shard, which would fail again
                return ShardOutcome(shard.name, reason=str(error), warnings=_few(warnings))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                return ShardOutcome(shard.name, record, warnings=_few(warnings))
            time.sleep(min(0.5 * attempt, 10.0))

    def _publish(self, shard: Path, warn: Warn, progress: Progress) -> ShardRecord:
        start, rows = time.perf_counter(), 0
        self.translator.counts()
        with self.folder.partial(shard.name) as partial:
            try:
                for count in self._translated(shard, partial, warn):
                    rows += count
                    progress(count)
            except BaseException:
                progress(-rows)
                raise
            record = ShardRecord(
                rows,
                digest(shard),
                digest(partial),
                round(time.perf_counter() - start, 3),
                self.translator.counts(),
            )
            return self.folder.publish(shard.name, partial, record)

    def _translated(self, shard: Path, partial: Path, warn: Warn) -> Iterator[int]:
        def translate(texts: list[str], first_line: int) -> list[str]:
            return self.translator.translate(texts, first_line, warn)

        columns = self.job.columns
        with partial.open("wb") as output:
            if (form := file_form(shard)) == ".parquet":
                yield from translate_parquet(shard, output, translate, columns)
            else:
                yield from translate_text(shard, form, output, translate, columns)


def verified(
    folder: TranslatedFolder, shards: list[Path], records: Mapping[str, ShardRecord]
) -> tuple[list[Path], list[ShardOutcome]]:
    """Compare finished shards with their records.

    Args:
        folder: folder of the translated shards.
        shards: paths of the shards of the run.
        records: records of finished shards.

    Returns:
        The shards still to translate, and the outcomes of the others.
    """
    pending, outcomes = [], []
    for shard in shards:
        record = records.get(shard.name)
        try:
            if record is None or not folder.is_whole(shard.name, record):
                pending.append(shard)
            elif digest(shard) != record.input_sha256:
                reason = "The shard was changed after it was translated; move its translation away "
                reason += "to have it translated again"
                outcomes.append(ShardOutcome(shard.name, reason=reason))
            else:
                outcomes.append(ShardOutcome(shard.name, record))
        except UserError as error:
            outcomes.append(ShardOutcome(shard.name, reason=str(error)))
    return pending, outcomes


def _few(warnings: list[str]) -> tuple[str, ...]:
    more = len(warnings) - _WARNINGS
    return (*warnings[:_WARNINGS], *([f"{more:,} more warnings"] if more > 0 else []))
