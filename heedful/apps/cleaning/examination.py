"""Application of all rules to a corpus, which is read once, in chunks.

Checking and cleaning share it, so cleaning removes exactly the pairs that a check counts. A pair
takes 32 bytes of memory while the corpus is read (three keys, a bit for each rule, four comparisons
with neighbours) and about 60 when repeats are sorted.
"""

from __future__ import annotations

import heapq
import multiprocessing
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.pool import AsyncResult

import numpy as np
import numpy.typing as npt

from heedful.apps.cleaning.cleaning_settings import CleaningSettings, RuleName
from heedful.apps.cleaning.corpus_statistics import SideCounter
from heedful.apps.cleaning.language_check import LanguageCheck, guess_languages
from heedful.apps.cleaning.leak_index import LeakIndex
from heedful.apps.cleaning.neighbours import FARTHEST, shifted_rows
from heedful.apps.cleaning.pair_judge import (
    BIT,
    RULES,
    JudgedPairs,
    PairJudge,
    begin_judging,
    judge_pairs,
    mark,
)
from heedful.apps.cleaning.raw_pairs import RawCorpus, RawPair
from heedful.apps.cleaning.repeats import TargetCounts, past_the_first, repeated

Progress = Callable[[int, int, str], None]
"""Receiver of the number of finished pairs, the number of all pairs, and the name of the step."""

Scorer = Callable[[list[str], list[str]], Sequence[float]]
"""Function from sources and targets to the gain of each pair: by how much the source raises the
mean log-probability of the target's tokens."""

WORST = 100
_CHUNK = 512  # pairs for one call of the language detector and of the model


@dataclass(frozen=True)
class Tools:
    """The tools of the rules: limits, language check, test data and a model.

    Args:
        settings: limits of the rules.
        languages: check of the languages of both sides; None to skip it.
        leaks: index of the test data; None without test data.
        scorer: function of a model that scores pairs; None without a model.
        workers: number of processes that apply the rules about single pairs.
    """

    settings: CleaningSettings
    languages: LanguageCheck | None = None
    leaks: LeakIndex | None = None
    scorer: Scorer | None = None
    workers: int = 1

    def active(self) -> tuple[RuleName, ...]:
        """Rules that are applied, in their order."""
        absent = {
            "language": self.languages is None,
            "model": self.scorer is None,
            "leak": self.leaks is None,
            "near_leak": self.leaks is None,
        }
        return tuple(r for r in RULES if self.settings.is_on(r) and not absent.get(r, False))


@dataclass(frozen=True)
class Examination:
    """The rules that found each pair, and counts over the corpus.

    Args:
        found: bits of the rules that found each pair, in the order of `RULES` [pairs]; 0 for a pair
            that no rule found.
        worst: rows of the most doubtful pairs, the worst first, judged without repeats and leaks.
        source, target: statistics of each side, of all pairs that could be read.
        targets: counts of different targets, of the pairs that no other rule found.
        known_targets: number of pairs whose target is in the test data; None without test data.
    """

    found: npt.NDArray[np.uint32]
    worst: tuple[int, ...]
    source: SideCounter
    target: SideCounter
    targets: TargetCounts
    known_targets: int | None

    @property
    def kept(self) -> int:
        """Number of pairs that no rule found."""
        return int(np.count_nonzero(self.found == 0))

    def rows(self, rule: RuleName) -> npt.NDArray[np.intp]:
        """Rows of the pairs that a rule found."""
        return np.flatnonzero(self.found & BIT[rule])

    def removed_by(self, rule: RuleName) -> int:
        """Number of pairs that this rule found and no earlier one."""
        earlier = BIT[rule] - np.uint32(1)  # all lower bits
        return int(np.count_nonzero((self.found & BIT[rule] != 0) & (self.found & earlier == 0)))


def rules_of(bits: int) -> list[RuleName]:
    """Rules of a pair, in their order.

    Args:
        bits: element of `Examination.found`.
    """
    return [rule for rule in RULES if bits & int(BIT[rule])]


def prepare_languages(corpus: RawCorpus, settings: CleaningSettings) -> LanguageCheck | None:
    """Make the check of languages.

    Return None if the rule is off, or if no language makes up half of the first pairs.

    Args:
        corpus: corpus whose first pairs decide if no languages are set.
        settings: languages, and limits of the rule.

    Raises:
        ConfigError: when a language is unknown, or py3langid is not installed.
    """
    if not settings.is_on("language"):
        return None
    languages = settings.languages
    if languages is None:
        languages = guess_languages((p.source, p.target) for p in corpus if p.fault is None)
    if languages is None:
        return None
    return LanguageCheck(languages, settings.min_language_probability)


def examine(
    corpus: RawCorpus, tools: Tools, progress: Progress = lambda done, total, label: None
) -> Examination:
    """Apply the rules to every pair.

    Args:
        corpus: pairs of the corpus.
        tools: tools of the rules.
        progress: function that is called while the corpus is read.

    Raises:
        DataError: when gzip is damaged.
        ConfigError: when a library that a rule needs is not installed.
    """
    reading = _Reading(tools)
    done = 0
    for chunk, judged in _judged_chunks(corpus, tools):
        reading.add(chunk, judged)
        done += len(chunk)
        progress(done, corpus.pairs, "checked")
    # Copied, so that the array and its spare capacity are freed with the reader.
    found = np.frombuffer(reading.found, np.uint32).copy()
    pair_keys = np.frombuffer(reading.pair_keys, np.uint64)
    source_keys = np.frombuffer(reading.source_keys, np.uint64)
    if tools.settings.is_on("shifted"):
        rows = shifted_rows(np.frombuffer(reading.neighbours, np.int8).reshape(len(found), -1))
        found[rows] |= BIT["shifted"]
    if tools.settings.is_on("duplicate"):
        found[repeated(pair_keys, np.flatnonzero(found == 0))] |= BIT["duplicate"]
    # Removed pairs do not count: a duplicate must not use up the targets that a source may have.
    most = tools.settings.max_targets
    rows, targets = past_the_first(source_keys, np.flatnonzero(found == 0), most)
    if tools.settings.is_on("many_targets"):
        found[rows] |= BIT["many_targets"]
    if tools.settings.is_on("many_sources"):
        target_keys = np.frombuffer(reading.target_keys, np.uint64)
        most = tools.settings.max_sources
        found[past_the_first(target_keys, np.flatnonzero(found == 0), most)[0]] |= BIT[
            "many_sources"
        ]
    worst = tuple(row for _, row in sorted(reading.worst, reverse=True))
    return Examination(
        found,
        tuple(-row for row in worst),  # the heap holds negative rows
        reading.source,
        reading.target,
        targets,
        reading.known_targets if tools.leaks is not None else None,
    )


class _Reading:
    """Findings, keys and counts of the pairs read so far.

    Args:
        tools: tools of the rules.
    """

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.pair_keys, self.source_keys, self.target_keys = array("Q"), array("Q"), array("Q")
        self.neighbours = array("b")
        self.found = array("I")
        assert self.found.itemsize == 4  # C does not fix the size of an int
        self.worst: list[tuple[float, int]] = []
        self.source, self.target = SideCounter(), SideCounter()
        self.known_targets = 0

    def add(self, chunk: Sequence[RawPair], judged: JudgedPairs) -> None:
        """Count the pairs of a judged chunk, and apply the rules that need all tools."""
        first = len(self.found)
        bits, badness = judged.bits, judged.badness
        readable = [n for n, pair in enumerate(chunk) if pair.fault is None]
        self.pair_keys.extend(judged.pair_keys)
        self.source_keys.extend(judged.source_keys)
        self.target_keys.extend(judged.target_keys)
        self.neighbours.extend(judged.neighbours)
        self.source.add([chunk[n].source for n in readable])
        self.target.add([chunk[n].target for n in readable])
        self._add_leaks(chunk, readable, bits)
        self._add_model(chunk, bits, badness)
        self.found.extend(bits)
        for n, value in enumerate(badness):
            # Among equally doubtful pairs earlier pairs rank higher: a heap keeps the largest
            # entries.
            heap = (value, -(first + n))
            if len(self.worst) < WORST:
                heapq.heappush(self.worst, heap)
            elif heap > self.worst[0]:
                heapq.heapreplace(self.worst, heap)

    def _add_leaks(self, chunk: Sequence[RawPair], rows: list[int], bits: list[int]) -> None:
        leaks, settings = self.tools.leaks, self.tools.settings
        if leaks is None:
            return
        for n in rows:
            self.known_targets += leaks.has_target(chunk[n].target)
            if leaks.has(chunk[n].source):
                bits[n] |= int(BIT["leak"]) * settings.is_on("leak")
            elif settings.is_on("near_leak") and leaks.has_near(chunk[n].source):
                bits[n] |= int(BIT["near_leak"])

    def _add_model(self, chunk: Sequence[RawPair], bits: list[int], badness: list[float]) -> None:
        """Score the pairs that no rule has found yet, since a model is slow."""
        rows = [n for n, each in enumerate(bits) if not each]
        if self.tools.scorer is None or not self.tools.settings.is_on("model") or not rows:
            return
        gains = self.tools.scorer([chunk[n].source for n in rows], [chunk[n].target for n in rows])
        for n, gain in zip(rows, gains, strict=True):
            doubt = max(0.0, 1 + self.tools.settings.min_model_gain - gain)
            mark(bits, badness, n, "model", doubt)


def _chunks(corpus: RawCorpus) -> Iterator[list[RawPair]]:
    pairs = iter(corpus)
    while chunk := list(islice(pairs, _CHUNK)):
        yield chunk


def _judged_chunks(corpus: RawCorpus, tools: Tools) -> Iterator[tuple[list[RawPair], JudgedPairs]]:
    """Yield each chunk of pairs with its judgements, in the order of the corpus."""
    languages = tools.languages.languages if tools.languages else None
    if tools.workers == 1:
        judge = PairJudge(tools.settings, languages)
        before: list[RawPair] = []
        for chunk in _chunks(corpus):
            yield chunk, judge(before, chunk)
            before = chunk[-FARTHEST:]
        return
    # Processes are spawned: a forked one could inherit locks that threads of a library hold.
    context = multiprocessing.get_context("spawn")
    waiting: deque[tuple[list[RawPair], AsyncResult[JudgedPairs]]] = deque()
    with context.Pool(tools.workers, begin_judging, (tools.settings, languages)) as pool:
        before = []
        for chunk in _chunks(corpus):
            waiting.append((chunk, pool.apply_async(judge_pairs, (before, chunk))))
            before = chunk[-FARTHEST:]
            if len(waiting) > 2 * tools.workers:  # memory stays bounded
                first, result = waiting.popleft()
                yield first, result.get()
        for first, result in waiting:
            yield first, result.get()
