"""Linear recurrences hₜ = aₜ · hₜ₋₁ + bₜ, computed for all t at once, and mixers based on one.

Two steps of such a recurrence are one step of the same form, so a whole sequence takes log₂ L
passes instead of L steps (Blelloch 1990; Martin and Cundy 2018). The gradient is the same
recurrence, backwards. A decoding step is one multiplication and one addition at any length.

Shapes: B sentences, W beams, L length, N elements of the state, D model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heedful.nn.mixer import Context, MakeCache, ScanState
from heedful.nn.work import FLOAT32


def scan(decay: Tensor, value: Tensor, initial: Tensor | None = None) -> Tensor:
    """Compute hₜ = decayₜ · hₜ₋₁ + valueₜ for every t.

    Args:
        decay: [B, L, N].
        value: [B, L, N].
        initial: [B, N], state before the first token; 0 if None.

    Returns:
        [B, L, N].
    """
    if not value.shape[1]:
        return value
    if initial is not None:
        # h₁ = a₁ h₀ + b₁ enters as the first value, so the scan itself always begins at 0.
        first = value[:, :1] + decay[:, :1] * initial[:, None]
        value = torch.cat([first, value[:, 1:]], 1)
    result: Tensor = _Scan.apply(decay, value)  # type: ignore[no-untyped-call]
    return result


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, decay: Tensor, value: Tensor) -> Tensor:
        states = _doubling(decay, value)
        # The final states suffice: those of the doubling passes in between are not kept.
        ctx.save_for_backward(decay, states)
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        decay, states = ctx.saved_tensors
        # gₜ = ∂L/∂hₜ from the output + aₜ₊₁ · gₜ₊₁: the same recurrence, from the end.
        following = torch.cat([decay[:, 1:], torch.zeros_like(decay[:, :1])], 1)
        to_value = _doubling(following.flip(1), gradients[0].flip(1)).flip(1)
        before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)
        return to_value * before, to_value


def _doubling(decay: Tensor, value: Tensor) -> Tensor:
    """Scan by doubling (Hillis and Steele 1986): after pass i an entry covers 2ⁱ steps."""
    length, reach = value.shape[1], 1
    while reach < length:
        value = torch.cat(
            [value[:, :reach], value[:, reach:] + decay[:, reach:] * value[:, :-reach]], 1
        )
        # The last pass needs no decays any more.
        if 2 * reach < length:
            decay = torch.cat([decay[:, :reach], decay[:, reach:] * decay[:, :-reach]], 1)
        reach *= 2
    return value


class LinearRecurrence(nn.Module):
    """A mixer whose tokens see earlier ones through the state of a linear recurrence.

    Padding does not change the state (its decay is 1 and its value 0), so no token has to be moved
    to the front, unlike in a `ScanMixer`. Each packed sequence of a row begins with a state of 0.

    Attributes:
        state_width: N.
    """

    state_width: int

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return decay and value of every token of x [..., D], [..., N] float32 each."""
        raise NotImplementedError

    def result(self, x: Tensor, state: Tensor, context: Context) -> Tensor:
        """Return the output [..., D] of tokens x with the states [..., N] after them."""
        raise NotImplementedError

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Mix whole sequences; see `Mixer`."""
        context = context or Context.whole(x)
        decay, value = self.terms(x)
        decay, value = self._at_padding(decay, value, context.positions.query)
        segments = context.positions.query_segment
        if segments is not None:
            # A decay of 0 at the first token of each sequence forgets the one before it.
            begins = torch.ones_like(segments, dtype=torch.bool)
            begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
            decay = decay.masked_fill(begins[..., None], 0.0)
        return self.result(x, scan(decay, value), context)

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> ScanState:
        """Return the state before the first token; see `Mixer.initial_state`."""
        return ScanState((torch.zeros((rows, 1, self.state_width), device=like.device),))

    def step(self, x: Tensor, state: ScanState, context: Context) -> tuple[Tensor, ScanState]:
        """Continue from a state; see `Mixer.step`."""
        decay, value = self.terms(x)
        positions = context.positions.query.reshape(x.shape[:2])
        decay, value = self._at_padding(decay, value, positions)
        (before,) = state.tensors  # [B, W, N]
        if before.shape[1] == 1:  # several tokens of a single beam, in order
            states = scan(decay, value, before[:, 0])
            last = states[:, -1:] if states.shape[1] else before
            return self.result(x, states, context), ScanState((last,))
        states = decay * before + value
        return self.result(x, states, context), ScanState((states,))

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of the float32 state, the same after any number of tokens."""
        return self.state_width * FLOAT32

    @staticmethod
    def _at_padding(decay: Tensor, value: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        real = (positions >= 0)[..., None]
        return torch.where(real, decay, 1.0), torch.where(real, value, 0.0)
