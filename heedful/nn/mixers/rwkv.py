"""RWKV version 4: a decaying average of past values, and its feed-forward network (Peng 2023).

A channel's output at token t is a weighted average of the values up to t. An earlier token i has
the weight exp(k_i + (t − 1 − i) w), which decays by the channel's own rate w < 0; token t itself
has the weight exp(k_t + u). The sums of weighted values and of weights are a state of constant
size. Both are kept relative to the largest weight so far, so that no exponential overflows. The
chunks of a sequence are computed in parallel, each from the sums before its first token.

Both parts read an interpolation of each token with the one before it (token shift).

Shapes: B sentences, L length, D model width, n chunks of C tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.device import full_precision
from heedful.nn.mixer_spec import ChannelMixSpec, RWKVSpec
from heedful.nn.mixers.scan_mixer import ScanMixer, Tokens, chunk_length, wide
from heedful.nn.work import Saved, Work, weight_work

_NOTHING = -1e38
"""The logarithm of a weight of 0: finite, so that a difference of two is not NaN."""


class _Sums(NamedTuple):
    """Sums of weighted values and of weights so far, divided by exp(top), [..., D] each."""

    values: Tensor
    weights: Tensor
    top: Tensor

    def add(self, kept: Tensor, value: Tensor, weight: Tensor | float, log_weight: Tensor) -> _Sums:
        """Return the sums with more tokens.

        Args:
            kept: `top` after its decay.
            value: sum of weighted values to add, divided by exp(log_weight).
            weight: sum of weights to add, divided by exp(log_weight).
            log_weight: logarithm of the scale of both.
        """
        # A scale cancels in values / weights, so it needs no gradient.
        top = torch.maximum(kept, log_weight).detach()
        old, new = torch.exp(kept - top), torch.exp(log_weight - top)
        return _Sums(old * self.values + new * value, old * self.weights + new * weight, top)


class TimeMix(ScanMixer):
    """Time mixing: decaying averages of values, multiplied by a gate (receptance).

    Parameters start as those of the middle layer of a deep model of the paper.

    Args:
        width: model width D.
        spec: spec without settings.
    """

    def __init__(self, width: int, spec: RWKVSpec) -> None:
        super().__init__()
        self.width, self.spec = width, spec
        # The authors' initialisation: from channel to channel the decay gets faster and the share
        # of the current token larger. Theirs also depends on the layer, which a part does not know.
        share = torch.arange(width) / width
        self.key_mix = nn.Parameter(share**0.5)
        self.value_mix = nn.Parameter(share**0.5 + 0.15)
        self.receptance_mix = nn.Parameter(0.5 * share**0.5)
        rank = torch.arange(width) / max(width - 1, 1)
        self.decay = nn.Parameter(-5 + 8 * rank**1.35)
        # Alternating, so that neighbouring channels weigh the current token differently.
        zigzag = (torch.arange(width) + 1) % 3 - 1
        self.bonus = nn.Parameter(math.log(0.3) + 0.5 * zigzag)
        self.key, self.value, self.receptance, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        for layer in (self.key, self.value, self.receptance, self.output):
            nn.init.xavier_uniform_(layer.weight)

    def empty_state(self, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return an empty state: previous token [rows, 1, D], sums, and their scale."""
        zeros = torch.zeros((rows, self.width), dtype=_dtype(self.bonus), device=device)
        return zeros[:, None], zeros, zeros, torch.full_like(zeros, _NOTHING)

    def mix(
        self, x: Tensor, state: tuple[Tensor, ...], tokens: Tokens
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Average the values of x [B, L, D]; see `ScanMixer.mix`."""
        joined = torch.cat([state[0], wide(x)], 1)
        now, before = wide(x), tokens.before(joined, 1)
        key, value, receptance = (
            layer(torch.lerp(before, now, wide(share)).to(x.dtype))
            for layer, share in (
                (self.key, self.key_mix),
                (self.value, self.value_mix),
                (self.receptance, self.receptance_mix),
            )
        )
        with full_precision(x):
            y, sums = fading_average(
                wide(key),
                wide(value),
                # w = −exp(parameter) is negative whatever an update does to the parameter.
                -wide(self.decay).exp(),
                wide(self.bonus),
                _Sums(*state[1:]),
                tokens,
            )
            y = torch.sigmoid(wide(receptance)) * y
        return self.output(y.to(x.dtype)), (tokens.latest(joined, 1), *sums)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of projections, and of sums: decayed, added to and read."""
        maps = (self.key, self.value, self.receptance, self.output)
        return Work(weights=queries * weight_work(*maps), attention=queries * 8 * self.width)

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements kept between the projections, and those of weights and sums."""
        return Saved(4 * self.width, 0, 20 * self.width)


class ChannelMix(ScanMixer):
    """Channel mixing: value(ReLU(key)²) times a gate, of a token and the one before it.

    Args:
        width: model width D.
        spec: inner width.
    """

    def __init__(self, width: int, spec: ChannelMixSpec) -> None:
        super().__init__()
        self.width, self.spec = width, spec
        share = torch.arange(width) / width
        self.key_mix = nn.Parameter(share**0.5)
        self.receptance_mix = nn.Parameter(share**0.5)
        self.key = nn.Linear(width, spec.width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(spec.width, width, bias=False)
        for layer in (self.key, self.receptance, self.value):
            nn.init.xavier_uniform_(layer.weight)

    def empty_state(self, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return the previous token of each row, zeros [rows, 1, D]."""
        return (torch.zeros((rows, 1, self.width), dtype=_dtype(self.key_mix), device=device),)

    def mix(
        self, x: Tensor, state: tuple[Tensor, ...], tokens: Tokens
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Transform every token of x [B, L, D]; see `ScanMixer.mix`."""
        joined = torch.cat([state[0], wide(x)], 1)
        now, before = wide(x), tokens.before(joined, 1)
        key = self.key(torch.lerp(before, now, wide(self.key_mix)).to(x.dtype))
        gate = self.receptance(torch.lerp(before, now, wide(self.receptance_mix)).to(x.dtype))
        # Squared ReLU (So 2021, Primer).
        y = torch.sigmoid(gate) * self.value(F.relu(key).square())
        return y, (tokens.latest(joined, 1),)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of the projections; see `Costed`."""
        return Work(weights=queries * weight_work(self.key, self.receptance, self.value))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements kept between the projections; see `Costed`."""
        return Saved(3 * self.spec.width + 4 * self.width, 0, 2 * self.width)


def fading_average(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, sums: _Sums, tokens: Tokens
) -> tuple[Tensor, _Sums]:
    """Average values up to each token.

    Args:
        k: [B, L, D], logarithms of weights.
        v: [B, L, D].
        decay: [D], negative term added to a logarithm at every later token.
        bonus: [D], term added to the logarithm of the current token.
        sums: sums of earlier tokens, [B, D] each.
        tokens: real tokens, and first tokens of sequences.

    Returns:
        The averages [B, L, D], and the sums after the last real token.
    """
    length = k.shape[1]
    size = chunk_length(length)
    count = -(-length // size)

    def in_chunks(x: Tensor) -> Tensor:
        """Reshape [B, L, K] to [B, C, n, K]."""
        x = F.pad(x, (0, 0, 0, count * size - length))
        return x.view(len(x), count, size, -1).transpose(1, 2)

    real = in_chunks(tokens.real[..., None])
    k = torch.where(real, in_chunks(k), _NOTHING)  # padding has a weight of 0
    v, begins = in_chunks(v), None
    if tokens.begins is not None:
        begins = in_chunks(tokens.begins[..., None])
    real = real.to(k.dtype)
    if count > 1:
        sums = _chunk_starts(k, v, real, decay, begins, sums)
    else:
        sums = _Sums(*(each[:, None] for each in sums))
    outputs = []
    # C steps, each for all n chunks at once: with about √L of both, 2 √L steps instead of L.
    for token, (key, value, is_real) in enumerate(
        zip(k.unbind(1), v.unbind(1), real.unbind(1), strict=True)
    ):
        if begins is not None:
            # With a scale of exp(_NOTHING) = 0 the old sums vanish as soon as a token is added.
            sums = sums._replace(top=torch.where(begins[:, token], _NOTHING, sums.top))
        here = sums.add(sums.top, value, 1.0, key + bonus)
        outputs.append(here.values / here.weights)
        # Padding neither decays nor adds: its `decay * is_real` is 0, and its key `_NOTHING`.
        sums = sums.add(sums.top + decay * is_real, value * is_real, is_real, key)
    y = torch.stack(outputs, 2).flatten(1, 2)[:, :length]
    return y, _Sums(*(each[:, -1] for each in sums))


def _chunk_starts(
    k: Tensor, v: Tensor, real: Tensor, decay: Tensor, begins: Tensor | None, sums: _Sums
) -> _Sums:
    """Return the sums before the first token of each chunk, [B, n, D] each.

    Args:
        k: [B, C, n, D], logarithms of weights.
        v: [B, C, n, D].
        real: [B, C, n, 1], 1 for tokens and 0 for padding.
        decay: [D].
        begins: [B, C, n, 1] bool, first tokens of sequences, or None.
        sums: sums before the first chunk, [B, D] each.
    """
    later = real.sum(1, keepdim=True) - real.cumsum(1)  # tokens after this one in its chunk
    counts = real
    if begins is not None:  # only the last sequence of a chunk continues in the next
        number = begins.long().cumsum(1)
        counts = real * (number == number[:, -1:])
    log_weights = torch.where(counts > 0, k + later * decay, _NOTHING)
    top = log_weights.amax(1).detach()
    shares = torch.exp(log_weights - top[:, None]) * counts
    values, weights = (shares * v).sum(1), shares.sum(1)
    total_decay = real.sum(1) * decay  # [B, n, D]
    starts = []
    # Unbound, not indexed: autograd answers each index with zeros as long as the whole sequence.
    # So four times the length had written 6.7 times as many numbers (docs/design/log.md).
    chunks = zip(*(each.unbind(1) for each in (total_decay, values, weights, top)), strict=True)
    for chunk, (decayed, value, weight, largest) in enumerate(chunks):
        starts.append(sums)
        kept = sums.top + decayed
        if begins is not None:
            kept = torch.where(begins[:, :, chunk].any(1), _NOTHING, kept)
        sums = sums.add(kept, value, weight, largest)
    return _Sums(*(torch.stack(each, 1) for each in zip(*starts, strict=True)))


def _dtype(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
