"""Mamba 2's mixer: heads of a selective state space, each with one decay (Dao and Gu 2024).

Beside Mamba, a step size and a decay belong to a head instead of a channel, the input projection
gives them and the weights of writing (B) and reading (C), and the gated output is normed. The
convolution reads B and C, too. A whole sequence is the scan of Mamba (`selective_scan`).

Shapes: B sentences, L length, D model width, H heads of P channels, I = H P inner channels, G
groups of N weights, K tokens of the convolution.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.device import full_precision
from heedful.nn.linear_layers import FusedLinear, StoredApart
from heedful.nn.mamba2_spec import Mamba2Spec
from heedful.nn.mixers.mamba import convolve, drawn_step_bias
from heedful.nn.mixers.scan_mixer import ScanMixer, Tokens, wide
from heedful.nn.mixers.selective_scan import selective_scan
from heedful.nn.work import Saved, Work, weight_work


class Mamba2(StoredApart, ScanMixer):
    """Convolution, scan of heads, gate and norm between two projections.

    Args:
        width: model width D.
        spec: heads, groups, sizes of state and convolution.
    """

    undecayed = frozenset({"log_decay", "step_bias"})

    def __init__(self, width: int, spec: Mamba2Spec) -> None:
        super().__init__()
        self.width, self.spec = width, spec
        self.inner = inner = spec.num_heads * spec.head_width
        self.group = group = spec.num_groups * spec.state_size
        widths = {"gate": inner, "value": inner, "write": group, "read": group}
        self.projection = FusedLinear(width, widths | {"step": spec.num_heads}, bias=spec.bias)
        # PyTorch's default for a depthwise Conv1d, whose fan-in is the kernel width.
        bound, channels = spec.convolution**-0.5, inner + 2 * group
        self.taps = nn.Parameter(torch.empty(channels, spec.convolution).uniform_(-bound, bound))
        self.taps_bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))
        self.step_bias = nn.Parameter(drawn_step_bias(spec.num_heads))
        # A from −1 to −16, as logarithms, so that every decay stays negative.
        self.log_decay = nn.Parameter(torch.empty(spec.num_heads).uniform_(1.0, 16.0).log())
        self.skip = nn.Parameter(torch.ones(spec.num_heads))
        self.norm_weight = nn.Parameter(torch.ones(inner))
        self.output = nn.Linear(inner, width, bias=spec.bias)
        nn.init.xavier_uniform_(self.output.weight)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)

    def empty_state(self, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return zeros: inputs of the convolution [rows, K − 1, I + 2 G N], states [rows, N, I]."""
        dtype = torch.float64 if self.skip.dtype == torch.float64 else torch.float32
        past = (rows, self.spec.convolution - 1, self.inner + 2 * self.group)
        states = (rows, self.spec.state_size, self.inner)
        first, second = (torch.zeros(size, dtype=dtype, device=device) for size in (past, states))
        return first, second

    def mix(
        self, x: Tensor, state: tuple[Tensor, ...], tokens: Tokens
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Convolve, scan, gate and norm x [B, L, D]; see `ScanMixer.mix`."""
        past, states = state
        gate, value, write, read, step = self.projection(x)
        with full_precision(x):
            joined = torch.cat([past, wide(torch.cat([value, write, read], -1))], 1)
            past = tokens.latest(joined, past.shape[1]) if past.shape[1] else past
            u, b, c = F.silu(convolve(joined, tokens, self.taps, self.taps_bias)).split(
                [self.inner, self.group, self.group], -1
            )
            # Δ = 0 for padding: exp(0 · A) = 1 keeps the state, and 0 · B u writes nothing.
            step = F.softplus(wide(step) + wide(self.step_bias)) * tokens.real[..., None]
            y, states = self._scan(u, step, b, c, states, tokens)
            y = y + self._of_channels(wide(self.skip)) * u
            y = self._norm(y * F.silu(wide(gate)))
        return self.output(y.to(x.dtype)), (past, states)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of projections, of the convolution, and of states."""
        states = 6 * self.spec.state_size * self.inner
        taps = 2 * self.spec.convolution * (self.inner + 2 * self.group)
        weights = queries * weight_work(self.projection, self.output)
        return Work(weights=weights, attention=queries * (states + taps))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements kept between the projections, and those of states between chunks."""
        read = 2 * self.inner + 4 * self.group
        return Saved(read, 0, 12 * self.inner)

    def _scan(
        self, u: Tensor, step: Tensor, b: Tensor, c: Tensor, states: Tensor, tokens: Tokens
    ) -> tuple[Tensor, Tensor]:
        """Scan u [B, L, I] group by group; return outputs like it, and states [B, N, I]."""
        size, groups = self.spec.state_size, self.spec.num_groups
        steps = self._of_channels(step)
        rates = -self._of_channels(wide(self.log_decay).exp()).expand(size, -1)
        channels = self.inner // groups
        groups_of = zip(
            *(each.split(channels, -1) for each in (u, steps, rates)),
            *(each.split(size, -1) for each in (b, c)),
            states.split(channels, -1),
            strict=True,
        )
        parts = []
        for group in groups_of:
            one_u, one_step, rate, one_b, one_c, before = (each.contiguous() for each in group)
            scanned = selective_scan(one_u, one_step, rate, one_b, one_c, before, tokens.begins)
            parts.append(scanned)
        outputs, after = zip(*parts, strict=True)
        return torch.cat(outputs, -1), torch.cat(after, -1)

    def _of_channels(self, heads: Tensor) -> Tensor:
        """Repeat values of heads [..., H] for their channels, [..., I]."""
        return heads.repeat_interleave(self.spec.head_width, -1)

    def _norm(self, y: Tensor) -> Tensor:
        """Divide y [B, L, I] by its root mean square within each group."""
        grouped = y.unflatten(-1, (self.spec.num_groups, -1))
        square = grouped.pow(2).mean(-1, keepdim=True)
        normed: Tensor = grouped * torch.rsqrt(square + self.spec.norm_epsilon)
        return normed.flatten(-2) * wide(self.norm_weight)
