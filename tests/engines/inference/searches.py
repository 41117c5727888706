"""Searches that engines and definition go through alike, and what they read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from heedful.models.translator import Translator, TranslatorState

PIECES = 50


def ids(*shape: int, seed: int) -> Tensor:
    """Random tokens."""
    return torch.randint(4, PIECES, shape, generator=torch.Generator().manual_seed(seed))


def padded(lengths: list[int], size: int, side: str = "right") -> Tensor:
    """Positions of texts with padding on a side."""
    rows = [
        [-1] * (size - n) + [*range(n)] if side == "left" else [*range(n)] + [-1] * (size - n)
        for n in lengths
    ]
    return torch.tensor(rows)


def searched(
    model: Translator,
    source: Tensor,
    positions: Tensor,
    reorders: Mapping[int, list[list[int]]],
    steps: int,
) -> tuple[list[Tensor], TranslatorState]:
    """Logits of a search whose sentences and hypotheses come, go and change places.

    Args:
        model: which searches.
        source: [B, L].
        positions: [B, L].
        reorders: rows that are chosen after a step, by its number.
        steps: of the search.
    """
    state, found = model.start(source, positions), []
    tokens = torch.full((len(source), 1), 2)
    for step in range(steps):
        logits, state = model.step(state, tokens)
        found.append(logits)
        if step in reorders:
            rows = torch.tensor(reorders[step])
            state, tokens = model.reorder(state, rows), torch.zeros_like(rows)
        tokens = (tokens + 5 + step + torch.arange(tokens.shape[1])) % 46 + 4
    return found, state
