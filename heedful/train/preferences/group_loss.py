"""The loss of group relative policy optimisation (GRPO, Shao 2024), as a function of numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_SMALL = 1e-6  # against division by 0


def group_advantages(rewards: Tensor) -> Tensor:
    """Return rewards less the mean of their group, over its standard deviation (equation 2).

    Args:
        rewards: rewards [B, G] of G answers to each of B prompts.

    Returns:
        [B, G], with a sum of 0 in each group; 0 where all rewards of a group are equal.
    """
    # In float64 the mean of equal float32 numbers is exactly that number.
    wide = rewards.double()
    centred = wide - wide.mean(1, keepdim=True)
    scaled = centred / (wide.std(1, correction=0, keepdim=True) + _SMALL)
    return scaled.to(rewards.dtype)


class GroupLoss(NamedTuple):
    """The loss of N answers and what it is made of.

    Args:
        losses: loss of each answer [N].
        divergence: estimate of the KL divergence of a whole answer from the reference [N].
        clipped: share of the tokens of each answer that the clipping leaves without a gradient [N].
    """

    losses: Tensor
    divergence: Tensor
    clipped: Tensor


def group_loss(
    ours: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    real: Tensor,
    *,
    clip: float,
    beta: float,
) -> GroupLoss:
    """Return the loss of sampled answers (equation 3).

    In the loss, the divergence is estimated by π_ref/π − log(π_ref/π) − 1 at each sampled token,
    which is never negative (equation 4; k3 of Schulman 2020). What is reported is log(π/π_ref) of
    the answer (k1): where a model has left what its reference writes, k3 sees a part of it, since
    the rest of its mean is in samples that do not come any more (docs/design/log.md).

    Args:
        ours, old, reference: log-probability of each token by the model, by the model that sampled
            it, and by the reference [N, L].
        advantages: advantage of each answer [N].
        real: flags of the tokens of the answers [N, L]; each row has one at least.
        clip: ε, the change of the ratio of probabilities beyond which there is no more gain.
        beta: weight of the divergence.
    """
    ratios, gain = (ours - old).exp(), advantages[:, None]
    bounded = ratios.clamp(1 - clip, 1 + clip)
    # The smaller of the two: clipping never makes a bad change look better.
    surrogate = torch.minimum(ratios * gain, bounded * gain)
    apart = reference - ours
    pull = apart.exp() - apart - 1
    counts = real.sum(1)
    # A mean over the tokens of an answer, as in the paper: long answers weigh no more.
    losses = ((beta * pull - surrogate) * real).sum(1) / counts
    clipped = (bounded * gain < ratios * gain) & real
    return GroupLoss(losses, -(apart * real).sum(1), clipped.sum(1) / counts)
