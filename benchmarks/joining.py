"""Would sentences that join a running search be answered sooner? A bound, from measured steps.

    python benchmarks/joining.py MODEL --data DIR
    python benchmarks/joining.py MODEL --data DIR --precision int8 --beam 2

A server computes batches: a sentence that comes while one runs waits until a thread is free. It
could instead join the search after its next step. What that gains at best is found by playing both
through: seconds of a decoding step and of an encoder by the number of sentences are measured on
this machine; arrivals are random (Poisson), and lengths are those of translations of Tatoeba's and
Multi30k's sentences. Joining itself costs nothing here, which in truth it does (caches of other
lengths, copies), so the gain is a bound. Batches are chosen as the server's scheduler does.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from driver import HERE
from machine import describe_machine
from serving import read_sentences
from tables import markdown_table

from heedful.pipelines.translation import TranslationPipeline
from heedful.pretrained.catalogue import directory_of

COUNTS = (1, 2, 4, 8, 16, 32, 64)
LOADS = (0.3, 0.5, 0.7, 0.9)
THREADS = 2
MOST = 64
"""Sentences of a batch at most, or that a thread computes at a time."""
SHORT, LONG = 8, 32


@dataclass(frozen=True)
class Costs:
    """Seconds of a decoding step and of an encoder, by the number of sentences."""

    step: dict[int, float]
    begin: dict[int, float]

    def of_step(self, count: int) -> float:
        """Seconds of a step of so many sentences, interpolated."""
        return _between(self.step, count)

    def of_begin(self, count: int) -> float:
        """Seconds until so many sentences take their first step."""
        return _between(self.begin, count)


def _between(known: dict[int, float], count: int) -> float:
    below = max(n for n in known if n <= count)
    above = min((n for n in known if n >= count), default=below)
    share = 0.0 if above == below else (count - below) / (above - below)
    return known[below] + share * (known[above] - known[below])


def measure(pipeline: TranslationPipeline, text: str, beam: int, rounds: int) -> Costs:
    """Time translations of a fixed length: more steps, more sentences."""

    def seconds(count: int, length: int) -> float:
        begin = time.perf_counter()
        texts = [text] * count
        pipeline.translate(texts, beam=beam, min_length=length, max_length=length, batch_size=count)
        return time.perf_counter() - begin

    times: dict[tuple[int, int], list[float]] = {}
    for _ in range(rounds + 1):  # the first one warms up
        for count in COUNTS:
            for length in (SHORT, LONG):
                times.setdefault((count, length), []).append(seconds(count, length))
    median = {key: statistics.median(each[1:]) for key, each in times.items()}
    step = {n: (median[n, LONG] - median[n, SHORT]) / (LONG - SHORT) for n in COUNTS}
    begin = {n: max(0.0, median[n, SHORT] - SHORT * step[n]) for n in COUNTS}
    return Costs(step, begin)


@dataclass(frozen=True)
class Sentence:
    """A sentence that comes at a time and takes so many steps."""

    arrival: float
    steps: int


def arrivals(lengths: Sequence[int], rate: float, count: int, seed: int) -> list[Sentence]:
    """Draw sentences that come at random, so many a second."""
    draws, now, result = random.Random(seed), 0.0, []
    for _ in range(count):
        now += draws.expovariate(rate)
        result.append(Sentence(now, draws.choice(lengths)))
    return result


def in_batches(sentences: Sequence[Sentence], costs: Costs) -> list[float]:
    """Return the seconds that each sentence takes when batches are computed to their end."""
    free = [0.0] * THREADS
    waiting: list[Sentence] = []
    coming, seconds = list(reversed(sentences)), []
    while coming or waiting:
        now = heapq.heappop(free)
        if not waiting:
            now = max(now, coming[-1].arrival)
        while coming and coming[-1].arrival <= now:
            waiting.append(coming.pop())
        first = min(waiting, key=lambda s: s.arrival + min(0.01 * s.steps, 2.0))
        waiting.sort(key=lambda s: (s is not first, abs(s.steps - first.steps), s.arrival))
        batch, waiting = waiting[:MOST], waiting[MOST:]
        now += costs.of_begin(len(batch))
        left = sorted(s.steps for s in batch)
        for step in range(left[-1]):
            now += costs.of_step(sum(steps > step for steps in left))
        # All are answered when the batch is done.
        seconds += [now - s.arrival for s in batch]
        heapq.heappush(free, now)
    return seconds


def joined(sentences: Sequence[Sentence], costs: Costs) -> list[float]:
    """Return the seconds that each sentence takes when it joins the search that runs."""
    threads = [(0.0, number) for number in range(THREADS)]
    running: list[list[tuple[int, Sentence]]] = [[] for _ in threads]
    coming, seconds = list(reversed(sentences)), []
    while coming or any(running):
        now, number = heapq.heappop(threads)
        active = running[number]
        if not active and coming:
            now = max(now, coming[-1].arrival)
        new = 0
        # A fair share each: an idle thread takes its part of what waits.
        waiting = sum(s.arrival <= now for s in coming[-MOST:])
        share = -(-waiting // THREADS)
        while coming and coming[-1].arrival <= now and new < share and len(active) < MOST:
            sentence = coming.pop()
            active.append((sentence.steps, sentence))
            new += 1
        if new:
            now += costs.of_begin(new)
        if active:
            now += costs.of_step(len(active))
            seconds += [now - s.arrival for steps, s in active if steps == 1]
            running[number] = [(steps - 1, s) for steps, s in active if steps > 1]
        elif not coming:
            now = float("inf")
        heapq.heappush(threads, (now, number))
    return seconds


def capacity(lengths: Sequence[int], costs: Costs) -> float:
    """Return the sentences a second of full batches of like lengths."""
    ordered = sorted(lengths)
    total = 0.0
    for start in range(0, len(ordered), MOST):
        batch = ordered[start : start + MOST]
        total += costs.of_begin(len(batch))
        total += sum(costs.of_step(sum(n > step for n in batch)) for step in range(batch[-1]))
    return THREADS * len(ordered) / total


def main() -> None:
    """Measure steps, play both ways through, and write what came out."""
    arguments = _parse()
    torch.set_num_threads(1)
    pipeline = TranslationPipeline.load(
        directory_of(Path(arguments.model)), precision=arguments.precision
    )
    texts = read_sentences(arguments.data)
    translations = pipeline.translate(texts, beam=arguments.beam)
    lengths = [len(translation.tokens) + 1 for translation in translations]
    middle = sorted(texts, key=len)[len(texts) // 2]
    costs = measure(pipeline, middle, arguments.beam, arguments.rounds)
    most = capacity(lengths, costs)
    rows = [["load", "sentences/s", "p50 ms", "p95 ms", "joined: p50 ms", "p95 ms"]]
    played = []
    ways: dict[str, Callable[[Sequence[Sentence], Costs], list[float]]]
    ways = {"batches": in_batches, "joined": joined}
    for load in LOADS:
        sentences = arrivals(lengths, load * most, arguments.count, seed=1)
        percentiles = {}
        for name, way in ways.items():
            seconds = sorted(way(sentences, costs))
            assert len(seconds) == len(sentences)
            percentiles[name] = [seconds[len(seconds) // 2], seconds[int(0.95 * len(seconds))]]
        played.append({"load": load, "rate": load * most, "seconds": percentiles})
        numbers = [1000 * value for each in percentiles.values() for value in each]
        rows.append([f"{load:.1f}", f"{load * most:,.0f}", *(f"{n:,.0f}" for n in numbers)])
    out = arguments.results / arguments.name
    out.mkdir(parents=True, exist_ok=True)
    result = {
        "benchmark": arguments.name,
        "command": f"python benchmarks/joining.py MODEL --data DIR --beam {arguments.beam} "
        f"--precision {arguments.precision}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "step_seconds": costs.step,
        "begin_seconds": costs.begin,
        "sentences_per_second_of_full_batches": most,
        "played": played,
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (out / "table.md").write_text(markdown_table(rows), encoding="utf-8")
    print(markdown_table(rows))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="directory or name of a translator of English")
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--rounds", type=int, default=3, help="of the measured steps (3)")
    parser.add_argument("--count", type=int, default=20_000, help="sentences played (20,000)")
    parser.add_argument("--name", default="joining", help="of the result")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if arguments.data is None:
        print("skipped: give the corpora by --data or HEEDFUL_DATA", file=sys.stderr)
        raise SystemExit(0)
    arguments.data = Path(arguments.data)
    return arguments


if __name__ == "__main__":
    main()
