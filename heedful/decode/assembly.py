"""Translations of whole texts, put together from those of their segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heedful.decode.aligned import Alignment, join_alignments
from heedful.decode.protocol import Hypothesis
from heedful.decode.segments import CutText, Warn
from heedful.decode.translation import Translation
from heedful.text.protocol import TextTokenizer

_LINES_NAMED = 5


@dataclass(frozen=True)
class Found:
    """What a search gave for a segment.

    Args:
        hypotheses: best first, at least one.
        alignments: of each, if they were asked for.
    """

    hypotheses: Sequence[Hypothesis]
    alignments: Sequence[Alignment] | None = None


def distinct(hypotheses: Sequence[Hypothesis], tokenizer: TextTokenizer) -> list[Hypothesis]:
    """The best hypothesis of every text: different tokens may spell the same.

    Args:
        hypotheses: of a segment, best first.
        tokenizer: of the target.
    """
    best: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        best.setdefault(tokenizer.decode(hypothesis.tokens), hypothesis)
    return list(best.values())


def assemble(text: CutText, found: Sequence[Found], tokenizer: TextTokenizer) -> Translation:
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
    text: CutText, found: Sequence[Found], rank: int, tokenizer: TextTokenizer
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
