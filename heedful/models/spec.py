"""The config tree of a model, the same tree as its modules.

`TranslatorSpec` is complete and explicit: what `config.json` of a model directory holds.
`TranslatorShape` is the handful of dials a person turns; `expand` gives the complete tree.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability
from heedful.nn.spec import (
    Activation,
    AlibiSpec,
    AllOfSpec,
    AttentionSpec,
    BiasSpec,
    CausalSpec,
    EmbeddingSpec,
    EverythingSpec,
    ExpertsSpec,
    FeedForwardSpec,
    MaskSpec,
    NormSpec,
    PositionSpec,
    RelativeKeysSpec,
    RotarySpec,
    T5BiasSpec,
    WindowSpec,
)


class BlockSpec(Config):
    """One layer: self-attention, cross-attention where there is a memory, feed-forward."""

    norm_placement: Literal["post", "pre"] = Field(
        "post", description="norm after the residual sum (2017) or before each sub-layer"
    )
    norm: NormSpec = NormSpec()
    self_attention: AttentionSpec
    cross_attention: AttentionSpec | None = None
    feedforward: FeedForwardSpec
    dropout: Probability = Field(0.0, description="on each sub-layer's output, before the sum")


class StackSpec(Config):
    """`num_layers` equal blocks, an optional final norm, an optional bias all layers share."""

    num_layers: PositiveInt
    block: BlockSpec
    final_norm: NormSpec | None = None
    final_dropout: Probability = Field(0.0, description="on the last states, after that norm")
    shared_position_bias: BiasSpec | None = None


class TranslatorSpec(Config):
    """A sequence-to-sequence Transformer (Vaswani 2017)."""

    kind: Literal["translator"] = "translator"
    width: PositiveInt
    source_vocabulary: PositiveInt
    target_vocabulary: PositiveInt
    share_embeddings: Literal["all", "inputs", "target", "none"] = Field(
        "all",
        description="all: source, target and output; inputs: source and target; "
        "target: target and output",
    )
    embedding: EmbeddingSpec = EmbeddingSpec()
    encoder: StackSpec
    decoder: StackSpec
    output_bias: bool = Field(False, description="a learned number per piece, added to its score")
    output_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="factor on the decoder's states before the output projection"
    )
    max_length: PositiveInt = Field(
        256, description="longest source in tokens that is translated in one piece"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        share = self.share_embeddings
        if share in ("all", "inputs") and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                f"share_embeddings = {share!r} needs equal source and target vocabularies"
            )
        if self.decoder.block.cross_attention is None:
            raise ValueError("the decoder's block needs cross_attention")
        for stack in (self.encoder, self.decoder):
            check_heads(stack.block.self_attention, self.width)
        check_heads(self.decoder.block.cross_attention, self.width)
        return self


def check_heads(attention: AttentionSpec, width: int) -> None:
    """Refuse heads that do not share the width evenly.

    Raises:
        ValueError: when they do not.
    """
    if attention.head_width is None and width % attention.num_heads:
        raise ValueError(f"width {width} is not a multiple of num_heads {attention.num_heads}")


PositionScheme = Literal["sinusoidal", "learned", "none", "rotary", "alibi", "t5", "relative_keys"]


class TranslatorShape(Config):
    """The dials of a translator; everything else of its spec follows from them."""

    width: PositiveInt = 512
    encoder_layers: PositiveInt = 6
    decoder_layers: PositiveInt = 6
    num_heads: PositiveInt = 8
    num_kv_heads: PositiveInt | None = None
    feedforward: PositiveInt = 2048
    num_experts: PositiveInt | None = Field(
        None, description="feed-forward networks in each layer of which a token uses a few"
    )
    experts_per_token: PositiveInt = 2
    activation: Activation = "relu"
    norm: Literal["layer", "rms"] = "layer"
    norm_placement: Literal["post", "pre"] = "post"
    positions: PositionScheme = "sinusoidal"
    window: PositiveInt | None = Field(None, description="self-attention sees only this near")
    share_embeddings: Literal["all", "target", "none"] = "all"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    feedforward_dropout: Probability = 0.0
    bias: bool = True
    max_length: PositiveInt = 256

    def expand(self, source_vocabulary: int, target_vocabulary: int) -> TranslatorSpec:
        """The complete spec for vocabularies of these sizes (in types)."""
        final_norm = NormSpec(kind=self.norm) if self.norm_placement == "pre" else None
        embedding_positions: Literal["sinusoidal", "learned", "none"] = "none"
        if self.positions == "sinusoidal" or self.positions == "learned":
            embedding_positions = self.positions
        return TranslatorSpec(
            width=self.width,
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            share_embeddings=self.share_embeddings,
            embedding=EmbeddingSpec(
                positions=PositionSpec(
                    kind=embedding_positions,
                    max_length=self.max_length + 1 if embedding_positions == "learned" else None,
                ),
                dropout=self.dropout,
            ),
            encoder=StackSpec(
                num_layers=self.encoder_layers,
                block=self._block(decoder=False),
                final_norm=final_norm,
                shared_position_bias=self._shared_bias(bidirectional=True),
            ),
            decoder=StackSpec(
                num_layers=self.decoder_layers,
                block=self._block(decoder=True),
                final_norm=final_norm,
                shared_position_bias=self._shared_bias(bidirectional=False),
            ),
            max_length=self.max_length,
        )

    def _block(self, *, decoder: bool) -> BlockSpec:
        return BlockSpec(
            norm_placement=self.norm_placement,
            norm=NormSpec(kind=self.norm),
            self_attention=self._self_attention(causal=decoder),
            cross_attention=self._attention() if decoder else None,
            feedforward=FeedForwardSpec(
                width=self.feedforward,
                activation=self.activation,
                bias=self.bias,
                dropout=self.feedforward_dropout,
                experts=self._experts(),
            ),
            dropout=self.dropout,
        )

    def _experts(self) -> ExpertsSpec | None:
        if self.num_experts is None:
            return None
        several = self.experts_per_token > 1
        return ExpertsSpec(
            num_experts=self.num_experts,
            per_token=self.experts_per_token,
            renormalize=several,  # the weight of a single one would always be 1
        )

    def _attention(self) -> AttentionSpec:
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            bias=self.bias,
            dropout=self.attention_dropout,
        )

    def _self_attention(self, *, causal: bool) -> AttentionSpec:
        mask: MaskSpec = CausalSpec() if causal else EverythingSpec()
        if self.window is not None:
            near = WindowSpec(size=self.window)
            mask = AllOfSpec(parts=(mask, near)) if causal else near
        per_layer: BiasSpec | None = None
        if self.positions == "alibi":
            per_layer = AlibiSpec()
        elif self.positions == "relative_keys":
            per_layer = RelativeKeysSpec()
        return self._attention().model_copy(
            update={
                "mask": mask,
                "rotary": RotarySpec() if self.positions == "rotary" else None,
                "position_bias": per_layer,
            }
        )

    def _shared_bias(self, *, bidirectional: bool) -> T5BiasSpec | None:
        return T5BiasSpec(bidirectional=bidirectional) if self.positions == "t5" else None
