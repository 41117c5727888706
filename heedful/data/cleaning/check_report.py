"""The report on a corpus: rules and what they found, examples, the worst pairs, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heedful.data.cleaning.cleaning_settings import CleaningSettings, RuleName
from heedful.data.cleaning.corpus_statistics import SideStatistics
from heedful.data.cleaning.examination import (
    Examination,
    Progress,
    Scorer,
    Tools,
    examine,
    prepare_languages,
    rules_of,
)
from heedful.data.cleaning.leak_index import LeakIndex
from heedful.data.cleaning.pair_rules import ABOUT, pair_rules
from heedful.data.cleaning.raw_pairs import RawCorpus, RawPair
from heedful.data.corpus_spec import CorpusSpec

_EXAMPLES = 5
_LONGEST_SHOWN = 500


@dataclass(frozen=True)
class PairExample:
    """A pair with what is said about it.

    Args:
        line: where it is, from 1.
        source, target: the texts, at most 500 characters of each.
        reasons: what each rule found; empty for a pair that stays.
    """

    line: int
    source: str
    target: str
    reasons: dict[str, str]


@dataclass(frozen=True)
class RuleCount:
    """Counts and examples of one rule.

    Args:
        rule: its name.
        about: what it finds.
        pairs: pairs it found.
        removed: pairs that no earlier rule found: what cleaning counts.
        examples: the first of them.
    """

    rule: RuleName
    about: str
    pairs: int
    removed: int
    examples: tuple[PairExample, ...]


@dataclass(frozen=True)
class CheckedCorpus:
    """The report on one corpus.

    Args:
        files: its paths, each with how it is written.
        pairs: lines in it.
        kept: pairs that no rule found.
        languages: of source and target; None if they were not judged.
        rules: those applied, in the order in which they remove pairs.
        not_applied: the others.
        settings: their limits.
        sources: different sources and how many targets they have, of pairs no rule but the last
            found.
        most_targets: the sources with the most targets, and how many.
        known_targets: pairs whose target is in the test data; None without test data.
        statistics: of source and target, of all pairs that could be read.
        worst: the most doubtful pairs, the worst first; with no reasons if they stay.
    """

    files: dict[str, str]
    pairs: int
    kept: int
    languages: tuple[str, ...] | None
    rules: tuple[RuleCount, ...]
    not_applied: tuple[RuleName, ...]
    settings: CleaningSettings
    sources: dict[str, Any]
    most_targets: tuple[tuple[str, int], ...]
    known_targets: int | None
    statistics: dict[str, SideStatistics]
    worst: tuple[PairExample, ...]

    @property
    def removed(self) -> int:
        """The number of pairs that cleaning removes."""
        return self.pairs - self.kept

    def plain(self) -> dict[str, Any]:
        """The report as JSON data."""
        data = {name: value for name, value in vars(self).items() if name != "settings"}
        data["rules"] = [asdict(rule) for rule in self.rules]
        data["worst"] = [asdict(pair) for pair in self.worst]
        data["statistics"] = {side: each.plain() for side, each in self.statistics.items()}
        return {**data, "removed": self.removed, "settings": self.settings.plain()}


Prepared = tuple[RawCorpus, Tools]
"""A corpus that is open, and what its rules need."""


def prepare(
    spec: CorpusSpec,
    settings: CleaningSettings,
    *,
    against: Sequence[CorpusSpec] = (),
    scorer: Scorer | None = None,
) -> Prepared:
    """Open a corpus and gather what the rules need.

    Args:
        spec: the corpus.
        settings: limits of the rules.
        against: test data, whose sources should not be in the corpus.
        scorer: of a model.

    Raises:
        DataError: when a file is missing, empty or unreadable, or two are of different lengths.
        ConfigError: when a language is unknown, or a library is not installed.
    """
    pair_rules(settings)
    corpus = RawCorpus(spec)
    languages = prepare_languages(corpus, settings)
    leaks = LeakIndex.read(against, settings.near) if against else None
    return corpus, Tools(settings, languages, leaks, scorer)


def check_corpus(
    corpus: RawCorpus, tools: Tools, progress: Progress = lambda done, total, label: None
) -> CheckedCorpus:
    """Examine a corpus, and read what is to be shown of it.

    Args:
        corpus: the pairs.
        tools: rules and what they need, as `prepare` gives them.
        progress: told about the reading.

    Raises:
        as for `examine`.
    """
    examination = examine(corpus, tools, progress)
    described = [facts.describe() for facts in corpus.facts]  # those of a whole reading
    active = tools.active()
    first = {rule: examination.rows(rule)[:_EXAMPLES].tolist() for rule in active}
    most = [row for _, row in examination.targets.most]
    rows = {*examination.worst, *most, *(row for each in first.values() for row in each)}
    shown = _examples(corpus, tools, examination, rows)
    return CheckedCorpus(
        files=dict(zip(map(str, corpus.paths), described, strict=True)),
        pairs=corpus.pairs,
        kept=examination.kept,
        languages=tools.languages.languages if tools.languages else None,
        rules=tuple(
            RuleCount(
                rule,
                ABOUT[rule],
                len(examination.rows(rule)),
                examination.removed_by(rule),
                tuple(shown[row] for row in first[rule]),
            )
            for rule in active
        ),
        not_applied=tuple(rule for rule in ABOUT if rule not in active),
        settings=tools.settings,
        sources=examination.targets.plain(),
        most_targets=tuple((shown[row].source, n) for n, row in examination.targets.most),
        known_targets=examination.known_targets,
        statistics={
            "source": examination.source.result(),
            "target": examination.target.result(),
        },
        worst=tuple(shown[row] for row in examination.worst),
    )


def _examples(
    corpus: RawCorpus, tools: Tools, examination: Examination, rows: set[int]
) -> dict[int, PairExample]:
    """Read the pairs of some rows once more."""
    last = max(rows, default=-1)
    result = {}
    for row, pair in enumerate(corpus):
        if row in rows:
            rules = rules_of(int(examination.found[row]))
            result[row] = PairExample(
                pair.line,
                pair.source[:_LONGEST_SHOWN],
                pair.target[:_LONGEST_SHOWN],
                {rule: _detail(pair, rule, tools) for rule in rules},
            )
        if row == last:
            break
    return result


def _detail(pair: RawPair, rule: RuleName, tools: Tools) -> str:
    """A sentence part about what a rule found; empty where its name says all."""
    if pair.fault is not None:
        return pair.why
    if rule == "language" and tools.languages is not None:
        return tools.languages.detail(pair.source, pair.target)
    if rule == "model" and tools.scorer is not None:
        (gain,) = tools.scorer([pair.source], [pair.target])
        return f"gain of {gain:.2f} a token"
    for each in pair_rules(tools.settings):
        if each.name == rule:
            return each.detail(pair.source, pair.target)
    return ""
