"""The block every architecture here is made of: a list of sub-layers (Vaswani 2017).

Shapes: B sentences, W beams of each, L length, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from heedful.config import Activation
from heedful.models.stack_spec import BlockSpec
from heedful.nn.mixer import Context, CrossMixer, MixerState, build_part, spec_of
from heedful.nn.norms import build_norm
from heedful.nn.spec import AttentionSpec, FeedForwardSpec, NormPlacement, NormSpec

if TYPE_CHECKING:
    from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
    from heedful.nn.feedforward import FeedForward
    from heedful.nn.moe import MixtureOfExperts

BlockState = Sequence[MixerState | None]
"""A state for each sub-layer; None for parts that keep none, such as feed-forward networks."""


_USUAL = {"self_attention", "cross_attention", "cross_attention_norm", "feedforward"}
"""Modules that other packages ask every block for: None in a block without them."""


@dataclass(frozen=True)
class SubLayer:
    """The settings of one sub-layer; the block holds its modules under its name.

    Args:
        name: name of the part (`self_attention`); its other modules add `_norm`, `_output_norm` and
            `_dropout`.
        placement: place of the norm.
        residual_scale: factor on the residual sum.
        reads_memory: True where the part is a `CrossMixer`.
        parallel: True where the part reads the input of the block.
    """

    name: str
    placement: NormPlacement
    residual_scale: float
    reads_memory: bool
    parallel: bool

    @property
    def address(self) -> str:
        """The place of its captures within the block: `self`, `cross`, `feedforward`."""
        return self.name.removesuffix("_attention")

    @property
    def norms_input(self) -> bool:
        """True if the input of the part is normed."""
        return self.placement in ("before", "both")


class Block(nn.Module):
    """Sub-layers one after the other, each: norm, part, dropout, residual sum, norm.

    Args:
        width: model width D.
        spec: description of the sub-layers.

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
        # Only settings: modules are looked up by name, as engines may replace them.
        self.sublayers = tuple(
            SubLayer(s.name, s.norm_placement, s.residual_scale, s.part.reads_memory, s.parallel)
            for s in layers
        )
        # Kept apart from the settings, as ablations replace it to cut connections of trained
        # models.
        self.cut = frozenset(s.name.removesuffix("_attention") for s in layers if not s.residual)
        for each in layers:
            self.register_module(each.name, build_part(width, each.part))
            # Dropout of the output, before the sum (Vaswani 2017, section 5.4).
            self.register_module(f"{each.name}_dropout", nn.Dropout(each.dropout))
            if each.norm_placement not in ("none", "output"):
                self.register_module(f"{each.name}_norm", build_norm(each.norm, width))
            if each.norm_placement in ("both", "output"):
                self.register_module(f"{each.name}_output_norm", build_norm(each.norm, width))
        # Otherwise `block.cross_attention` of a block without one would raise an AttributeError.
        for name in _USUAL - self._modules.keys():
            self.register_module(name, None)

    def forward(
        self, x: Tensor, context: Context, states: BlockState = ()
    ) -> tuple[Tensor, BlockState]:
        """Pass x [B, L, D] through every sub-layer.

        At `{address}.self`, `.cross` and `.feedforward` a capture may ask for four tensors
        [B, L, D]: the `input` of the part, its `output`, the `residual` sum of stream and output,
        and the `stream` after the sub-layer, which is that sum, normed where norms come last.

        Args:
            x: stream [B, L, D]; [B, W, D] for a token of each beam.
            context: positions of x, and the capture.
            states: states of the sub-layers; empty for whole sequences without a memory.

        Returns:
            The stream after the block, of the shape of x, and the states after these tokens.
        """
        after: list[MixerState | None] = []
        start = x
        for index, sublayer in enumerate(self.sublayers):
            part, norm, output_norm, dropout = self.modules_of(sublayer)
            here, state = context.at(sublayer.address), states[index] if states else None
            # The norm stands before the part (Xiong 2020), or after the sum as in 2017, which needs
            # a warm-up.
            # Parallel parts read the same stream, so their maps can run at once (Wang 2021).
            y = start if sublayer.parallel else x
            y = norm(y) if sublayer.norms_input else y
            here.offer("input", y)
            if state is None:
                output = part(y, here)
            else:
                output, state = part.step(y, state, here)
            if output_norm is not None:  # Gemma 2 (2024): the stream's growth is bounded
                output = output_norm(output)
            here.offer("output", output)
            # Captured without dropout, so that a capture in training shows the part itself.
            output = dropout(output)
            x = output if sublayer.address in self.cut else x + output
            if sublayer.residual_scale != 1.0:
                x = x * sublayer.residual_scale
            here.offer("residual", x)
            if sublayer.placement == "after":
                x = norm(x)
            here.offer("stream", x)
            after.append(state)
        return x, after

    def modules_of(self, sublayer: SubLayer) -> tuple[Any, Any, Any, Any]:
        """Return the part, norm, output norm and dropout of a sub-layer; None for absent norms."""
        # Read from the dictionary: `nn.Module.__getattr__` is slow Python, and has no default.
        name, modules = sublayer.name, self._modules
        norms = modules.get(f"{name}_norm"), modules.get(f"{name}_output_norm")
        return modules[name], *norms, modules[f"{name}_dropout"]

    def parts(self) -> list[Any]:
        """Return the parts of the sub-layers, in their order."""
        return [getattr(self, each.name) for each in self.sublayers]

    def readers(self) -> list[CrossMixer | None]:
        """Return the parts that read a memory, with None in the place of the others."""
        return [getattr(self, s.name) if s.reads_memory else None for s in self.sublayers]

    @property
    def norm_first(self) -> bool:
        """True if the norm of every sub-layer stands before its part and nowhere else."""
        return all(each.placement == "before" for each in self.sublayers)


class TransformerBlock(nn.Module):
    """The block of the Transformer for other models: attention over the input, and a network.

    Args:
        width: model width D.
        heads: number of query heads.
        inner: inner width of the feed-forward network; 4 · D if unset.
        activation: activation of the network, perhaps gated, such as `gelu` or `swiglu`.
        norm: kind of the norms, `layer` or `rms`.
        norm_placement: place of the norms: pre, post or none.
        dropout: dropout probability of each sub-layer's output.
        **attention: other fields of `AttentionSpec`, such as `mask` or `rotary`.

    Raises:
        ConfigError: when a setting is unknown or wrong.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        inner: int | None = None,
        activation: Activation = "gelu",
        norm: Literal["layer", "rms"] = "layer",
        norm_placement: Literal["post", "pre", "none"] = "pre",
        dropout: float = 0.0,
        **attention: Any,
    ) -> None:
        super().__init__()
        spec = BlockSpec.of(
            self_attention=spec_of(AttentionSpec, width, None, {"num_heads": heads, **attention}),
            feedforward=FeedForwardSpec(width=inner or 4 * width, activation=activation),
            norm=NormSpec(kind=norm),
            norm_placement=norm_placement,
            dropout=dropout,
        )
        self.block = Block(width, spec)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Pass whole sequences x [B, L, D] through the block; without padding by default."""
        return self.block(x, context or Context.whole(x))[0]  # type: ignore[no-any-return]
