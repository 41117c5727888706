"""The best continuations of all hypotheses of a sentence."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from heedful.kernels import topk
from heedful.search.hypothesis import not_numbers

_BLOCKS = 128
_WORTH_IT = 16
"""Fewer columns than so many times as many as blocks are sorted at once."""


class Candidates(NamedTuple):
    """Continuations of each sentence, best first.

    Args:
        total: summed log-probabilities [B, C] float64; −∞ where there is no candidate.
        parent: which hypothesis is continued [B, C] int64.
        token: with which token [B, C] int64.
        token_score: that token's log-probability [B, C] float32.
    """

    total: Tensor
    parent: Tensor
    token: Tensor
    token_score: Tensor


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-probabilities of logits [..., V], float32, in their place.

    Raises:
        ModelError: when the model gives no numbers, as after a diverged training.
    """
    # Fresh memory of this size would cost half as much again as what is computed in it.
    scores = torch.log_softmax(logits, -1, out=logits)
    _check(not scores[..., 0].isnan().any())  # one NaN among the logits makes its whole row NaN
    return scores


def log_totals(logits: Tensor) -> Tensor:
    """log Σ exp of logits [..., V], which they exceed their log-probabilities by: [...] float64.

    In float32 the differences would be as inexact as the largest logit.

    Raises:
        ModelError: when the model gives no numbers.
    """
    if topk.supports(logits):
        totals, are_numbers = topk.logsumexp(logits)
    else:
        top = logits.amax(-1, keepdim=True)
        totals = top[..., 0].double() + torch.logsumexp(logits - top, -1).double()
        are_numbers = not totals.isnan().any()
    _check(are_numbers)
    return totals


def _check(are_numbers: bool) -> None:
    if not are_numbers:
        raise not_numbers()


def best_candidates(logits: Tensor, excess: Tensor, totals: Tensor, count: int) -> Candidates:
    """The `count` best continuations of a sentence's hypotheses.

    Args:
        logits: of the next token [B, W, V] float32; −∞ where it is forbidden.
        excess: [B, W] float64, what they exceed the tokens' log-probabilities by.
        totals: summed log-probabilities so far [B, W] float64.
        count: C; when fewer exist, the rest is filled up with candidates of total −∞.
    """
    if topk.supports(logits):
        return Candidates(*topk.best_continuations(logits, excess, totals, count))
    # No hypothesis can have more than `count` children among the `count` best of all.
    largest, tokens = _largest(logits, min(count, logits.shape[-1]))
    values = largest.double() - excess[..., None]
    each = values.shape[-1]
    sums = (totals[..., None] + values).flatten(1)
    total, flat = sums.topk(min(count, sums.shape[1]), -1)
    chosen = Candidates(
        total,
        flat // each,
        tokens.flatten(1).gather(1, flat),
        values.flatten(1).gather(1, flat).float(),
    )
    missing = count - total.shape[1]
    if missing == 0:
        return chosen
    fill = (-math.inf, 0, 0, -math.inf)
    padded = (functional.pad(t, (0, missing), value=v) for t, v in zip(chosen, fill, strict=True))
    return Candidates(*padded)


def _largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row [..., V], largest first: as `topk`, but without sorting much.

    The columns are dealt into blocks, as cards are. What is among the `count` largest of a row lies
    in one of the `count` blocks with the largest maxima.
    """
    size = scores.shape[-1]
    if size < _BLOCKS * max(count, _WORTH_IT) or scores.device.type != "cpu":
        return scores.topk(count, -1)
    deals = size // _BLOCKS
    rows = scores.flatten(0, -2)
    dealt = rows[:, : deals * _BLOCKS].unflatten(1, (deals, _BLOCKS))
    blocks = dealt.amax(1).topk(count, 1).indices
    chosen = torch.arange(0, deals * _BLOCKS, _BLOCKS) + blocks[..., None]  # [rows, count, deals]
    rest = torch.arange(deals * _BLOCKS, size).expand(len(rows), -1)
    columns = torch.cat([chosen.flatten(1), rest], 1)
    values, among = rows.gather(1, columns).topk(count, 1)
    shape = (*scores.shape[:-1], count)
    return values.view(shape), columns.gather(1, among).view(shape)
