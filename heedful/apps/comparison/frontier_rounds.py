"""Speed, memory and quality of a translator's settings on this machine, measured in rounds.

Each measurement runs in a separate process. A round measures every setting once, in random order,
so that other work on the machine slows all settings alike. Every measurement is saved at once, and
a second call continues where the first one stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heedful.apps.comparison.result_files import json_file
from heedful.apps.comparison.worker_process import run_job
from heedful.device import usable_cores
from heedful.durable import replace_synced
from heedful.errors import ConfigError, DataError, RunError
from heedful.events import Events
from heedful.interop.hf_files import is_hugging_face, read_json_file
from heedful.interop.model_loading import stored_kind
from heedful.models.model_directory import find_model_directory, locate, no_translator
from heedful.pretrained.catalogue import pinned
from heedful.search.lexical_shortlist import shortlist_path

TASK_FILE = "task.json"
MEASUREMENTS_FILE = "measurements.jsonl"

PRECISIONS = ("fp32", "bf16", "int8")
"""Precisions, the most exact one first."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Options with which a translator is measured.

    Args:
        precision: fp32, bf16 or int8.
        beam: beam size of the search.
        shortlist: restriction of the output to the tokens of a lexical shortlist.
        batch_tokens: tokens of a batch, padding included.
        threads: threads of the process.
    """

    precision: str
    beam: int
    shortlist: bool
    batch_tokens: int
    threads: int

    @property
    def output(self) -> tuple[str, int, bool]:
        """The options that change translations: precision, beam and shortlist."""
        return self.precision, self.beam, self.shortlist

    def __str__(self) -> str:
        words = [self.precision, f"beam {self.beam}", *(["shortlist"] * self.shortlist)]
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        return ", ".join([*words, f"batch {self.batch_tokens:,}", threads])


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The values of each option of a setting; all combinations are measured.

    Args:
        precisions, beams, shortlists, batch_tokens, threads: values of each field of `Setting`.
    """

    precisions: Sequence[str] = PRECISIONS
    beams: Sequence[int] = (1, 4)
    shortlists: Sequence[bool] = (False,)
    batch_tokens: Sequence[int] = (1024, 4096)
    threads: Sequence[int] = (1,)

    def settings(self) -> list[Setting]:
        """Return all combinations, each once, the most exact first.

        Raises:
            ConfigError: when a value is not positive.
        """
        numbers = {"beam": self.beams, "batch": self.batch_tokens, "thread": self.threads}
        for name, values in numbers.items():
            if not values or min(values) < 1:
                raise ConfigError(f"The number of {name}s must be positive: {list(values)}")
        parts = (
            sorted(set(self.precisions), key=PRECISIONS.index),
            sorted(set(self.beams), reverse=True),
            sorted(set(self.shortlists)),
            sorted(set(self.batch_tokens)),
            sorted(set(self.threads)),
        )
        return [
            Setting(precision=p, beam=b, shortlist=s, batch_tokens=t, threads=n)
            for p, b, s, t, n in itertools.product(*parts)
        ]


@dataclass(frozen=True, kw_only=True)
class MeasuredTask:
    """The model, texts and machine, the same in all measurements of a folder.

    Args:
        model: directory or name of the model, with the commit of a model of the hub.
        model_digest: SHA-256 of the model's config.json.
        shortlist: file of the lexical shortlist; None without one.
        texts: source sentences; all of them are translated and scored once.
        references: reference translations, one for each text.
        timed: number of texts, spread evenly, that are translated in every round.
        alone: number of timed texts that are also translated one by one.
        machine: processor, cores and system.
    """

    model: str
    model_digest: str
    shortlist: str | None
    texts: tuple[str, ...]
    references: tuple[str, ...]
    timed: int
    alone: int
    machine: dict[str, Any]

    @classmethod
    def of(
        cls,
        model: str,
        texts: Sequence[str],
        references: Sequence[str],
        *,
        lines: int,
        alone: int,
        shortlist: Path | None = None,
    ) -> MeasuredTask:
        """Describe a task, without its empty lines.

        Args:
            model: directory or name of the model.
            texts, references: source sentences and their reference translations.
            lines: number of texts that are timed.
            alone: number of timed texts that are also translated one by one.
            shortlist: file that replaces the model's own shortlist.

        Raises:
            DataError: when there is nothing to translate.
            UserError: when there is no such model, or it is no translator.
        """
        pairs = [pair for pair in zip(texts, references, strict=True) if pair[0].strip()]
        if not pairs:
            raise DataError("There is nothing to translate: every line is empty")
        timed = min(lines, len(pairs))
        model = pinned(model)
        directory = _directory(Path(model))
        kind = stored_kind(directory)
        if kind not in (None, "translator"):
            raise no_translator(kind, model)
        own = shortlist_path(directory)
        file = shortlist if shortlist is not None else own if own.exists() else None
        return cls(
            model=model,
            model_digest=hashlib.sha256((directory / "config.json").read_bytes()).hexdigest(),
            shortlist=None if file is None else str(file),
            texts=tuple(text for text, _ in pairs),
            references=tuple(reference for _, reference in pairs),
            timed=timed,
            alone=min(alone, timed),
            machine=describe_machine(),
        )

    @property
    def timed_texts(self) -> list[str]:
        """The texts that are translated in every round."""
        return [self.texts[i * len(self.texts) // self.timed] for i in range(self.timed)]

    def plain(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]


def _directory(model: Path) -> Path:
    """Return the directory with the config.json of a model, ours or Hugging Face's."""
    directory = locate(model)
    return directory if is_hugging_face(directory) else find_model_directory(directory)


def describe_machine() -> dict[str, Any]:
    """Return the processor's name, the cores that may be used, and the system."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
                break
    return {"processor": name, "cores": usable_cores(), "system": platform.system()}


@dataclass(frozen=True)
class Measurements:
    """The measurements of a folder.

    Args:
        task: the task of all measurements.
        records: results by setting and round, or a `problem` where a setting cannot run.
    """

    task: MeasuredTask
    records: dict[tuple[Setting, int], dict[str, Any]]

    def of(self, setting: Setting) -> list[dict[str, Any]]:
        """Return the records of a setting, in the order of the rounds."""
        numbers = sorted(number for each, number in self.records if each == setting)
        return [self.records[setting, number] for number in numbers]

    def translations(self, setting: Setting) -> list[str] | None:
        """Return the translations by a setting of equal output; None before one is measured."""
        found = (
            record["translations"]
            for (other, _), record in self.records.items()
            if other.output == setting.output and "translations" in record
        )
        return next(found, None)

    def problem(self, setting: Setting) -> str | None:
        """Return the reason why a setting cannot run here, or None."""
        found = (each["problem"] for each in self.of(setting) if "problem" in each)
        return next(found, None)


def read_measurements(task: MeasuredTask, out: Path) -> Measurements:
    """Read the measurements of a folder, which may be empty or missing.

    Raises:
        ConfigError: when the folder holds measurements of another task.
    """
    file = out / TASK_FILE
    if file.exists():
        before, now = read_json_file(file) or {}, task.plain()
        changed = [name for name in now if before.get(name) != now[name]]
        if changed:
            raise ConfigError(
                f"The measurements here are of something else: {', '.join(changed)} "
                f"{'differ' if len(changed) > 1 else 'differs'}",
                where=str(out),
                remedy="Name another folder: --out",
            )
    records: dict[tuple[Setting, int], dict[str, Any]] = {}
    lines = out / MEASUREMENTS_FILE
    for line in lines.read_text(encoding="utf-8").splitlines() if lines.exists() else ():
        try:
            record = json.loads(line)
            records[Setting(**record["setting"]), record["round"]] = record
        except (ValueError, KeyError, TypeError):  # cut off: the setting is measured again
            continue
    return Measurements(task, records)


def measure(
    task: MeasuredTask,
    settings: Sequence[Setting],
    out: Path,
    *,
    rounds: int,
    minutes: float,
    events: Events,
) -> Measurements:
    """Measure settings in rounds, until all rounds are done or the time is over.

    Args:
        task: model and texts.
        settings: settings to measure.
        out: folder of the measurements, made if missing; existing measurements are kept.
        rounds: number of measurements of each setting.
        minutes: time limit in minutes; no measurement begins after it.
        events: receiver of progress.

    Returns:
        All measurements of the folder.

    Raises:
        ConfigError: when the folder holds measurements of another task.
        RunError: when a process ends without an answer.
    """
    found = read_measurements(task, out)
    out.mkdir(parents=True, exist_ok=True)
    replace_synced(out / TASK_FILE, json_file(task.plain()))
    end = time.monotonic() + 60 * minutes
    done, total = len(found.records), rounds * len(settings)
    for number in range(rounds):
        order = list(settings)
        random.Random(number).shuffle(order)
        for setting in order:
            if (setting, number) in found.records or found.problem(setting) is not None:
                continue
            if time.monotonic() > end:
                return found
            record = {"setting": asdict(setting), "round": number, "load": _load()}
            record |= _measured(task, setting, scored=found.translations(setting) is None)
            _append(out / MEASUREMENTS_FILE, record)
            found.records[setting, number] = record
            done += 1
            events.progress(done, total, f"round {number + 1}: {setting}")
    return found


def _measured(task: MeasuredTask, setting: Setting, *, scored: bool) -> dict[str, Any]:
    """Measure a setting in a separate process, which translates all texts if they are scored."""
    order = {
        "model": task.model,
        "precision": setting.precision,
        "beam": setting.beam,
        "shortlist": task.shortlist if setting.shortlist else None,
        "batch_tokens": setting.batch_tokens,
        "texts": task.timed_texts,
        "scored": task.texts if scored else None,
        "alone": task.alone,
    }
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        threads = {"OMP_NUM_THREADS": str(setting.threads)}
        ending = run_job("measure", order, log, environment=threads)
        log.seek(0)
        words = log.read().strip().splitlines()[-1:] or [f"status {ending.get('status')}"]
    if "result" in ending:
        figures: dict[str, Any] = ending["result"]
        return figures
    if not ending.get("is_defect", True):
        return {"problem": ending["problem"]}
    raise RunError(
        f"The measuring process ended without a result: {words[0]}",
        where=str(setting),
        remedy="If memory ran out, leave out large batches and beams; then repeat the command",
    )


def _append(file: Path, record: dict[str, Any]) -> None:
    # A machine that failed while writing may have left an incomplete line.
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n" + json.dumps(record, ensure_ascii=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _load() -> float | None:
    """Return the load average of the last minute, this process included; None if unknown."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
