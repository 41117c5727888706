"""Coverage: whether a hypothesis looked at all of its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from heedful.data.batches import pad
from heedful.decode.protocol import AttentiveModel, Hypothesis, Specials


def coverage(attention: Tensor, source_positions: Tensor) -> Tensor:
    """How well a target's attention covers its source (Wu 2016, equation 14, β = 1).

    Args:
        attention: [N, B, H, T, S], 0 in padded rows; layers and heads are averaged.
        source_positions: [B, S], −1 for padding.

    Returns:
        [B] float64, at most 0: the sum over source tokens of log(min(attention received, 1)).
    """
    received = attention.double().mean((0, 2)).sum(1)  # [B, S]
    tiny = torch.finfo(torch.float64).tiny
    logs = received.clamp(tiny, 1.0).log()
    return logs.masked_fill(source_positions < 0, 0.0).sum(-1)


def rank_by_coverage(
    model: AttentiveModel,
    source: Tensor,
    source_positions: Tensor,
    found: Sequence[Sequence[Hypothesis]],
    specials: Specials,
    strength: float,
) -> list[list[Hypothesis]]:
    """Rank finished hypotheses anew, their coverage added to the normalised score.

    Args:
        model: recomputes its attention for every hypothesis.
        source: [B, S].
        source_positions: [B, S].
        found: hypotheses of each sentence; rank k of all sentences is looked at together.
        specials: for the decoder's input.
        strength: β of Wu 2016.
    """
    ranked: list[list[Hypothesis]] = [[] for _ in found]
    for rank in range(max(map(len, found), default=0)):
        rows = [i for i, hypotheses in enumerate(found) if rank < len(hypotheses)]
        chosen = [found[i][rank] for i in rows]
        index = torch.tensor(rows, device=source.device)
        target, positions = decoder_input([h.tokens for h in chosen], specials, source.device)
        here = source_positions[index]
        attention = model.cross_attention(source[index], here, target, positions)
        bonus = (strength * coverage(attention, here)).tolist()
        for i, hypothesis, extra in zip(rows, chosen, bonus, strict=True):
            score = hypothesis.normalized_score + extra
            ranked[i].append(replace(hypothesis, normalized_score=score))
    for hypotheses in ranked:
        hypotheses.sort(key=lambda h: -h.normalized_score)
    return ranked


def decoder_input(
    targets: Sequence[Sequence[int]], specials: Specials, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Targets as the decoder reads them: a beginning-of-sequence token first, padded on the right.

    Returns:
        Ids and positions [B, T] int64; positions are −1 for padding.
    """
    tokens, positions = pad(targets, specials.pad, first=specials.bos)
    return tokens.to(device), positions.to(device)
