"""What translating and scoring give back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from heedful.pipelines.text_splitting import CutText, Warn
from heedful.search.alignment import Alignment, join_alignments
from heedful.search.hypothesis import Hypothesis
from heedful.text.text_tokenizer import TextTokenizer


class Translation(str):
    """A translated text, which is a `str`, and what is known about it.

    Attributes:
        score: natural-log probability, summed over the tokens and the end token of every piece.
        normalized_score: what translations are ranked by; the mean of a text's pieces.
        finished: False when a piece was cut at its longest length.
        tokens: the vocabulary's pieces it is made of, for display.
        token_scores: log-probability of every token, and of the end token after each piece.
        others: the next-best translations, best first.
        alignment: of words, when it was asked for.
    """

    score: float
    normalized_score: float
    finished: bool
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    others: tuple[Translation, ...]
    alignment: Alignment | None

    def __new__(
        cls,
        text: str = "",
        *,
        score: float = 0.0,
        normalized_score: float = 0.0,
        finished: bool = True,
        tokens: Sequence[str] = (),
        token_scores: Sequence[float] = (),
        others: Sequence[Translation] = (),
        alignment: Alignment | None = None,
    ) -> Self:
        """Build from its parts; the empty translation of an empty text by default."""
        self = super().__new__(cls, text)
        self.score = score
        self.normalized_score = normalized_score
        self.finished = finished
        self.tokens = tuple(tokens)
        self.token_scores = tuple(token_scores)
        self.others = tuple(others)
        self.alignment = alignment
        return self

    @property
    def n_best(self) -> tuple[Translation, ...]:
        """This translation and the next-best ones, best first."""
        return (self, *self.others)


@dataclass(frozen=True)
class Score:
    """What a model thinks of a given target.

    Args:
        score: natural-log probability, summed over the tokens and the end token.
        tokens: the vocabulary's pieces of the target, for display.
        token_scores: log-probability of each token and of the end token.
    """

    score: float
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]

    @classmethod
    def of(cls, tokens: Sequence[str], token_scores: Sequence[float]) -> Self:
        """Sum the scores of tokens."""
        return cls(math.fsum(token_scores), tuple(tokens), tuple(token_scores))


_LINES_NAMED = 5


@dataclass(frozen=True)
class SegmentResult:
    """What a search gave for a segment.

    Args:
        hypotheses: best first, at least one.
        alignments: of each, if they were asked for.
    """

    hypotheses: Sequence[Hypothesis]
    alignments: Sequence[Alignment] | None = None


def distinct_texts(hypotheses: Sequence[Hypothesis], tokenizer: TextTokenizer) -> list[Hypothesis]:
    """The best hypothesis of every text: different tokens may spell the same.

    Args:
        hypotheses: of a segment, best first.
        tokenizer: of the target.
    """
    best: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        best.setdefault(tokenizer.decode(hypothesis.tokens), hypothesis)
    return list(best.values())


def assemble(
    text: CutText, found: Sequence[SegmentResult], tokenizer: TextTokenizer
) -> Translation:
    """A text's translation and its next-best ones.

    Args:
        text: in segments.
        found: for each segment. The k-th best of the text is made of the k-th best of each.
        tokenizer: of the target.
    """
    if not found:
        return Translation()
    ranks = min(len(segment.hypotheses) for segment in found)
    best, *others = (_ranked(text, found, rank, tokenizer) for rank in range(ranks))
    best.others = tuple(others)
    return best


def warn_of_cuts(translations: Sequence[Translation], first_line: int, warn: Warn) -> None:
    """Tell how many translations were cut at their longest length, and which, if any were.

    Args:
        translations: of lines that follow each other.
        first_line: number of the first.
        warn: told.
    """
    cut = [i for i, t in enumerate(translations, start=first_line) if not t.finished]
    if not cut:
        return
    named = ", ".join(map(str, cut[:_LINES_NAMED])) + (", ..." if len(cut) > _LINES_NAMED else "")
    warn(
        f"{len(cut)} of {len(translations)} translations were cut at their longest length "
        f"(line {named})"
    )


def _ranked(
    text: CutText, found: Sequence[SegmentResult], rank: int, tokenizer: TextTokenizer
) -> Translation:
    chosen = [segment.hypotheses[rank] for segment in found]
    parts = [segment.alignments[rank] for segment in found if segment.alignments is not None]
    return Translation(
        text.join([tokenizer.decode(hypothesis.tokens) for hypothesis in chosen]),
        score=math.fsum(hypothesis.score for hypothesis in chosen),
        normalized_score=math.fsum(h.normalized_score for h in chosen) / len(chosen),
        finished=all(hypothesis.finished for hypothesis in chosen),
        tokens=[piece for hypothesis in chosen for piece in tokenizer.pieces(hypothesis.tokens)],
        token_scores=[score for hypothesis in chosen for score in hypothesis.token_scores],
        alignment=join_alignments(parts) if parts else None,
    )
