"""Settings and limits of a server, which the parent sends to its workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heedful.device import RunningPrecision
from heedful.search.search_settings import SearchSettings
from heedful.text.tokenizer_pair import Split


@dataclass(frozen=True)
class Limits:
    """Limits of the content of a request.

    Args:
        texts: maximum number of texts in a request.
        characters: maximum number of characters of all texts of a request.
        seconds: time after which a request is cancelled.
        beam: maximum number of hypotheses of a text, samples and alternatives included.
        tokens: maximum number of tokens of a continuation.
    """

    texts: int = 1000
    characters: int = 100_000
    seconds: float = 60.0
    beam: int = 16
    tokens: int = 2048


@dataclass(frozen=True)
class Allowance:
    """The number of requests and characters that a client may send in a minute.

    Args:
        requests: number of requests; None for no limit.
        characters: number of characters of their texts; None for no limit.
    """

    requests: int | None = None
    characters: int | None = None


@dataclass(frozen=True)
class GateSettings:
    """Limits of the transport of a request.

    Args:
        host: address that the server listens on.
        body: maximum size of a body in bytes.
        file: maximum size of a body with a file in bytes.
        seconds: time in which a small body must arrive.
        origins: origins of other sites whose scripts may send requests; * for all.
        proxies: addresses and networks whose `X-Forwarded-*` headers are trusted; * for all.
    """

    host: str = "127.0.0.1"
    body: int = 2 << 20
    file: int = 20 << 20
    seconds: float = 20.0
    origins: Collection[str] = ()
    proxies: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of a server's models.

    Args:
        device: device of the models.
        precision: precision of the models.
        most_bytes: maximum size of the models in memory, in bytes; None for no limit.
        shared: folder in which workers share weights; None to load weights in each worker.
        consistency: arguments of `apps.quality.stated_writing.as_stated` for translators.
        split: parts of a text that are translated separately; None for the training setting of each
            model.
        glossaries: files of terms, by the names of translators.
        soft_terms: true if terms are soft.
        prefix_bytes: maximum size of the keys and values that each language model keeps of the
            beginnings of prompts; 0 to keep none.
    """

    device: str = "auto"
    precision: RunningPrecision = "auto"
    most_bytes: int | None = None
    shared: Path | None = None
    consistency: Mapping[str, Any] = field(default_factory=dict)
    split: Split | None = None
    glossaries: Mapping[str, Path] = field(default_factory=dict)
    soft_terms: bool = False
    prefix_bytes: int = 256_000_000


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ModelOptions):
    """Settings of a server, which can be sent to a new process.

    Args:
        models: models in the form of the command line.
        search: settings of the search for translations.
        limits: limits of requests.
        gate: limits of the transport of requests.
        most_waiting: maximum number of texts in the queue.
        positions: maximum number of positions of a batch.
        workers: number of processes, which share the cores.
        keys: file of API keys; None to serve anybody.
        access_log: file of the access log, - for standard error; None without a log.
        files: folder of translated files, which workers share; None to translate no files.
        suggestions: file of suggested translations; None to take none.
        jobs: folder of jobs, which workers share; if None, a temporary one.
        allowance: usual allowance of a client per minute.
        rates: file in which workers count the use of allowances; None without limits.
    """

    models: tuple[str, ...]
    search: SearchSettings = field(default_factory=SearchSettings)
    limits: Limits = field(default_factory=Limits)
    gate: GateSettings = field(default_factory=GateSettings)
    most_waiting: int = 1000
    positions: int = 2048
    workers: int = 1
    keys: Path | None = None
    access_log: str | None = "-"
    files: Path | None = None
    jobs: Path | None = None
    suggestions: Path | None = None
    allowance: Allowance = field(default_factory=Allowance)
    rates: Path | None = None
