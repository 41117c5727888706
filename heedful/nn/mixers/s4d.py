"""S4D: a diagonal linear state space for each channel (Gu, Gupta, Goel and Ré 2022).

A channel u of the input drives N/2 complex states, h' = A h + u in continuous time, and its
output is 2 Re(C h) + D u. In steps of Δ that is h_t = Ā h_{t−1} + B̄ u_t: a recurrence, and at the
same time a convolution with the kernel K_l = 2 Re(C Ā^l B̄). Chunks of a sequence are convolved by
matmuls; between chunks only the states are passed on.

Shapes: B sentences, L length, D model width, N elements of a channel's state, n chunks of C tokens.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.device import full_precision
from heedful.nn.mixer_spec import S4DSpec
from heedful.nn.mixers.scan_mixer import ScanMixer, Tokens, wide
from heedful.nn.work import Saved, Work, weight_work

_CHUNK = 64
"""Tokens that one matrix convolves, which costs as much as 64 elements of a state do."""

_STEPS = (0.001, 0.1)
"""Smallest and largest initial step size Δ, drawn log-uniformly."""


class S4D(ScanMixer):
    """State spaces of all channels, GELU, and a gated projection that mixes the channels.

    Args:
        width: model width D.
        spec: size, initialisation and discretisation of the states.
    """

    undecayed = frozenset({"log_decay", "frequency", "readout"})

    def __init__(self, width: int, spec: S4DSpec) -> None:
        super().__init__()
        self.width, self.spec, self.pairs = width, spec, spec.state_size // 2
        self.discretization = spec.discretization
        low, high = (math.log(step) for step in _STEPS)
        self.log_step = nn.Parameter(torch.empty(width).uniform_(low, high))
        shape = (width, self.pairs)
        # Re(A) = −exp(log_decay) starts at −1/2 and stays negative, so states cannot grow.
        self.log_decay = nn.Parameter(torch.full(shape, math.log(0.5)))
        frequencies = initial_frequencies(spec)
        self.frequency = nn.Parameter(frequencies.expand(shape).contiguous())
        # Real and imaginary part, each of variance 1/2: optimisers see no complex parameter.
        self.readout = nn.Parameter(torch.randn(*shape, 2) * math.sqrt(0.5))
        self.skip = nn.Parameter(torch.randn(width))
        self.output = nn.Linear(width, 2 * width, bias=spec.bias)
        nn.init.xavier_uniform_(self.output.weight)
        if spec.bias:
            nn.init.zeros_(self.output.bias)

    def empty_state(self, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return zero states, [rows, D, N/2] complex."""
        shape = (rows, self.width, self.pairs)
        return (torch.zeros(shape, dtype=self._complex, device=device),)

    def mix(
        self, x: Tensor, state: tuple[Tensor, ...], tokens: Tokens
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Drive the states by x [B, L, D]; see `ScanMixer.mix`."""
        with full_precision(x):
            u = wide(x)
            if x.shape[1] == 1:
                y, states = self._scan_token(u, state[0], tokens)
            else:
                y, states = self._scan_chunks(u, state[0], tokens)
            y = F.gelu(y + wide(self.skip) * u).to(x.dtype)
        value, gate = self.output(y).chunk(2, -1)
        return value * torch.sigmoid(gate), (states,)

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens: matmuls within chunks, states written and read."""
        size = min(_CHUNK, queries)
        chunks = -(-queries // size)
        within = 2 * chunks * size * size
        states = 2 * 2 * self.pairs * (2 * chunks * size + (size if queries > 1 else 0))
        return Work(
            weights=queries * weight_work(self.output),
            attention=self.width * ((within if queries > 1 else 0) + states),
        )

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of inputs and outputs of states, GELU and gate; see `Costed`."""
        per_chunk = 4 * self.pairs * self.width // _CHUNK
        return Saved(4 * self.width, 0, 3 * self.width + per_chunk)

    @property
    def _complex(self) -> torch.dtype:
        return torch.complex128 if self.skip.dtype == torch.float64 else torch.complex64

    def _discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return log Ā, B̄ and 2 C of every channel, [D, N/2] complex."""
        step = wide(self.log_step).exp()[:, None]
        a = torch.complex(-wide(self.log_decay).exp(), wide(self.frequency))
        if self.discretization == "zoh":
            log_factor = step * a
            # B̄ = (exp(Δ A) − 1) / A with B = 1; expm1, as Δ A is near 0 for small steps.
            entry = torch.expm1(log_factor) / a
        else:
            # Tustin's rule (bilinear), as a logarithm, so that both rules compute powers alike.
            log_factor = torch.log((1 + step * a / 2) / (1 - step * a / 2))
            entry = step / (1 - step * a / 2)
        return log_factor, entry, 2 * torch.view_as_complex(wide(self.readout))

    def _scan_token(self, u: Tensor, state: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Advance the states by one token of each row, u [B, 1, D]."""
        log_factor, entry, readout = self._discrete()
        state = torch.where(
            tokens.real[..., None], log_factor.exp() * state + entry * u[:, 0, :, None], state
        )
        return (readout * state).real.sum(-1)[:, None], state

    def _scan_chunks(self, u: Tensor, state: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Advance the states by chunks of tokens, u [B, L, D]."""
        batch, length, _ = u.shape
        size = min(_CHUNK, length)
        log_factor, entry, readout = self._discrete()
        lags = torch.arange(size + 1, device=u.device)
        powers = torch.exp(log_factor[..., None] * lags)  # Ā^l, [D, N/2, C + 1]
        # The share of each token of a chunk in the state after it.
        write = (entry[..., None] * powers[..., :size]).flip(-1)
        read = readout[..., None] * powers[..., 1:]
        kernel = (readout[..., None] * entry[..., None] * powers[..., :size]).real.sum(1)
        into = torch.cat([write.real, write.imag], 1).transpose(1, 2)  # [D, C, N]
        out_of = torch.cat([read.real, -read.imag], 1)  # [D, N, C]

        u = u * tokens.real[..., None]
        count = -(-length // size)
        chunks = F.pad(u, (0, 0, 0, count * size - length)).unflatten(1, (count, size))
        driven = chunks.permute(3, 0, 1, 2)  # [D, B, n, C]
        sequences = self._sequence_numbers(tokens, count, size)
        local, written = self._within(driven, kernel, into, sequences)
        before = self._carry(written, powers[..., -1], state, sequences)
        from_before = (
            torch.cat([before.real, before.imag], -1).flatten(1, 2) @ out_of
        )  # [D, B n, C]
        from_before = from_before.unflatten(1, (batch, count))
        if sequences is not None:
            from_before = from_before * sequences.eq(0)
        y = (local + from_before).permute(1, 2, 3, 0).flatten(1, 2)[:, :length]
        last = self._after(tokens, chunks, before, log_factor, into)
        return y, last

    def _within(
        self, driven: Tensor, kernel: Tensor, into: Tensor, sequences: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Convolve within chunks, [D, B, n, C], and write their last states, [D, B, n, N/2]."""
        size = driven.shape[-1]
        lags = torch.arange(size, device=driven.device)
        lags = lags[None, :] - lags[:, None]  # distance of the column's token after the row's
        toeplitz = kernel[:, lags.clamp(min=0)] * (lags >= 0)  # [D, C, C]
        flat = driven.flatten(1, 2)
        if sequences is None:
            local = flat @ toeplitz
            written = flat @ into
        else:
            flat_sequences = sequences.flatten(0, 1)
            local = torch.zeros_like(flat)
            for number in range(int(sequences.max()) + 1):
                inside = flat_sequences == number
                local = local + ((flat * inside) @ toeplitz) * inside
            # Only the last sequence of a chunk may write to the state that the next chunk reads.
            written = (flat * (flat_sequences == flat_sequences[:, -1:])) @ into
        parts = torch.complex(*written.chunk(2, -1))
        return local.view(driven.shape), parts.unflatten(1, driven.shape[1:3])

    def _carry(
        self, written: Tensor, factor: Tensor, state: Tensor, sequences: Tensor | None
    ) -> Tensor:
        """Return the states before each chunk, [D, B, n, N/2]."""
        current, before = state.transpose(0, 1), []
        # Unbound, not indexed: autograd answers each index with zeros as long as the whole
        # sequence, so the gradient of n chunks would write n times as much (docs/design/log.md).
        for chunk, added in enumerate(written.unbind(2)):
            before.append(current)
            kept = factor[:, None] * current
            if sequences is not None:
                kept = kept * (sequences[:, chunk, -1] == 0)[:, None]
            current = kept + added
        return torch.stack(before, 2)

    def _after(
        self,
        tokens: Tokens,
        chunks: Tensor,
        before: Tensor,
        log_factor: Tensor,
        into: Tensor,
    ) -> Tensor:
        """Return the states after the last real token of each row, [B, D, N/2].

        Args:
            tokens: tokens of the rows.
            chunks: [B, n, C, D], the input.
            before: [D, B, n, N/2], the states before each chunk.
            log_factor: [D, N/2].
            into: [D, C, N], weights of a chunk's tokens in the state after it.
        """
        size, rows = chunks.shape[2], torch.arange(len(chunks), device=chunks.device)
        counts = tokens.real.sum(1)
        # The chunk in which a row ends, with its real tokens moved to the end: `into` weighs a
        # token by its distance from the end of the chunk.
        last = ((counts - 1).clamp(min=0)) // size
        rest = counts - last * size
        places = torch.arange(size, device=chunks.device) - (size - rest)[:, None]
        ending = chunks[rows, last].gather(
            1, places.clamp(min=0)[..., None].expand(-1, -1, chunks.shape[3])
        )
        ending = ending * (places >= 0)[..., None]
        written = torch.complex(*(ending.permute(2, 0, 1) @ into).chunk(2, -1))
        kept = torch.exp(log_factor[:, None] * rest[:, None]) * before[:, rows, last]
        return (kept + written).transpose(0, 1)

    def _sequence_numbers(self, tokens: Tokens, count: int, size: int) -> Tensor | None:
        """Number the sequences within each chunk, [B, n, C]; None if rows are not packed.

        Sequence 0 continues from the chunk before.
        """
        begins = tokens.begins
        if begins is None:
            return None
        padded = F.pad(begins, (0, count * size - begins.shape[1]))
        numbers: Tensor = padded.unflatten(1, (count, size)).long().cumsum(2)
        return numbers


def initial_frequencies(spec: S4DSpec) -> Tensor:
    """Return the initial imaginary part of A, [N/2]: S4D-Lin or S4D-Inv of the paper."""
    # S4D-Lin: π n. S4D-Inv: N/π · (N / (2n + 1) − 1), nearer to HiPPO-LegS.
    number, size = torch.arange(spec.state_size // 2), spec.state_size
    if spec.initialization == "lin":
        return math.pi * number
    return size / math.pi * (size / (2 * number + 1) - 1)
