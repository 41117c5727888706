"""What a beam search has found: hypotheses that ended, and where live ones came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from heedful.decode.candidates import Candidates
from heedful.decode.protocol import Hypothesis


class Endings(NamedTuple):
    """The best finished hypotheses of each sentence [B, K], best first.

    Args:
        rank: normalised score float64; −∞ where there is none.
        total: summed log-probability float64.
        length: tokens, the end token not counted.
        beam: which live hypothesis of that length ended.
        end_score: log-probability of the end token.
        wanted: whether the model itself would have ended there.
    """

    rank: Tensor
    total: Tensor
    length: Tensor
    beam: Tensor
    end_score: Tensor
    wanted: Tensor

    @classmethod
    def none(cls, count: int, kept: int, device: torch.device) -> Self:
        """Room for `kept` hypotheses of each of `count` sentences."""
        nothing = torch.full((count, kept), -math.inf, dtype=torch.float64, device=device)
        zeros = torch.zeros((count, kept), dtype=torch.int64, device=device)
        return cls(nothing, nothing.clone(), zeros, zeros, nothing.float(), zeros.bool())

    def with_ended(
        self,
        candidates: Candidates,
        ends: Tensor,
        lengths: Tensor,
        norms: Tensor,
        wanted: Tensor | None,
    ) -> Endings:
        """These and the candidates that end, as far as they are good enough.

        Args:
            candidates: [B, C] each.
            ends: which of them end [B, C] bool.
            lengths: [B] int64, theirs without the end token.
            norms: [B] float64, what scores of hypotheses of such lengths are divided by.
            wanted: of each parent [B, W], False where its end was forced; None if none was.
        """
        total = candidates.total.masked_fill(~ends, -math.inf)
        if (total == -math.inf).all():
            return self
        new = Endings(
            rank=total / norms[:, None],
            total=total,
            length=lengths[:, None].expand_as(total),
            beam=candidates.parent,
            end_score=candidates.token_score,
            wanted=torch.ones_like(ends) if wanted is None else wanted.gather(1, candidates.parent),
        )
        both = [torch.cat(pair, 1) for pair in zip(self, new, strict=True)]
        order = both[0].topk(self.rank.shape[1], -1).indices
        return Endings(*(values.gather(1, order) for values in both))

    def of(self, rows: Tensor | slice) -> Endings:
        """Those of some sentences, by their numbers [B'], a mask [B] or a slice."""
        return Endings(*(values[rows] for values in self))


@dataclass
class Trellis:
    """Where every live hypothesis came from, so that histories are read once, at the end.

    Args:
        count: sentences.
        width: the most live hypotheses of each.
    """

    count: int
    width: int
    steps: list[tuple[Tensor, Candidates]] = field(default_factory=list)

    def add(self, sentences: Tensor, live: Candidates) -> None:
        """One more step.

        Args:
            sentences: [B] numbers of those that are still searched.
            live: [B, W] each.
        """
        self.steps.append((sentences, live))

    def read(self, best: Endings) -> list[list[Hypothesis]]:
        """The hypotheses of all sentences.

        Args:
            best: [B, K], a row for each sentence.
        """
        tokens, scores = self._histories(best.beam, best.length)
        plain = [t.tolist() for t in (*best, tokens, scores)]
        return [
            [
                Hypothesis(
                    tokens=tuple(ids[:length]),
                    score=total,
                    normalized_score=rank,
                    token_scores=(*each[:length], end_score),
                    finished=wanted,
                )
                for rank, total, length, _, end_score, wanted, ids, each in zip(*rows, strict=True)
                if rank > -math.inf
            ]
            for rows in zip(*plain, strict=True)
        ]

    def _histories(self, beams: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and their scores [B, K, T] of the hypotheses at `beams` [B, K] after `lengths`."""
        longest = int(lengths.max())
        tokens = torch.zeros((*beams.shape, longest), dtype=torch.int64, device=beams.device)
        scores = torch.zeros((*beams.shape, longest), device=beams.device)
        for step in reversed(range(longest)):
            sentences, live = self.steps[step]
            parents, ids, each = (
                self._spread(sentences, values)
                for values in (live.parent, live.token, live.token_score)
            )
            tokens[..., step] = ids.gather(1, beams)
            scores[..., step] = each.gather(1, beams)
            beams = torch.where(step < lengths, parents.gather(1, beams), beams)
        return tokens, scores

    def _spread(self, sentences: Tensor, values: Tensor) -> Tensor:
        """A row for each sentence."""
        if len(sentences) == self.count:
            return values
        full = values.new_zeros((self.count, self.width))
        full[sentences] = values
        return full
