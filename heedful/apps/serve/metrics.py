"""Metrics of a server in Prometheus' format."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import psutil
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

from heedful.apps.serve.scheduler import ComputedBatch

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus-client for the folder in which workers store their counts."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Metrics of one process; `text` adds up those of all workers."""

    def __init__(self) -> None:
        # Workers store counts in files, which are read by a registry without metrics.
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry, multiprocess_mode="livesum")
        self.requests = counter("heedful_requests", "Requests answered", ["path", "status"])
        self.latency = histogram(
            "heedful_request_seconds",
            "Seconds from a request's arrival to its answer",
            ["path"],
            buckets=_SECONDS,
        )
        self.refusals = counter("heedful_refusals", "Requests refused", ["reason"])
        self.texts = counter("heedful_texts", "Texts computed")
        self.tokens = counter("heedful_source_tokens", "Tokens of texts computed")
        self.prompt_tokens = counter("heedful_prompt_tokens", "Tokens of prompts continued")
        self.cached_tokens = counter(
            "heedful_cached_prompt_tokens", "Tokens of prompts found in the prefix cache"
        )
        self.batch_texts = histogram("heedful_batch_texts", "Texts of a batch", buckets=_SIZES)
        self.batch_seconds = histogram(
            "heedful_batch_seconds", "Seconds that a batch took", buckets=_SECONDS
        )
        self.wait = histogram(
            "heedful_wait_seconds",
            "Seconds that the oldest text of a batch waited",
            buckets=_SECONDS,
        )
        self._waiting = gauge("heedful_waiting", "Texts that wait")
        self._computing = gauge("heedful_computing", "Texts that are computed now")
        self._memory = gauge("heedful_memory_bytes", "Resident memory")

    def observe(self, batch: ComputedBatch) -> None:
        """Record a computed batch."""
        self.texts.inc(batch.texts)
        self.tokens.inc(batch.tokens)
        self.batch_texts.observe(batch.texts)
        self.batch_seconds.observe(batch.seconds)
        self.wait.observe(batch.waited)

    def observe_prompt(self, tokens: int, cached: int) -> None:
        """Record a prompt that was looked up in the prefix cache."""
        self.prompt_tokens.inc(tokens)
        self.cached_tokens.inc(cached)

    def watch(self, waiting: Callable[[], int], computing: Callable[[], int]) -> None:
        """Read the lengths of the queue from a scheduler whenever metrics are read."""
        self._sources = (waiting, computing)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        waiting, computing = self._sources
        self._waiting.set(waiting())
        self._computing.set(computing())
        self._memory.set(psutil.Process().memory_info().rss)
        if FOLDER_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)
