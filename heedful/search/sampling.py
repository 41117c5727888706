"""Drawing translations at random.

Every draw has its own random number, a function of (seed, sentence, sample, step). What is drawn
for a sentence therefore does not depend on its neighbours, its row or the size of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.search.constraints import Constraints, Moment
from heedful.search.lookahead import index_on
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials, length_norm
from heedful.search.step_model import State, StepModel, log_probabilities

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


COLDEST = 1e-100
"""Temperature below which draws are those at 0."""


def sample(
    model: StepModel[State],
    state: State,
    settings: SearchSettings,
    specials: Specials,
    rules: Constraints,
    limits: Tensor,
    names: Tensor,
) -> list[list[Hypothesis]]:
    """Draw `n_best` translations of each sentence, the one ranked best first.

    Scores are those of the model itself, as in a search: temperature and filters shape what is
    drawn, not what it is said to be worth.

    Args:
        model, state, settings, specials, rules, limits: as for `beam_search`.
        names: [B] int64, what names each sentence in its random numbers.
    """
    steps = list(draws(model, state, settings, specials, rules, limits, names))
    tokens = torch.stack([step.tokens for step in steps], -1)
    scores = torch.stack([step.scores for step in steps], -1)
    return hypotheses_of(tokens, scores, steps[-1].wanted, settings, specials)


class Drawn(NamedTuple):
    """One more token of every sample.

    Args:
        tokens: [B, W] int64; the end token for samples that have ended.
        scores: [B, W] float32, the log-probability of each; 0 for sentences that have ended.
        wanted: [B, W] bool, False for samples whose end was forced so far.
    """

    tokens: Tensor
    scores: Tensor
    wanted: Tensor


@torch.inference_mode()
def draws(
    model: StepModel[State],
    state: State,
    settings: SearchSettings,
    specials: Specials,
    rules: Constraints,
    limits: Tensor,
    names: Tensor,
) -> Iterator[Drawn]:
    """Draw `n_best` samples of each sentence, token by token, until all have ended.

    Args:
        model, state, settings, specials, rules, limits, names: as for `sample`.
    """
    count, width, device = len(limits), settings.n_best, limits.device
    sentences = torch.arange(count, device=device)
    if width > 1:
        state = model.reorder(state, sentences[:, None].expand(count, width))
    tokens = torch.full((count, width), specials.bos, dtype=torch.int64, device=device)
    history = tokens[..., None][..., :0] if rules.needs_history else None
    ended = torch.zeros((count, width), dtype=torch.bool, device=device)
    wanted = torch.ones((count, width), dtype=torch.bool, device=device)
    cuts = set(limits.tolist())
    for step in range(max(cuts) + 1):
        logits, state = model.step(state, tokens)
        scores = log_probabilities(logits)
        if step in cuts:
            at_limit = (limits[sentences] == step)[:, None] & ~ended[sentences]
            wanted[sentences] &= ~at_limit | (scores.argmax(-1) == specials.eos)
        rules.apply(scores, Moment(step, sentences, history))
        uniforms = random_numbers(settings.seed, names[sentences], width, step)
        tokens = draw(scores, uniforms, settings).masked_fill(ended[sentences], specials.eos)
        value = scores.gather(-1, tokens[..., None])[..., 0]
        yield Drawn(
            _spread(tokens, sentences, count, specials.eos),
            _spread(value, sentences, count, 0.0),
            wanted.clone(),
        )
        ended[sentences] |= tokens == specials.eos
        if history is not None:
            history = torch.cat([history, tokens[..., None]], -1)
        kept = (~ended[sentences].all(1)).tolist()  # a GPU is waited for once
        if not any(kept):
            break
        if not all(kept):
            going = index_on([at for at, each in enumerate(kept) if each], device)
            rows = torch.arange(tokens.numel(), device=device).view_as(tokens)[going]
            state = model.reorder(state, rows)
            sentences, tokens = sentences[going], tokens[going]
            history = None if history is None else history[going]


def random_numbers(seed: int, names: Tensor, samples: int, step: int) -> Tensor:
    """Uniform numbers in [0, 1) by hashing their coordinates (the finaliser of SplitMix64).

    Args:
        seed: of the run, below 2^63.
        names: [B] int64, one for each sentence.
        samples: W, drawn for each sentence.
        step: token of the sequence.

    Returns:
        [B, W] float64 on the device of `names`.
    """
    if names.device.type != "cpu":  # which would wait for the names, and then for the numbers
        places = (torch.full((1,), n, device=names.device) for n in (seed, step))
        return random_numbers_on(next(places), names, samples, next(places))
    key = _mix(np.array([[seed]], dtype=np.uint64))
    for part in (
        names.cpu().numpy().astype(np.uint64)[:, None],
        np.arange(samples, dtype=np.uint64)[None, :],
        np.array([[step]], dtype=np.uint64),
    ):
        key = _mix(key ^ part)
    values = (key >> np.uint64(12)).astype(np.float64) * 2.0**-52
    return torch.from_numpy(values).to(names.device)


def draw(scores: Tensor, uniforms: Tensor, settings: SearchSettings) -> Tensor:
    """Draw tokens: temperature first (0 takes the likeliest), then the filters.

    Args:
        scores: log-probabilities [B, W, V]; −∞ is never drawn.
        uniforms: [B, W] in [0, 1).
        settings: temperature, top_k, top_p, min_p, epsilon.

    Returns:
        Ids [B, W] int64.
    """
    weights, ids = _weights(scores, settings)
    cumulative = weights.cumsum(-1)
    # The first token whose cumulative probability exceeds the point; none of probability 0 does.
    point = uniforms[..., None] * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, point, right=True)
    return (index if ids is None else ids.gather(-1, index))[..., 0]


def distribution(scores: Tensor, settings: SearchSettings) -> Tensor:
    """The probabilities by which `draw` draws tokens.

    Args:
        scores: log-probabilities [B, W, V].
        settings: temperature, top_k, top_p, min_p.

    Returns:
        [B, W, V] float64; 0 for tokens that are never drawn, and together 1.
    """
    weights, ids = _weights(scores, settings)
    shares = weights / weights.sum(-1, keepdim=True)
    if ids is None:
        return shares
    return torch.zeros_like(scores, dtype=torch.float64).scatter(-1, ids, shares)


def _weights(scores: Tensor, settings: SearchSettings) -> tuple[Tensor, Tensor | None]:
    """Weights of tokens [B, W, n] float64, 0 for those that are filtered out, and their ids.

    The ids are None where all tokens stand in their order.
    """
    # The limit of ever colder draws: all on the likeliest token. Logits divided by less overflow.
    if settings.temperature < COLDEST:
        likeliest = scores.argmax(-1, keepdim=True)
        return torch.ones_like(likeliest, dtype=torch.float64), likeliest
    scores = scores.double() / settings.temperature
    size = scores.shape[-1]
    ids: Tensor | None = None
    # The order must not hang on the size, which with shortlists is the batch's.
    if settings.top_k or settings.top_p < 1.0:
        scores, ids = scores.topk(min(settings.top_k or size, size), -1)
    probabilities = scores.softmax(-1)
    most = probabilities.amax(-1, keepdim=True)
    keep = probabilities >= settings.min_p * most
    if settings.epsilon > 0.0:  # Hewitt 2022
        keep &= probabilities >= most.clamp(max=settings.epsilon)
    if settings.top_p < 1.0:
        keep &= probabilities.cumsum(-1) - probabilities < settings.top_p
    return probabilities.masked_fill(~keep, 0.0), ids


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_numbers_on(seed: Tensor, names: Tensor, samples: int, step: Tensor) -> Tensor:
    """The numbers of `random_numbers`, for a seed [1] and a step [1] int64 on any device."""
    each = torch.arange(samples, device=names.device)
    key = _mixed(seed)
    for part in (names[:, None], each, step):
        key = _mixed(key ^ part)
    return _shifted(key, 12).double() * 2.0**-52


def _mixed(x: Tensor) -> Tensor:
    """`_mix` in int64, whose sums and products wrap round as those of uint64."""
    x = x + (int(_GOLDEN) - (1 << 64))
    x = (x ^ _shifted(x, 30)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    x = (x ^ _shifted(x, 27)) * (0x94D049BB133111EB - (1 << 64))
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """The bits of int64 moved right, zeros after them, as if there were no sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _spread(values: Tensor, sentences: Tensor, count: int, fill: float) -> Tensor:
    full = values.new_full((count, values.shape[1]), fill)
    full[sentences] = values
    return full


def hypotheses_of(
    tokens: Tensor, scores: Tensor, wanted: Tensor, settings: SearchSettings, specials: Specials
) -> list[list[Hypothesis]]:
    """The samples of each sentence as hypotheses, best first.

    Args:
        tokens: ids [B, W, T], each sample's up to its end token.
        scores: [B, W, T] float32, their log-probabilities.
        wanted: [B, W] bool, False for samples whose end was forced.
        settings: have the length penalty.
        specials: have the end token.
    """
    lengths = (tokens == specials.eos).int().argmax(-1)
    plain = [t.tolist() for t in (tokens, scores.double(), lengths, wanted)]
    results: list[list[Hypothesis]] = []
    for rows in zip(*plain, strict=True):
        hypotheses = []
        for ids, each, length, natural in zip(*rows, strict=True):
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
