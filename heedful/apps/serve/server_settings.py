"""Settings of a server, as its parent sends them to its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heedful.apps.serve.limits import Allowance, GateSettings, Limits
from heedful.device import RunningPrecision
from heedful.search.search_settings import SearchSettings
from heedful.text.tokenizer_pair import Split


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server, which can be sent to a new process.

    Args:
        models: models in the form of the command line.
        device: device of the models.
        precision: precision of the models.
        search: settings of the search for translations.
        consistency: arguments of a `ConsistentTranslation` around translators; None without one.
        split: parts of a text that are translated apart; as each model has learned if None.
        glossaries: files of terms, by the names of translators.
        soft_terms: true if terms are soft.
        limits: limits of requests.
        gate: limits of the transport of requests.
        most_bytes: maximum size of the models in memory, in bytes; None for no limit.
        most_waiting: maximum number of texts in the queue.
        positions: maximum number of positions of a batch.
        workers: number of processes, which share the cores.
        keys: file of API keys; None to serve anybody.
        access_log: file of the access log, - for standard error; None without a log.
        files: folder of translated files, which workers share; None to translate no files.
        suggestions: file of suggested translations; None to take none.
        jobs: folder of jobs, which workers share; if None, a temporary one.
        shared: folder in which workers share weights; None to load weights in each worker.
        allowance: use that each client may make of the server in a minute.
        rates: file in which workers count that use; None without limits.
    """

    models: tuple[str, ...]
    device: str = "auto"
    precision: RunningPrecision = "auto"
    search: SearchSettings = field(default_factory=SearchSettings)
    consistency: Mapping[str, Any] | None = None
    split: Split | None = None
    glossaries: Mapping[str, Path] = field(default_factory=dict)
    soft_terms: bool = False
    limits: Limits = field(default_factory=Limits)
    gate: GateSettings = field(default_factory=GateSettings)
    most_bytes: int | None = None
    most_waiting: int = 1000
    positions: int = 2048
    workers: int = 1
    keys: Path | None = None
    access_log: str | None = "-"
    files: Path | None = None
    jobs: Path | None = None
    suggestions: Path | None = None
    shared: Path | None = None
    allowance: Allowance = field(default_factory=Allowance)
    rates: Path | None = None
