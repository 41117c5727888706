"""Speed, memory and quality of a translator's settings on this machine, measured in rounds.

Each measurement is a process. A round measures every setting once, in an order of its own, so that
what else the machine does meets all of them alike. Measurements are kept as they come, and a second
call goes on where the first stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heedful.device import usable_cores
from heedful.durable import replace_synced
from heedful.errors import ConfigError, DataError, RunError
from heedful.events import Events
from heedful.interop.hf_files import is_hugging_face, read_json_file
from heedful.models.model_directory import find_model_directory, locate
from heedful.pretrained.catalogue import pinned
from heedful.search.lexical_shortlist import shortlist_path

TASK_FILE = "task.json"
MEASUREMENTS_FILE = "measurements.jsonl"

PRECISIONS = ("fp32", "bf16", "int8")
"""From the most exact one on."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A way to run a translator.

    Args:
        precision: fp32, bf16 or int8.
        beam: hypotheses of a search.
        shortlist: whether output is made of the tokens of a lexical shortlist.
        batch_tokens: positions of a batch.
        threads: of the process.
    """

    precision: str
    beam: int
    shortlist: bool
    batch_tokens: int
    threads: int

    @property
    def output(self) -> tuple[str, int, bool]:
        """The part that decides the translations: precision, beam and shortlist."""
        return self.precision, self.beam, self.shortlist

    def __str__(self) -> str:
        words = [self.precision, f"beam {self.beam}", *(["shortlist"] * self.shortlist)]
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        return ", ".join([*words, f"batch {self.batch_tokens:,}", threads])


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The values of each part of a setting; all combinations are measured.

    Args:
        precisions, beams, shortlists, batch_tokens, threads: as in `Setting`.
    """

    precisions: Sequence[str] = PRECISIONS
    beams: Sequence[int] = (1, 4)
    shortlists: Sequence[bool] = (False,)
    batch_tokens: Sequence[int] = (1024, 4096)
    threads: Sequence[int] = (1,)

    def settings(self) -> list[Setting]:
        """Return all combinations, each once, the most exact ones first.

        Raises:
            ConfigError: when a value is not positive.
        """
        numbers = {"beam": self.beams, "batch": self.batch_tokens, "thread": self.threads}
        for name, values in numbers.items():
            if not values or min(values) < 1:
                raise ConfigError(f"At least one is needed: {name}s {list(values)}")
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
        model: a directory or a name; of the hub with its commit.
        model_digest: of its config.json.
        shortlist: a file; None without.
        texts: sources, all of which are scored once.
        references: their translations.
        timed: number of texts, spread over all, that are translated in every round.
        alone: number of those that are translated by themselves.
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
        """Leave out empty lines, and look at the model and the machine.

        Args:
            model: a directory or a name.
            texts, references: as many of each.
            lines: texts that are timed.
            alone: number of texts that are translated by themselves.
            shortlist: a file in place of the model's own.

        Raises:
            DataError: when there is nothing to translate.
            UserError: and its kinds, when there is no such model.
        """
        pairs = [pair for pair in zip(texts, references, strict=True) if pair[0].strip()]
        if not pairs:
            raise DataError("There is nothing to translate: every line is empty")
        timed = min(lines, len(pairs))
        model = pinned(model)
        directory = _directory(Path(model))
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
        task: that all of them are of.
        records: by setting and round: figures, or a `problem`.
    """

    task: MeasuredTask
    records: dict[tuple[Setting, int], dict[str, Any]]

    def of(self, setting: Setting) -> list[dict[str, Any]]:
        """Return the figures of a setting, in the order of the rounds."""
        numbers = sorted(number for each, number in self.records if each == setting)
        return [self.records[setting, number] for number in numbers]

    def translations(self, setting: Setting) -> list[str] | None:
        """Return the translations of all texts by a setting that gives the same, if there are."""
        found = (
            record["translations"]
            for (other, _), record in self.records.items()
            if other.output == setting.output and "translations" in record
        )
        return next(found, None)

    def problem(self, setting: Setting) -> str | None:
        """Return why a setting is not to be had, or None."""
        found = (each["problem"] for each in self.of(setting) if "problem" in each)
        return next(found, None)


def read_measurements(task: MeasuredTask, out: Path) -> Measurements:
    """Read what a folder holds; nothing is there at first.

    Raises:
        ConfigError: when it holds measurements of something else.
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
        except (ValueError, KeyError, TypeError):  # cut off: it is measured again
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
    """Measure settings in rounds, until all are done or the time is over.

    Args:
        task: what is translated.
        settings: to measure.
        out: folder for the measurements, made if missing; those in it are not made again.
        rounds: measurements of each setting.
        minutes: after which no further measurement is begun.
        events: receive progress.

    Returns:
        All measurements of the folder.

    Raises:
        ConfigError: as `read_measurements`.
        RunError: when a process ends without an answer.
    """
    found = read_measurements(task, out)
    out.mkdir(parents=True, exist_ok=True)
    content = json.dumps(task.plain(), indent=2, ensure_ascii=False) + "\n"
    replace_synced(out / TASK_FILE, content.encode())
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
    """Measure a setting in a process of its own, which may translate all texts besides."""
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
    path = os.pathsep.join(
        filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")])
    )
    process = subprocess.run(
        [sys.executable, "-m", "heedful.apps.comparison.frontier_worker"],
        input=json.dumps(order) + "\n",
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(setting.threads)},
        check=False,
    )
    if process.returncode != 0 or not process.stdout.strip():
        words = process.stderr.strip().splitlines()[-1:] or [f"status {process.returncode}"]
        raise RunError(
            f"The process that measures ended without an answer: {words[0]}",
            where=str(setting),
            remedy="If memory was too little, leave out large batches and beams; then run again, "
            "which goes on from here",
        )
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer


def _append(file: Path, record: dict[str, Any]) -> None:
    # The line before may have no end, if the machine died while it was written.
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n" + json.dumps(record, ensure_ascii=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _load() -> float | None:
    """Return how many processes ran in the last minute, this one's included; None if unknown."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
