"""Mamba's mixer: a selective state space behind a short convolution, and a gate (Gu and Dao 2023).

The token decides how much of the state is kept (by its step size Δ), what is written to it (B) and
what is read from it (C). A whole sequence is a scan (`selective_scan`), a further token one update
of a state whose size does not depend on the length.

Shapes: B sentences, L length, D model width, I inner channels, N states of a channel, K tokens of
the convolution, R rank of the step sizes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.device import full_precision
from heedful.nn.linear_layers import FusedLinear, StoredApart
from heedful.nn.mixer_spec import MambaSpec
from heedful.nn.mixers.scan_mixer import ScanMixer, Tokens, wide
from heedful.nn.mixers.selective_scan import selective_scan
from heedful.nn.work import Saved, Work, weight_work

_STEPS = (0.001, 0.1)
"""Smallest and largest initial step size, drawn log-uniformly, as in the authors' code."""


class Mamba(StoredApart, ScanMixer):
    """Convolution, selective scan and gate between two projections.

    Args:
        width: model width D.
        spec: sizes of state, expansion, convolution and rank.
    """

    undecayed = frozenset({"log_decay"})

    def __init__(self, width: int, spec: MambaSpec) -> None:
        super().__init__()
        self.width, self.spec = width, spec
        # Twice as wide and without a feed-forward network: two such blocks have the size of a
        # Transformer layer (Gu and Dao 2023, section 3.4).
        self.inner = inner = spec.expansion * width
        self.rank = spec.rank or -(-width // 16)
        self.projection = FusedLinear(width, {"value": inner, "gate": inner}, bias=spec.bias)
        # PyTorch's default for a depthwise Conv1d, whose fan-in is the kernel width.
        bound = spec.convolution**-0.5
        shape = (inner, spec.convolution)
        self.taps = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.taps_bias = nn.Parameter(torch.empty(inner).uniform_(-bound, bound))
        self.selection = nn.Linear(inner, self.rank + 2 * spec.state_size, bias=False)
        self.step_size = nn.Linear(self.rank, inner)
        # S4D-Real: A = −1, −2, … −N, as logarithms, so that every decay stays negative.
        rates = torch.arange(1.0, spec.state_size + 1).log()
        self.log_decay = nn.Parameter(rates.expand(inner, -1).contiguous())
        self.skip = nn.Parameter(torch.ones(inner))
        self.output = nn.Linear(inner, width, bias=spec.bias)
        self._reset()

    def _reset(self) -> None:
        nn.init.xavier_uniform_(self.selection.weight)
        nn.init.xavier_uniform_(self.output.weight)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)
        bound = self.rank**-0.5
        nn.init.uniform_(self.step_size.weight, -bound, bound)
        with torch.no_grad():
            self.step_size.bias.copy_(drawn_step_bias(self.inner))

    def empty_state(self, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return zeros: inputs of the convolution [rows, K − 1, I], and states [rows, N, I]."""
        dtype = torch.float64 if self.skip.dtype == torch.float64 else torch.float32
        sizes = (self.spec.convolution - 1, self.spec.state_size)
        first, second = (
            torch.zeros((rows, n, self.inner), dtype=dtype, device=device) for n in sizes
        )
        return first, second

    def mix(
        self, x: Tensor, state: tuple[Tensor, ...], tokens: Tokens
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Convolve, scan and gate x [B, L, D]; see `ScanMixer.mix`."""
        past, states = state
        value, gate = self.projection(x)
        with full_precision(x):
            joined = torch.cat([past, wide(value)], 1)
            # Inputs of the convolution, not outputs: a step sees the K − 1 tokens before it.
            past = tokens.latest(joined, past.shape[1]) if past.shape[1] else past
            u = F.silu(convolve(joined, tokens, self.taps, self.taps_bias))
        selected = self.selection(u.to(x.dtype))
        rank, size = self.rank, self.spec.state_size
        ranks, b, c = selected.split([rank, size, size], -1)
        step = self.step_size(ranks)
        with full_precision(x):
            # Δ = 0 for padding: exp(0 · A) = 1 keeps the state, and 0 · B u writes nothing.
            step = F.softplus(wide(step)) * tokens.real[..., None]
            decay = -wide(self.log_decay).exp()
            # A single token needs no scan, nor its autograd function.
            if x.shape[1] == 1:
                y, states = _scan_token(u, step, decay, wide(b), wide(c), states)
            else:
                rates = decay.t().contiguous()
                y, states = selective_scan(u, step, rates, wide(b), wide(c), states, tokens.begins)
            y = (y + wide(self.skip) * u) * F.silu(wide(gate))
        return self.output(y.to(x.dtype)), (past, states)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of projections, and of states: decayed, written and read."""
        per_token = 2 * self.spec.convolution + 6 * self.spec.state_size
        maps = (self.projection, self.selection, self.step_size, self.output)
        return Work(
            weights=queries * weight_work(*maps), attention=queries * self.inner * per_token
        )

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements kept between the projections, and those of states between chunks."""
        small = self.rank + 4 * self.spec.state_size
        return Saved(2 * self.inner + small, 0, 10 * self.inner)


def drawn_step_bias(count: int) -> Tensor:
    """Return biases [count] whose softplus are step sizes drawn log-uniformly."""
    low, high = (math.log(step) for step in _STEPS)
    steps = torch.empty(count).uniform_(low, high).exp()
    return steps + torch.log(-torch.expm1(-steps))


def convolve(joined: Tensor, tokens: Tokens, taps: Tensor, bias: Tensor) -> Tensor:
    """Convolve each channel with its taps.

    Args:
        joined: [B, K − 1 + L, C], earlier tokens in front of those of this pass.
        tokens: real tokens, and first tokens of sequences.
        taps: [C, K].
        bias: [C].

    Returns:
        [B, L, C].
    """
    taps = wide(taps)
    # Lag by lag and not `conv1d`: `before` knows where packed sequences begin.
    y = wide(bias) + tokens.before(joined, 0) * taps[:, -1]
    for lag in range(1, taps.shape[1]):
        y = torch.addcmul(y, tokens.before(joined, lag), taps[:, -1 - lag])
    return y


def _scan_token(
    u: Tensor, step: Tensor, decay: Tensor, b: Tensor, c: Tensor, states: Tensor
) -> tuple[Tensor, Tensor]:
    """Scan one token of each row; arguments as in `selective_scan`, except for decay [I, N]."""
    kept = torch.exp(step * decay.t()) * states
    states = kept + b.transpose(1, 2) * (step * u)
    return c @ states, states
