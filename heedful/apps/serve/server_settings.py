"""Settings of a server, as its parent sends them to its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heedful.apps.serve.limits import GateSettings, Limits
from heedful.device import RunningPrecision
from heedful.search.search_settings import SearchSettings


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server, which can be sent to a new process.

    Args:
        models: as the command line names them.
        device: where models run.
        precision: they run in.
        search: settings of translations.
        consistency: arguments of the `ConsistentTranslation` around translators; none if None.
        glossaries: files of terms, by the names of translators.
        soft_terms: the terms are soft.
        limits: of requests.
        gate: limits of their transport.
        most_bytes: of models in memory; None for all of them.
        most_waiting: texts that may wait.
        positions: of a batch.
        workers: processes; they share the cores.
        keys: file of API keys; anybody may ask if None.
        access_log: file of requests, - for standard error; none if None.
        files: folder of translated files, which workers share; none are translated if None.
        shared: folder in which workers share weights; they do not if None.
    """

    models: tuple[str, ...]
    device: str = "auto"
    precision: RunningPrecision = "auto"
    search: SearchSettings = field(default_factory=SearchSettings)
    consistency: Mapping[str, Any] | None = None
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
    shared: Path | None = None
