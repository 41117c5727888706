"""The report on a corpus: findings of each rule, examples, the worst pairs, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heedful.apps.cleaning.cleaning_settings import CleaningSettings, RuleName
from heedful.apps.cleaning.corpus_statistics import SideStatistics
from heedful.apps.cleaning.examination import (
    Examination,
    Progress,
    Scorer,
    Tools,
    examine,
    prepare_languages,
    rules_of,
)
from heedful.apps.cleaning.leak_index import LeakIndex
from heedful.apps.cleaning.pair_rules import ABOUT, pair_rules
from heedful.apps.cleaning.raw_pairs import RawCorpus, RawPair
from heedful.data.corpus_spec import CorpusSpec

_EXAMPLES = 5
_LONGEST_SHOWN = 500  # characters of a text; a line can be a whole broken file


@dataclass(frozen=True)
class PairExample:
    """A pair and the rules that found it.

    Args:
        line: line number, from 1.
        source, target: texts, cut to 500 characters.
        reasons: finding of each rule, by rule name; empty for a pair that no rule found.
    """

    line: int
    source: str
    target: str
    reasons: dict[str, str]


@dataclass(frozen=True)
class RuleCount:
    """Counts and examples of one rule.

    Args:
        rule: name of the rule.
        about: description of the rule.
        pairs: number of pairs that the rule found.
        removed: number of pairs that this rule found and no earlier rule; cleaning counts these.
        examples: first pairs that the rule found.
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
        files: description of each file's encoding, by its path.
        pairs: number of lines.
        kept: number of pairs that no rule found.
        languages: codes of the languages of source and target; None if they were not judged.
        rules: applied rules, in the order in which they remove pairs.
        not_applied: rules that were not applied.
        settings: limits of the rules.
        sources: number of different sources and a histogram of their numbers of targets, without
            the pairs that a rule other than `many_targets` found.
        most_targets: sources with the most targets, each with its number of targets.
        known_targets: number of pairs whose target is in the test data; None without test data.
        statistics: statistics of source and target, of all pairs that could be read.
        worst: most doubtful pairs, the worst first; pairs that no rule found have no reasons.
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
        """Number of pairs that cleaning removes."""
        return self.pairs - self.kept

    def plain(self) -> dict[str, Any]:
        """The report as JSON data."""
        # `asdict` would also convert settings and statistics, without calling their `plain`.
        data = {name: value for name, value in vars(self).items() if name != "settings"}
        data["rules"] = [asdict(rule) for rule in self.rules]
        data["worst"] = [asdict(pair) for pair in self.worst]
        data["statistics"] = {side: each.plain() for side, each in self.statistics.items()}
        return {**data, "removed": self.removed, "settings": self.settings.plain()}


Prepared = tuple[RawCorpus, Tools]
"""An open corpus and the tools of its rules."""


def prepare(
    spec: CorpusSpec,
    settings: CleaningSettings,
    *,
    against: Sequence[CorpusSpec] = (),
    scorer: Scorer | None = None,
    workers: int = 1,
) -> Prepared:
    """Open a corpus and load the tools of the rules.

    Args:
        spec: files of the corpus.
        settings: limits of the rules.
        against: test data, whose sources should not be in the corpus.
        scorer: function of a model that scores pairs; None without a model.
        workers: number of processes that apply the rules.

    Raises:
        DataError: when a file is missing, empty or unreadable, or two differ in length.
        ConfigError: when a language is unknown, or a library is not installed.
    """
    pair_rules(settings)  # fails early if a library is missing
    corpus = RawCorpus(spec, settings.languages)
    languages = prepare_languages(corpus, settings)
    leaks = LeakIndex.read(against, settings.near) if against else None
    return corpus, Tools(settings, languages, leaks, scorer, workers)


def check_corpus(
    corpus: RawCorpus, tools: Tools, progress: Progress = lambda done, total, label: None
) -> CheckedCorpus:
    """Examine a corpus and collect the report.

    Args:
        corpus: pairs of the corpus.
        tools: tools of the rules, from `prepare`.
        progress: function that is called while the corpus is read.

    Raises:
        UserError: as for `examine`.
    """
    examination = examine(corpus, tools, progress)
    described = [facts.describe() for facts in corpus.facts]  # reading again changes them
    active = tools.active()
    first = {rule: examination.rows(rule)[:_EXAMPLES].tolist() for rule in active}
    most = [row for _, row in examination.targets.most]
    # The examination stores row numbers only, so the texts of examples are read again.
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
        # Without test data a report has no leaks either, so rules that did not run are named.
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
    """Read the pairs of some rows again."""
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
        if row == last:  # the rest of the corpus need not be read
            break
    return result


def _detail(pair: RawPair, rule: RuleName, tools: Tools) -> str:
    """Describe a finding in a phrase; empty if the name of the rule is a sufficient description."""
    if pair.fault is not None:
        return pair.why
    if rule == "language" and tools.languages is not None:
        return tools.languages.detail(pair.source, pair.target)
    if rule == "model" and tools.scorer is not None:
        (gain,) = tools.scorer([pair.source], [pair.target])
        return f"gain of {gain:.2f} a token"
    # Details are computed for the shown pairs only: the examination stores one bit for each rule.
    for each in pair_rules(tools.settings):
        if each.name == rule:
            return each.detail(pair.source, pair.target)
    return ""
