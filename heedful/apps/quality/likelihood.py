"""Likelihoods of given translations, compared with repaired translations and with other sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from heedful.apps.quality.model_checks import evidence_of_relation, token_spans
from heedful.apps.quality.name_check import FileWords, NameRepairs, Repair, file_words
from heedful.apps.quality.reports import CheckResult, Evidence, Languages, counted
from heedful.apps.quality.wording_checks import SHORT_OF_A_MARK, has_final_mark

if TYPE_CHECKING:
    from heedful.pipelines.text_splitting import TargetScore, Warn
    from heedful.pipelines.translation import TranslationPipeline

FEWEST_PAIRS = 20
"""Minimum number of pairs for comparisons with other sources and for the detection of names."""

NEIGHBOURS = (7, 13)
"""Distances in lines of other sources; neighbouring lines may be from one text."""

# Mean gain of a token by the second half of the source, for each deviation of the length: the
# shorter a translation, the more it must gain. 98 % of human translations reach it.
_LEAST_HALF = 0.25
# Log-probability of the token after the last word: it is lower in 0.7 % of short human
# translations, and in 98 % of translations whose second half was removed (300 validation pairs of
# Tatoeba). On news the mean token has -6 (`en-de`), so the end must also be less probable than it.
_LEAST_END = -5.0
_BELOW_MEAN = 2.0
_PLAIN_END = re.compile(r"[\w)][.!?…]?\s*\Z")
_SHORT = -0.3  # deviation of the length below which a translation counts as short
# Beside an empty source alone, 0.95 of unrelated news are below it and 0.02 of clean news.
_LEAST_EVIDENCE = 0.75
_UNRELATED_FOUND = 0.95  # 0.96 finds 0.01 more and alarms on 0.2 % more of clean news
_MOST_EVIDENCE = 1.2  # in files whose lines are alike, the sources of others nearly fit, too
_SURE_NAME = 8.0  # log-probability that a word gains by the source if it is its translation


class ScoredPair(NamedTuple):
    """A pair and its scores.

    Args:
        place: index of the pair among all.
        source, target: texts.
        score: log-probabilities of the target's tokens given the source.
    """

    place: int
    source: str
    target: str
    score: TargetScore


class Likelihood:
    """Scores of a model for pairs, and for their targets with other sources.

    Args:
        pipeline: translator.
        pairs: pairs to compare.
        sources: sources of all pairs, in the order of their file.
        given: True for translations that the model did not make, which are compared with more
            sources.
        warn: function called with a message when memory ran out and a batch was split.
    """

    def __init__(
        self,
        pipeline: TranslationPipeline,
        pairs: Sequence[ScoredPair],
        sources: Sequence[str],
        *,
        given: bool,
        warn: Warn | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.pairs = pairs
        self.given = given
        self.warn = warn
        self.is_corpus = given and len(sources) >= FEWEST_PAIRS
        # None stands for an empty source.
        distances: tuple[int | None, ...] = (None, *NEIGHBOURS) if self.is_corpus else (None,)
        targets = [pair.target for pair in pairs]
        self.others = [
            self._score(
                ["" if by is None else sources[(p.place + by) % len(sources)] for p in pairs],
                targets,
            )
            for by in distances
        ]

    def _score(self, sources: Sequence[str], targets: Sequence[str]) -> list[TargetScore]:
        return self.pipeline.score(sources, targets, warn=self.warn) if sources else []

    def gains(self, number: int, by: int | None = None) -> list[float]:
        """Return the mean gain of a token from the source, compared with each of the other sources.

        Args:
            number: index of the pair.
            by: distance of another source in the file, one of `NEIGHBOURS`, whose gains are
                returned instead; None for the pair's own source.
        """
        score, others = self.pairs[number].score, self.others
        if by is not None:
            chosen = 1 + NEIGHBOURS.index(by)
            score = others[chosen][number]
            rest = others[1:chosen] + others[chosen + 1 :]
            others = [others[0], *rest, *rest]  # as much weight of an empty source
        count = max(len(score.token_scores), 1)
        return [(score.score - other[number].score) / count for other in others]

    def names(self, languages: Languages, least: float) -> list[CheckResult]:
        """Return a check of the names of each pair.

        Args:
            languages: codes of source and target language, None where unknown.
            least: minimum gain of log-probability by a repair that reports a wrong name.
        """
        sources = targets = FileWords(frozenset(), frozenset())
        if self.is_corpus:
            sources = file_words([each.source for each in self.pairs], languages[0])
            targets = file_words([each.target for each in self.pairs], languages[1])
        repairs = NameRepairs(languages, sources, targets, self._is_common)
        found: list[list[Evidence]] = [[] for _ in self.pairs]
        jobs: list[tuple[int, Repair]] = []
        for number, pair in enumerate(self.pairs):
            for repair in repairs.find(pair.source, pair.target):
                if repair.is_certain:
                    found[number] = found[number] or _evidence(repair)
                elif self._support(number, repair) < _SURE_NAME:
                    jobs.append((number, repair))
        scores = self._score(
            [self.pairs[number].source for number, _ in jobs], [each.text for _, each in jobs]
        )
        for (number, repair), score in zip(jobs, scores, strict=True):
            if score.score - self.pairs[number].score.score > least:
                found[number] = found[number] or _evidence(repair)
        return [counted("names", each) for each in found]

    def _is_common(self, word: str) -> bool:
        """Return True for a capitalised word that has fewer tokens in lower case."""
        encode = self.pipeline.tokenizers.source.encode
        # "Ministry" has four tokens and "ministry" three; "Tom" and "tom" have equally many.
        return len(encode(word.casefold())) < len(encode(word))

    def _support(self, number: int, repair: Repair) -> float:
        """Return the log-probability that the replaced word of a repair gains by the source."""
        pair = self.pairs[number]
        inside = [
            index
            for index, start, end in token_spans(pair.target, pair.score.tokens)
            if start < repair.word.end and end > repair.word.start
        ]
        count = len(pair.score.token_scores)
        if any(len(other[number].token_scores) != count for other in self.others):
            return _SURE_NAME  # the tokens of the search differ from those of its text
        own = sum(pair.score.token_scores[index] for index in inside)
        return max(
            own - sum(other[number].token_scores[index] for index in inside)
            for other in self.others[:2]
        )

    def unfinished(self, lengths: Sequence[CheckResult]) -> list[CheckResult]:
        """Return the checks for short translations, which also fail if the end is missing.

        A short translation is cut off if the model expects another word where it ends, or if it is
        hardly less probable when only the first half of the source is known.

        Args:
            lengths: check for a short translation, for each pair.
        """
        found = list(lengths)
        doubted = []
        for number, each in enumerate(lengths):
            if each.failed or each.value >= _SHORT:
                continue
            if self._ends_early(number):
                found[number] = self._cut_off(number, each)
            elif each.value < SHORT_OF_A_MARK:
                doubted.append(number)
        halves = self._score(
            [_first_half(self.pairs[n].source) for n in doubted],
            [self.pairs[n].target for n in doubted],
        )
        for number, half in zip(doubted, halves, strict=True):
            score = self.pairs[number].score
            gain = (score.score - half.score) / max(len(score.token_scores), 1)
            if gain < _LEAST_HALF * -lengths[number].value:
                found[number] = self._cut_off(number, lengths[number])
        return found

    def _ends_early(self, number: int) -> bool:
        """Return True if punctuation or the end is improbable after the last word.

        Models expect a full stop, so nothing is said of headlines and of quotation marks.
        """
        pair = self.pairs[number]
        if not _PLAIN_END.search(pair.target) or not (
            has_final_mark(pair.source) or has_final_mark(pair.target)
        ):
            return False
        words = [
            index
            for index, start, end in token_spans(pair.target, pair.score.tokens)
            if any(map(str.isalnum, pair.target[start:end]))
        ]
        after = words[-1] + 1 if words else -1
        if any(map(str.isalnum, "".join(pair.score.tokens[after : after + 1]))):
            return False  # an unknown token is a word, too
        scores = pair.score.token_scores
        mean = pair.score.score / max(len(scores), 1)
        return scores[after] < min(_LEAST_END, mean - _BELOW_MEAN)

    def _cut_off(self, number: int, length: CheckResult) -> CheckResult:
        end = len(self.pairs[number].target)
        evidence = (Evidence("target", end, end, "", "the end is missing"),)
        return replace(length, failed=True, evidence=evidence)


def least_evidence(directions: Sequence[Likelihood], sources: Sequence[str]) -> float:
    """Return the evidence that pairs need in order to belong together.

    In a file of given translations, most of them do not reach it with the source of another line.
    In a familiar domain it is 0.9 to 1.1, in news, whose words the model does not know, 0.4.

    Args:
        directions: likelihoods of the targets, and of the sources where there is a reverse model.
        sources: sources of all pairs, in the order of their file.
    """
    pairs = directions[0].pairs
    unrelated = [
        evidence_of_relation(other, pair.target, [g for d in directions for g in d.gains(n, by)])
        for n, pair in enumerate(pairs)
        for by in NEIGHBOURS
        if directions[0].is_corpus
        if (other := sources[(pair.place + by) % len(sources)]) != pair.source
    ]
    if len(unrelated) < FEWEST_PAIRS:
        return _LEAST_EVIDENCE
    return min(sorted(unrelated)[int(_UNRELATED_FOUND * len(unrelated))], _MOST_EVIDENCE)


def _evidence(repair: Repair) -> list[Evidence]:
    name, word = repair.name, repair.word
    return [
        Evidence("source", name.start, name.end, name.text, "another name there"),
        Evidence("target", word.start, word.end, word.text, f"for {name.text}"),
    ]


def _first_half(text: str) -> str:
    words = text.split()
    if len(words) < 2:  # a script without spaces
        return text[: (len(text) + 1) // 2]
    return " ".join(words[: (len(words) + 1) // 2])
