"""The block every architecture here is made of: a list of sub-layers (Vaswani 2017).

Shapes: B sentences, W beams of each, L length, R rows without padding, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from heedful.models.stack_spec import BlockSpec
from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
from heedful.nn.feedforward import FeedForward
from heedful.nn.mixer import Context, MixerState
from heedful.nn.moe import MixtureOfExperts
from heedful.nn.parts import build_part
from heedful.nn.sublayer import ResidualNorm, SubLayer, apply_norm, build_norm, run_sublayer

BlockState = Sequence[MixerState | None]
"""A state for each sub-layer; None for parts without one, and where a whole sequence is mixed."""


_USUAL = {"self_attention", "cross_attention", "cross_attention_norm", "feedforward"}
"""Modules that are None in a block without them."""


class Block(nn.Module):
    """Sub-layers one after the other, each: norm, part, dropout, residual sum, norm.

    Args:
        width: model width D.
        spec: the sub-layers.

    Attributes:
        cut: addresses of sub-layers whose residual connection is left out.
    """

    self_attention: SelfAttention
    self_attention_norm: nn.Module
    cross_attention: CrossAttention | None
    cross_attention_norm: nn.Module | None
    feedforward: FeedForward | MixtureOfExperts
    feedforward_norm: nn.Module

    def __init__(self, width: int, spec: BlockSpec) -> None:
        super().__init__()
        layers = spec.sublayers
        self.sublayers = tuple(
            SubLayer(s.name, s.norm_placement, s.dropout, s.residual_scale) for s in layers
        )
        self.cut = frozenset(s.name.removesuffix("_attention") for s in layers if not s.residual)
        for each in layers:
            self.register_module(each.name, build_part(width, each.part))
            if each.norm_placement != "none":
                self.register_module(f"{each.name}_norm", build_norm(each.norm, width))
            if each.norm_placement == "both":
                self.register_module(f"{each.name}_output_norm", build_norm(each.norm, width))
        for name in _USUAL - self._modules.keys():
            self.register_module(name, None)

    def forward(
        self, x: Tensor, context: Context, states: BlockState = ()
    ) -> tuple[Tensor, BlockState]:
        """Pass x [B, L, D] through every sub-layer.

        A capture may ask, at `{address}.self`, `.cross` and `.feedforward`, for [B, L, D]: the
        `input` that part reads, the `output` it adds to the stream, the `residual` that is their
        sum, and the `stream` that goes on, which is the sum, normed where norms come last.

        Args:
            x: [B, L, D]; [B, W, D], a token of each beam; [1, R, D] without its padding.
            context: positions of x.
            states: of the sub-layers; none where a whole sequence is mixed and nothing is read.

        Returns:
            As x, and the states after it.
        """
        y = self._first_input(x, context)
        next_states: list[MixerState | None] = []
        for index, sublayer in enumerate(self.sublayers):
            here, state = context.at(sublayer.address), states[index] if states else None
            part, after = getattr(self, sublayer.name), self._after(index)
            x, y, state = run_sublayer(part, x, y, after, here, state, training=self.training)
            next_states.append(state)
        return x, next_states

    def parts(self) -> list[Any]:
        """Return the parts of the sub-layers, in their order."""
        return [getattr(self, each.name) for each in self.sublayers]

    @property
    def norm_first(self) -> bool:
        """True if the norm of every sub-layer stands before its part and nowhere else."""
        return all(each.placement == "before" for each in self.sublayers)

    def _first_input(self, x: Tensor, context: Context) -> Tensor:
        first = self.sublayers[0]
        if not first.norms_input:
            return x
        norm = getattr(self, f"{first.name}_norm")
        return apply_norm(x, norm, self.training and not context.capture)

    def _after(self, index: int) -> ResidualNorm:
        """Return what follows the part of a sub-layer, up to the input of the next part."""
        here, following = self.sublayers[index], self.sublayers[index + 1 : index + 2]
        name, reads_norm = here.name, any(each.norms_input for each in following)
        return ResidualNorm(
            norm=getattr(self, f"{name}_norm") if here.placement == "after" else None,
            input_norm=getattr(self, f"{following[0].name}_norm") if reads_norm else None,
            dropout=here.dropout,
            output_norm=getattr(self, f"{name}_output_norm") if here.placement == "both" else None,
            residual=here.address not in self.cut,
            scale=here.residual_scale,
        )
