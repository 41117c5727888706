"""Scores of given targets, by the same steps a search takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.decode.candidates import log_probabilities
from heedful.decode.protocol import Specials, State, StepModel


@torch.inference_mode()
def score_targets(
    model: StepModel[State],
    source: Tensor,
    source_positions: Tensor,
    targets: Sequence[Sequence[int]],
    specials: Specials,
) -> list[tuple[float, ...]]:
    """Natural-log probabilities of targets given their sources.

    Args:
        model: known only by start and step.
        source: [B, S] int64.
        source_positions: [B, S] int64, −1 for padding.
        targets: ids of each target, without special tokens.
        specials: the model's special ids.

    Returns:
        For each target the log-probability of every token and, last, of the end token.
    """
    if not targets:
        return []
    longest = max(map(len, targets))
    wanted = torch.full((len(targets), longest + 1), specials.eos, dtype=torch.int64)
    for row, target in zip(wanted, targets, strict=True):
        row[: len(target)] = torch.tensor(target, dtype=torch.int64)
    wanted = wanted.to(source.device)
    state = model.start(source, source_positions)
    tokens = torch.full_like(wanted[:, :1], specials.bos)
    steps: list[Tensor] = []
    for step in range(longest + 1):
        logits, state = model.step(state, tokens)
        tokens = wanted[:, step : step + 1]  # past its end a target reads end tokens, not counted
        steps.append(log_probabilities(logits)[:, 0].gather(-1, tokens))
    scores = torch.cat(steps, 1).tolist()
    return [tuple(row[: len(target) + 1]) for row, target in zip(scores, targets, strict=True)]
