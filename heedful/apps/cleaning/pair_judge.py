"""Judgement of chunks of pairs, in any process, by the rules that look at one pair at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heedful.apps.cleaning.cleaning_settings import CleaningSettings, RuleName
from heedful.apps.cleaning.language_check import LanguageCheck
from heedful.apps.cleaning.neighbours import likenesses
from heedful.apps.cleaning.pair_rules import ABOUT, pair_rules
from heedful.apps.cleaning.raw_pairs import RawPair
from heedful.apps.cleaning.text_keys import plain_text, text_key

# Bits are in the order of `ABOUT`: the lowest bit that is set is the rule that removes a pair.
RULES: tuple[RuleName, ...] = tuple(ABOUT)
BIT = {rule: np.uint32(1 << number) for number, rule in enumerate(RULES)}

_CAP = 3.0  # maximum doubt by one rule, so that no single rule outweighs several others


@dataclass
class JudgedPairs:
    """Findings on the pairs of a chunk.

    Args:
        bits: bits of the rules that found each pair.
        badness: doubts of each pair.
        pair_keys, source_keys, target_keys: keys of the texts.
        neighbours: comparisons of each pair with its neighbours, see `neighbours.likenesses`.
    """

    bits: list[int]
    badness: list[float]
    pair_keys: list[int]
    source_keys: list[int]
    target_keys: list[int]
    neighbours: list[int]


class PairJudge:
    """Judges chunks of pairs.

    Args:
        settings: limits of the rules.
        languages: codes of source and target; None to skip the rule.
    """

    def __init__(self, settings: CleaningSettings, languages: Sequence[str] | None) -> None:
        self.rules = pair_rules(settings)
        self.languages = (
            LanguageCheck(languages, settings.min_language_probability) if languages else None
        )

    def __call__(self, before: Sequence[RawPair], chunk: Sequence[RawPair]) -> JudgedPairs:
        """Judge a chunk.

        Args:
            before: pairs before the chunk; the last of them are its neighbours.
            chunk: pairs to judge.
        """
        # Invisible differences in spaces and Unicode composition do not count.
        sources = [plain_text(pair.source) for pair in chunk]
        targets = [plain_text(pair.target) for pair in chunk]
        found = JudgedPairs(
            [0] * len(chunk),
            [0.0] * len(chunk),
            [text_key(f"{a}\t{b}") for a, b in zip(sources, targets, strict=True)],
            list(map(text_key, sources)),
            list(map(text_key, targets)),
            likenesses(before, chunk),
        )
        bits, badness = found.bits, found.badness
        readable = []
        for n, pair in enumerate(chunk):
            if pair.fault is not None:
                bits[n], badness[n] = int(BIT["undecodable"]), _CAP
                if pair.fault == "no_pair":
                    bits[n] = int(BIT["no_pair"])
                continue
            readable.append(n)
            for rule in self.rules:
                if doubt := rule.doubt(pair.source, pair.target):
                    mark(bits, badness, n, rule.name, doubt)
        if self.languages is not None:
            texts = [(chunk[n].source, chunk[n].target) for n in readable]
            for n, doubt in zip(readable, self.languages.doubts(texts).tolist(), strict=True):
                mark(bits, badness, n, "language", doubt)
        return found


def mark(bits: list[int], badness: list[float], n: int, rule: RuleName, doubt: float) -> None:
    """Record a doubt: doubts above the limit add up; below it only the largest counts."""
    if doubt >= 1:
        badness[n] = min(doubt, _CAP) + (badness[n] if bits[n] else 0.0)
        bits[n] |= int(BIT[rule])
    elif not bits[n]:
        badness[n] = max(badness[n], doubt)


_judges: list[PairJudge] = []


def begin_judging(settings: CleaningSettings, languages: Sequence[str] | None) -> None:
    """Make the judge of this process."""
    _judges.append(PairJudge(settings, languages))


def judge_pairs(before: Sequence[RawPair], chunk: Sequence[RawPair]) -> JudgedPairs:
    """Judge a chunk with the judge of this process."""
    return _judges[-1](before, chunk)
