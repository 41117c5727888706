"""Likelihoods of given translations beside those of their repairs and of other sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from heedful.apps.quality.model_checks import token_spans
from heedful.apps.quality.name_check import FileWords, NameRepairs, Repair, file_words
from heedful.apps.quality.reports import CheckResult, Evidence, counted
from heedful.apps.quality.wording_checks import SHORT_OF_A_MARK

if TYPE_CHECKING:
    from heedful.pipelines.text_splitting import TargetScore, Warn
    from heedful.pipelines.translation import TranslationPipeline

FEWEST_PAIRS = 20
"""Pairs from which others lend their sources, and tell which words are no names."""

_NEIGHBOURS = (7, 13)  # distances in the file; lines next to each other may be of one text
# A token gains as much from the second half of the source in 98 % of people's translations.
_LEAST_HALF = 0.25
# The mark after the last word: 0.7 % of people's translations on the short side are less probable,
# 98 % of those whose second half is missing (300 of Tatoeba's, validation part).
_LEAST_END = -5.0
_SHORT = -0.3  # deviation of the length from which a translation is on the short side
_SURE_NAME = 8.0  # what the source adds to a word's log-probability, from which it is its word


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
    """Scores of a model for pairs, with other sources in place of theirs.

    Args:
        pipeline: translator.
        pairs: pairs to compare.
        sources: sources of all pairs, in the order of their file.
        given: True for translations that are not the model's own, which are compared with more.
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
        distances: tuple[int | None, ...] = (None, *_NEIGHBOURS) if self.is_corpus else (None,)
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

    def gains(self, number: int) -> list[float]:
        """Return the mean gain of a token from the source, beside each other source.

        Args:
            number: index among the pairs.
        """
        score = self.pairs[number].score
        count = max(len(score.token_scores), 1)
        return [(score.score - other[number].score) / count for other in self.others]

    def names(self, language: str | None, least: float) -> list[CheckResult]:
        """Return a check of the names of each pair.

        Args:
            language: code of the source's language; None where unknown.
            least: change of the log-probability by a repair from which it is called for.
        """
        sources = targets = FileWords(frozenset(), frozenset())
        if self.is_corpus:
            sources = file_words([each.source for each in self.pairs])
            targets = file_words([each.target for each in self.pairs])
        repairs = NameRepairs(language, sources, targets, self._is_common)
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
        """Return True for a word with a capital that the vocabulary knows better without one."""
        encode = self.pipeline.tokenizers.source.encode
        # "Ministry" takes four tokens and "ministry" three; "Tom" takes as many as "tom".
        return len(encode(word.casefold())) < len(encode(word))

    def _support(self, number: int, repair: Repair) -> float:
        """Return what the source adds to the log-probability of the word that would go."""
        pair = self.pairs[number]
        inside = [
            index
            for index, start, end in token_spans(pair.target, pair.score.tokens)
            if start < repair.word.end and end > repair.word.start
        ]
        count = len(pair.score.token_scores)
        if any(len(other[number].token_scores) != count for other in self.others):
            return _SURE_NAME  # a search wrote it with tokens that its text does not have
        own = sum(pair.score.token_scores[index] for index in inside)
        return max(
            own - sum(other[number].token_scores[index] for index in inside)
            for other in self.others[:2]
        )

    def unfinished(self, lengths: Sequence[CheckResult]) -> list[CheckResult]:
        """Return the checks for short translations, with what the model knows of their ends.

        A short translation is cut off if the model expects another word where it ends, or if it is
        hardly less probable when only the first half of the source is known.

        Args:
            lengths: check for a short translation of each pair.
        """
        found = list(lengths)
        doubted = []
        for number, each in enumerate(lengths):
            if each.failed or each.value >= _SHORT:
                continue
            if self._end_score(number) < _LEAST_END:
                found[number] = self._cut_off(number, each)
            elif each.value < SHORT_OF_A_MARK:
                doubted.append(number)
        halves = self._score(
            [_first_half(self.pairs[n].source) for n in doubted],
            [self.pairs[n].target for n in doubted],
        )
        for number, half in zip(doubted, halves, strict=True):
            score = self.pairs[number].score
            if (score.score - half.score) / max(len(score.token_scores), 1) < _LEAST_HALF:
                found[number] = self._cut_off(number, lengths[number])
        return found

    def _end_score(self, number: int) -> float:
        """Return the log-probability of what follows the last word, a mark or the end."""
        pair = self.pairs[number]
        words = [
            index
            for index, start, end in token_spans(pair.target, pair.score.tokens)
            if any(map(str.isalnum, pair.target[start:end]))
        ]
        return pair.score.token_scores[words[-1] + 1 if words else -1]

    def _cut_off(self, number: int, length: CheckResult) -> CheckResult:
        end = len(self.pairs[number].target)
        evidence = (Evidence("target", end, end, "", "the end is missing"),)
        return replace(length, failed=True, evidence=evidence)


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
