"""Convolutions over tokens with gated linear units (Dauphin 2017; Gehring 2017).

An output depends on the `kernel_width` tokens around its own, or up to its own: a linear map takes
them to twice the width, and one half is multiplied by the sigmoid of the other. All positions are
computed at once, as in attention, but farther tokens are seen only through several layers.

Shapes: B sentences, W beams, L length, D model width; N sequences of up to M tokens; k kernel
    width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.nn.mixer import Context, MakeCache, ScanState
from heedful.nn.mixer_spec import ConvolutionSpec
from heedful.nn.mixers.recurrent import Runs
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
        self.kernel_width = spec.kernel_width
        self.causal = spec.causal
        self.dropout = nn.Dropout(spec.dropout)
        # One linear map over a window, not `Conv1d`: a decoding step then is the same matmul.
        self.projection = nn.Linear(spec.kernel_width * width, 2 * width)
        # N(0, √(4 p / (k · D))) with p the share that dropout keeps: a gated linear unit leaves
        # about a quarter of its input's variance (Gehring 2017, section 3.5).
        deviation = math.sqrt(4 * (1 - spec.dropout) / (spec.kernel_width * width))
        nn.init.normal_(self.projection.weight, std=deviation)
        nn.init.zeros_(self.projection.bias)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Mix whole sequences; see `Mixer`."""
        context = context or Context.whole(x)
        before = self.kernel_width - 1 if self.causal else self.kernel_width // 2
        # Each sequence on its own and padded with zeros, so that no window reaches a neighbour.
        runs = Runs.of(context.positions)
        return self._over_runs(x, runs, F.pad(self._tokens(x, runs), (0, 0, before, 0)))

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
        inputs = like.new_zeros((rows, 1, self.kernel_width - 1, self.width))
        return ScanState((inputs,))  # the last k − 1 inputs, [B, W, k − 1, D]

    def step(self, x: Tensor, state: ScanState, context: Context) -> tuple[Tensor, ScanState]:
        """Mix more tokens; see `Mixer.step`. Padding does not change the state."""
        inputs, kept = state.tensors[0].to(x.dtype), self.kernel_width - 1
        if inputs.shape[1] == 1 and x.shape[1] > 1:  # several tokens of a single beam
            runs = Runs.of(context.positions)
            tokens = torch.cat([inputs[:, 0], self._tokens(x, runs)], 1)
            # The k − 1 inputs that end at each row's last real token, whatever padding follows it.
            last = runs.lengths[:, None] + torch.arange(kept, device=x.device)
            after = tokens.gather(1, last[..., None].expand(-1, -1, self.width))
            return self._over_runs(x, runs, tokens), ScanState((after[:, None],))
        tokens = torch.cat([inputs, self._drop(x)[:, :, None]], 2)
        real = context.positions.query.reshape(*x.shape[:2], 1, 1) >= 0
        after = torch.where(real, tokens[:, :, 1:], inputs)
        return self._gated(tokens.flatten(2)), ScanState((after,))

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens, independent of other tokens; see `Costed`."""
        return Work(weights=queries * weight_work(self.projection))

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of the last inputs, the same after any number of tokens."""
        return (self.kernel_width - 1) * self.width * FLOAT32

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of windows, of both halves of the output and of the gate."""
        marks = self.width if self.dropout.p else 0
        return Saved((self.kernel_width + 2) * self.width, marks)

    def _tokens(self, x: Tensor, runs: Runs) -> Tensor:
        """Return the tokens of each sequence [N, M, D], zeros past its end."""
        return runs.take(self._drop(x)) * runs.is_real[..., None]

    def _drop(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.dropout(x)
        return dropped

    def _over_runs(self, x: Tensor, runs: Runs, tokens: Tensor) -> Tensor:
        """Return the output in the layout of x [B, L, D].

        Args:
            x: tensor with the layout of the result.
            runs: sequences of x.
            tokens: [N, b + M, D], tokens of each sequence, after the b tokens that its first one
                sees before it.
        """
        length = runs.index.shape[1]
        tokens = F.pad(tokens, (0, 0, 0, length + self.kernel_width - 1 - tokens.shape[1]))
        # Shifted slices side by side: [N, M, k · D], the windows of all tokens.
        windows = [tokens[:, first : first + length] for first in range(self.kernel_width)]
        return runs.place(self._gated(torch.cat(windows, -1)), x)

    def _gated(self, windows: Tensor) -> Tensor:
        """Return the outputs [..., D] of windows [..., k · D]."""
        return F.glu(self.projection(windows), -1)
