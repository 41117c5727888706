"""Sampling of translations.

Every draw has its own random number, a function of (seed, sentence, sample, step). So the samples
of a sentence do not depend on its neighbours, its row or the size of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.search.constraints import Moment
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials, length_norm
from heedful.search.step_model import SearchTask, State, index_on, log_probabilities

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 over the golden ratio, odd (Steele 2014)

Int64 = TypeVar("Int64", npt.NDArray[np.int64], Tensor)

COLDEST = 1e-100
"""Temperature below which sampling is greedy, as at 0."""


def sample(task: SearchTask[State], names: Tensor) -> list[list[Hypothesis]]:
    """Draw `n_best` translations of each sentence, sorted from best to worst.

    Scores are log-probabilities of the model, as in a search: temperature and filters change the
    draws, not the scores.

    Args:
        task: batch of sentences, with its model, settings and constraints.
        names: [B] int64, key of each sentence in the generator of random numbers.
    """
    steps = list(draws(task, names))
    tokens = torch.stack([step.tokens for step in steps], -1)
    scores = torch.stack([step.scores for step in steps], -1)
    return hypotheses_of(tokens, scores, steps[-1].wanted, task.settings, task.specials)


class Drawn(NamedTuple):
    """One more token of every sample.

    Args:
        tokens: [B, W] int64; the end token for samples that have ended.
        scores: [B, W] float32, log-probability of each; 0 for sentences that have ended.
        wanted: [B, W] bool, False for samples whose end was forced so far.
    """

    tokens: Tensor
    scores: Tensor
    wanted: Tensor


@torch.inference_mode()
def draws(task: SearchTask[State], names: Tensor) -> Iterator[Drawn]:
    """Draw samples like `sample`, token by token, until all have ended."""
    model, state, settings, specials, rules, limits = task
    count, width, device = len(limits), settings.n_best, limits.device
    sentences = torch.arange(count, device=device)
    if width > 1:
        state = model.reorder(state, sentences[:, None].expand(count, width))
    tokens = torch.full((count, width), specials.bos, dtype=torch.int64, device=device)
    history = tokens[..., None][..., :0] if rules.needs_history else None
    ended = torch.zeros((count, width), dtype=torch.bool, device=device)
    wanted = torch.ones((count, width), dtype=torch.bool, device=device)
    # Samples can only be cut at these steps; at all others the argmax below is skipped.
    cuts = set(limits.tolist())
    for step in range(max(cuts) + 1):
        logits, state = model.step(state, tokens)
        scores = log_probabilities(logits)
        if step in cuts:
            at_limit = (limits[sentences] == step)[:, None] & ~ended[sentences]
            # Computed before the rules force the end, to know whether the model would have ended
            # here.
            wanted[sentences] &= ~at_limit | (scores.argmax(-1) == specials.eos)
        rules.apply(scores, Moment(step, sentences, history))
        uniforms = random_numbers(settings.seed, names[sentences], width, step)
        tokens = draw(scores, uniforms, settings).masked_fill(ended[sentences], specials.eos)
        value = scores.gather(-1, tokens[..., None])[..., 0]
        yield Drawn(
            _scatter_rows(tokens, sentences, count, specials.eos),
            _scatter_rows(value, sentences, count, 0.0),
            wanted.clone(),
        )
        ended[sentences] |= tokens == specials.eos
        if history is not None:
            history = torch.cat([history, tokens[..., None]], -1)
        kept = (~ended[sentences].all(1)).tolist()  # the only wait for a GPU in a step
        if not any(kept):
            break
        if not all(kept):
            going = index_on([at for at, each in enumerate(kept) if each], device)
            # A sentence leaves when all its samples have ended, and until then keeps all rows.
            rows = torch.arange(tokens.numel(), device=device).view_as(tokens)[going]
            state = model.reorder(state, rows)
            sentences, tokens = sentences[going], tokens[going]
            history = None if history is None else history[going]


def random_numbers(seed: int, names: Tensor, samples: int, step: int) -> Tensor:
    """Return uniform numbers in [0, 1) by hashes of their keys (finaliser of SplitMix64).

    Args:
        seed: seed of the run, below 2^63.
        names: [B] int64, key of each sentence.
        samples: number W of samples of each sentence.
        step: index of the token in the sequence.

    Returns:
        [B, W] float64 on the device of `names`.
    """
    if names.device.type != "cpu":  # NumPy would wait for the names, and the GPU for NumPy's result
        first, last = (torch.full((1,), n, device=names.device) for n in (seed, step))
        return random_numbers_on(first, names, samples, last)
    # NumPy needs a quarter of PyTorch's time for these small arrays.
    key = _hash(np.array([seed]), names.numpy(), np.arange(samples), np.array([step]))
    return torch.from_numpy(key).double() * 2.0**-52


def draw(scores: Tensor, uniforms: Tensor, settings: SearchSettings) -> Tensor:
    """Draw tokens: temperature first (0 takes the likeliest), then the filters.

    Args:
        scores: log-probabilities [B, W, V]; −∞ is never drawn.
        uniforms: [B, W] in [0, 1).
        settings: temperature, top_k, top_p, min_p, epsilon.

    Returns:
        Ids [B, W] int64.
    """
    # Inverse transform sampling; the point is scaled by the last sum, so weights need no norm.
    weights, ids = _weights(scores, settings)
    cumulative = weights.cumsum(-1)
    # The first token whose cumulative weight exceeds the point: never one of weight 0.
    point = uniforms[..., None] * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, point, right=True)
    return (index if ids is None else ids.gather(-1, index))[..., 0]


def distribution(scores: Tensor, settings: SearchSettings) -> Tensor:
    """Return the probabilities by which `draw` draws, from log-probabilities [B, W, V].

    Returns:
        [B, W, V] float64 with a sum of 1; 0 for tokens that are never drawn.
    """
    weights, ids = _weights(scores, settings)
    shares = weights / weights.sum(-1, keepdim=True)
    if ids is None:
        return shares
    return torch.zeros_like(scores, dtype=torch.float64).scatter(-1, ids, shares)


def _weights(scores: Tensor, settings: SearchSettings) -> tuple[Tensor, Tensor | None]:
    """Return weights of tokens [B, W, n] float64, 0 for filtered ones, and the ids of the tokens.

    Ids are None where the tokens are the whole vocabulary in its order.
    """
    # The limit of low temperatures: division by a smaller one would overflow.
    if settings.temperature < COLDEST:
        likeliest = scores.argmax(-1, keepdim=True)
        return torch.ones_like(likeliest, dtype=torch.float64), likeliest
    scores = scores.double() / settings.temperature
    size = scores.shape[-1]
    ids: Tensor | None = None
    # `top_k < size` is not tested: with shortlists the size depends on the batch, and sorting
    # changes which token a random number draws.
    if settings.top_k or settings.top_p < 1.0:
        scores, ids = scores.topk(min(settings.top_k or size, size), -1)
    probabilities = scores.softmax(-1)
    most = probabilities.amax(-1, keepdim=True)
    keep = probabilities >= settings.min_p * most
    if settings.epsilon > 0.0:  # Hewitt 2022; the likeliest token stays, whatever its probability
        keep &= probabilities >= most.clamp(max=settings.epsilon)
    if settings.top_p < 1.0:
        # The mass before a token: the one that reaches top_p is kept (Holtzman 2020).
        keep &= probabilities.cumsum(-1) - probabilities < settings.top_p
    return probabilities.masked_fill(~keep, 0.0), ids


def random_numbers_on(seed: Tensor, names: Tensor, samples: int, step: Tensor) -> Tensor:
    """Return the same as `random_numbers`, for a seed [1] and a step [1] int64 on any device."""
    key = _hash(seed, names, torch.arange(samples, device=names.device), step)
    return key.double() * 2.0**-52


def _hash(seed: Int64, names: Int64, samples: Int64, step: Int64) -> Int64:
    """Return a hash [B, W] of each key: 52 bits, which are exact in float64 and below 1 there."""
    key = _mix(seed)
    for part in (names[:, None], samples, step):
        key = _mix(key ^ part)
    return _logical_shift(key, 12)


def _mix(x: Int64) -> Int64:
    # Computed in int64, which wraps round like uint64: PyTorch has hardly any operations for
    # uint64.
    x = x + _GOLDEN
    x = (x ^ _logical_shift(x, 30)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    x = (x ^ _logical_shift(x, 27)) * (0x94D049BB133111EB - (1 << 64))
    return x ^ _logical_shift(x, 31)


def _logical_shift(x: Int64, bits: int) -> Int64:
    """Shift the bits of int64 right and fill with zeros: a logical shift."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _scatter_rows(values: Tensor, sentences: Tensor, count: int, fill: float) -> Tensor:
    full = values.new_full((count, values.shape[1]), fill)
    full[sentences] = values
    return full


def hypotheses_of(
    tokens: Tensor, scores: Tensor, wanted: Tensor, settings: SearchSettings, specials: Specials
) -> list[list[Hypothesis]]:
    """Return the samples of each sentence as hypotheses, best first.

    Args:
        tokens: ids [B, W, T] of each sample, of which those up to its end token count.
        scores: log-probabilities of the tokens [B, W, T] float32.
        wanted: [B, W] bool, False for samples whose end was forced.
        settings: settings of sampling, with the length penalty.
        specials: special ids, with the end token.
    """
    # Index of the first end token; every sample has one, at its limit at the latest.
    lengths = (tokens == specials.eos).int().argmax(-1)
    plain = [t.tolist() for t in (tokens, scores.double(), lengths, wanted)]
    results: list[list[Hypothesis]] = []
    for rows in zip(*plain, strict=True):
        hypotheses = []
        for ids, each, length, natural in zip(*rows, strict=True):
            # Correctly rounded in any order of summation.
            total = math.fsum(each[: length + 1])
            hypotheses.append(
                Hypothesis(
                    tokens=tuple(ids[:length]),
                    score=total,
                    normalized_score=total / length_norm(length + 1.0, settings.length_penalty),
                    token_scores=tuple(each[: length + 1]),
                    finished=natural,
                )
            )
        results.append(sorted(hypotheses, key=lambda h: -h.normalized_score))
    return results
