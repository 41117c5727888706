"""Cross-entropies: label-smoothed, of two passes (R-Drop), and of images with texts (CLIP)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.nn.attention.kernels.request import soft_cap


class LossSums(NamedTuple):
    """Sums over the given positions in nats, float32.

    Args:
        loss: [], the sum to differentiate.
        nll: [], negative log-likelihood without smoothing, for reports.
        divergence: [], KL(p‖q) + KL(q‖p) of two passes; 0 for one pass.
    """

    loss: Tensor
    nll: Tensor
    divergence: Tensor


def smoothed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    label_smoothing: float = 0.0,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> LossSums:
    """Sum the loss of predicting `targets` from `hidden @ weight.T + bias` (Szegedy 2016).

    The smoothed target gives 1 − ε to the right token and ε/V to every token, the right one too.

    Args:
        hidden: [n, D] at real positions only.
        weight: [V, D] output projection.
        targets: [n] int64 in [0, V).
        label_smoothing: ε, the share of the target spread over the vocabulary.
        bias: [V] or None.
        softcap: bound c of the logits, which become c · tanh(logit / c); None for no bound.

    Returns:
        The smoothed loss, differentiable, and the plain negative log-likelihood.
    """
    return _sums(_log_probs(hidden, weight, bias, softcap), targets, label_smoothing)


def consistent_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    label_smoothing: float,
    consistency: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> LossSums:
    """Sum the losses of two passes over the same positions and their divergence (Liang 2021).

    Args:
        hidden: [2, n, D], hidden states of the two passes, which predict p and q.
        weight: [V, D] output projection.
        targets: [n] int64 in [0, V).
        label_smoothing: ε; see `smoothed_cross_entropy`.
        consistency: weight of KL(p‖q) + KL(q‖p).
        bias: [V] or None.
        softcap: bound of the logits; see `smoothed_cross_entropy`.

    Returns:
        The losses of both passes plus the weighted divergence, both nll, and the divergence.
    """
    log_p, log_q = _log_probs(hidden, weight, bias, softcap)
    p, q = (_sums(each, targets, label_smoothing) for each in (log_p, log_q))
    # Both directions of KL in one sum: Σ (p − q)(log p − log q).
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()
    loss = p.loss + q.loss + consistency * divergence
    return LossSums(loss, p.nll + q.nll, divergence.detach())


def _log_probs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None
) -> Tensor:
    # Softmax in float32: sums over a vocabulary of 10,000 lose two digits in bfloat16;
    # float64 stays as it is, for gradient checks.
    logits = F.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.log_softmax(soft_cap(logits, softcap), dim=-1)


def _sums(log_probs: Tensor, targets: Tensor, smoothing: float) -> LossSums:
    nll = -log_probs.gather(1, targets[:, None]).sum()
    # Cross-entropy with the uniform distribution, of which ε/V falls on the right token as well.
    uniform = -log_probs.mean(-1).sum()
    loss = (1.0 - smoothing) * nll + smoothing * uniform
    # Detached: sums of reported values would keep the graph of every update alive.
    return LossSums(loss, nll.detach(), nll.new_zeros(()))


def contrastive_loss(scores: Tensor, numbers: Tensor, label_smoothing: float = 0.0) -> LossSums:
    """Sum the loss of finding the text of each image and the image of each text (Radford 2021).

    Pairs of equal texts are right for each other's images: a row's targets share its weight evenly
    (Yang 2022). Where all texts differ this is CLIP's loss; and also where equal texts have equal
    scores, as they do without dropout.

    Args:
        scores: [B, B] scaled cosines of images and texts.
        numbers: [B] int64, equal for pairs whose texts are equal.
        label_smoothing: share of the targets spread over all pairs.

    Returns:
        The mean over both directions, summed over pairs.
    """
    scores = scores.float()
    same = (numbers[:, None] == numbers[None]).float()
    # Symmetric, as the rows of equal texts are equal: these are the targets of both directions.
    targets = same / same.sum(1, keepdim=True)

    def both(scores: Tensor, smoothing: float) -> Tensor:
        sums = [
            F.cross_entropy(each, targets, reduction="sum", label_smoothing=smoothing)
            for each in (scores, scores.T)
        ]
        return (sums[0] + sums[1]) / 2

    nll = both(scores.detach(), 0.0)
    return LossSums(both(scores, label_smoothing), nll, torch.zeros_like(nll))
