"""Convolutions over tokens with gated linear units (Dauphin 2017; Gehring 2017).

An output depends on the `kernel_width` tokens around its own, or up to its own: a linear map takes
them to twice the width, and one half is multiplied by the sigmoid of the other. All positions are
computed at once, as in attention, but farther tokens are seen only through several layers.

Shapes: B sentences, W beams, L length, D model width; N sequences of up to M tokens; k tokens that
    an output depends on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.nn.mixer import Context, MakeCache, ScanState
from heedful.nn.mixer_spec import ConvolutionSpec
from heedful.nn.mixers.recurrent import Runs
from heedful.nn.positions import Positions
from heedful.nn.work import FLOAT32, Saved, Work, weight_work


class Convolution(nn.Module):
    """A gated convolution as a mixer.

    Args:
        width: model width D.
        spec: kernel width, dropout, and restriction to earlier tokens.
    """

    def __init__(self, width: int, spec: ConvolutionSpec) -> None:
        super().__init__()
        self.width = width
        self.causal = spec.causal
        self.offsets = self.offsets_of(spec)
        self.num_before = -self.offsets[0]
        self.dropout = nn.Dropout(spec.dropout)
        inner = len(self.offsets) * width
        # One linear map over a window, not `Conv1d`: a decoding step then is the same matmul.
        self.projection = nn.Linear(inner, 2 * width)
        # N(0, √(4 p / (k · D))) with p the share that dropout keeps: a gated linear unit leaves
        # about a quarter of its input's variance (Gehring 2017, section 3.5).
        deviation = math.sqrt(4 * (1 - spec.dropout) / inner)
        nn.init.normal_(self.projection.weight, std=deviation)
        nn.init.zeros_(self.projection.bias)

    @staticmethod
    def offsets_of(spec: ConvolutionSpec) -> tuple[int, ...]:
        """Return the places of the k tokens of a window relative to its own, ascending."""
        first = 1 - spec.kernel_width if spec.causal else -(spec.kernel_width // 2)
        return tuple(range(first, first + spec.kernel_width))

    def window(self, tokens: Sequence[Tensor], positions: Tensor) -> Tensor:
        """Return windows [..., k · D].

        Args:
            tokens: [..., D] for each offset.
            positions: [...] int64, position of each window's own token.
        """
        return torch.cat(list(tokens), -1)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Mix whole sequences; see `Mixer`."""
        context = context or Context.whole(x)
        # Each sequence on its own and padded with zeros, so that no window reaches a neighbour.
        tokens = F.pad(self._tokens(x, Runs.of(context.positions)), (0, 0, self.num_before, 0))
        return self._over_runs(x, context.positions, tokens)

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> ScanState:
        """Return the state before the first token, zeros; see `Mixer.initial_state`.

        Raises:
            ModelError: when tokens see later ones, which a step does not have.
        """
        if not self.causal:
            raise ModelError(
                "A convolution that sees later tokens cannot go token by token",
                remedy="Use causal = true for a model that writes",
            )
        inputs = like.new_zeros((rows, 1, self.num_before, self.width))
        return ScanState((inputs,))  # the last inputs that a window reaches back to, [B, W, n, D]

    def step(self, x: Tensor, state: ScanState, context: Context) -> tuple[Tensor, ScanState]:
        """Mix more tokens; see `Mixer.step`. Padding does not change the state."""
        inputs, kept = state.tensors[0].to(x.dtype), self.num_before
        if inputs.shape[1] == 1 and x.shape[1] > 1:  # several tokens of a single beam
            runs = Runs.of(context.positions)
            tokens = torch.cat([inputs[:, 0], self._tokens(x, runs)], 1)
            # The inputs that end at each row's last real token, whatever padding follows it.
            last = runs.lengths[:, None] + torch.arange(kept, device=x.device)
            after = tokens.gather(1, last[..., None].expand(-1, -1, self.width))
            return self._over_runs(x, context.positions, tokens), ScanState((after[:, None],))
        tokens = torch.cat([inputs, self._drop(x)[:, :, None]], 2)
        positions = context.positions.query.reshape(x.shape[:2])
        after = torch.where((positions >= 0)[..., None, None], tokens[:, :, 1:], inputs)
        parts = [tokens[:, :, kept + offset] for offset in self.offsets]
        return self._gated(self.window(parts, positions)), ScanState((after,))

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens, independent of other tokens; see `Costed`."""
        return Work(weights=queries * weight_work(self.projection))

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of the last inputs, the same after any number of tokens."""
        return self.num_before * self.width * FLOAT32

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of windows, of both halves of the output and of the gate."""
        marks = self.width if self.dropout.p else 0
        return Saved((len(self.offsets) + 2) * self.width, marks)

    def _tokens(self, x: Tensor, runs: Runs) -> Tensor:
        """Return the tokens of each sequence [N, M, D], zeros past its end."""
        return runs.take(self._drop(x)) * runs.is_real[..., None]

    def _drop(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.dropout(x)
        return dropped

    def _over_runs(self, x: Tensor, positions: Positions, tokens: Tensor) -> Tensor:
        """Return the output in the layout of x [B, L, D].

        Args:
            x: tensor with the layout of the result.
            positions: positions of x.
            tokens: [N, n + M, D], tokens of each sequence, after the n tokens that its first one
                sees before it.
        """
        runs = Runs.of(positions)
        first, last, length = self.num_before, self.offsets[-1], runs.index.shape[1]
        tokens = F.pad(tokens, (0, 0, 0, first + length + last - tokens.shape[1]))
        # Shifted slices side by side are the windows of all tokens.
        parts = [tokens[:, first + each : first + each + length] for each in self.offsets]
        windows = self.window(parts, positions.query.flatten()[runs.index])
        return runs.place(self._gated(windows), x)

    def _gated(self, windows: Tensor) -> Tensor:
        """Return the outputs [..., D] of windows [..., k · D]."""
        return F.glu(self.projection(windows), -1)
