"""The config tree of a model, the same tree as its modules.

`TranslatorSpec` is complete and explicit: what `config.json` of a model directory holds.
The handful of dials a person turns is `heedful.models.shape`; `expand` gives the complete tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability
from heedful.nn.spec import (
    AttentionSpec,
    BiasSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
)

HeadNumbers = tuple[Annotated[int, Field(ge=0)], ...]


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


class KeptHeadsSpec(Config):
    """Numbers of the heads that pruning left in a layer, ascending (Michel 2019; Voita 2019)."""

    self_attention: HeadNumbers | None = Field(None, description="all if unset")
    cross_attention: HeadNumbers | None = Field(None, description="all if unset")


class StackSpec(Config):
    """`num_layers` equal blocks, an optional final norm, an optional bias all layers share."""

    num_layers: PositiveInt
    block: BlockSpec
    final_norm: NormSpec | None = None
    final_dropout: Probability = Field(0.0, description="on the last states, after that norm")
    shared_position_bias: BiasSpec | None = None
    kept_heads: tuple[KeptHeadsSpec, ...] | None = Field(
        None, description="for each layer the heads that are left; all if unset"
    )

    @model_validator(mode="after")
    def _keeps_heads_there_are(self) -> Self:
        if self.kept_heads is None:
            return self
        if len(self.kept_heads) != self.num_layers:
            raise ValueError(
                f"kept_heads has {len(self.kept_heads)} layers, num_layers is {self.num_layers}"
            )
        for number, layer in enumerate(self.kept_heads):
            for name in ("self_attention", "cross_attention"):
                _check_kept(getattr(layer, name), getattr(self.block, name), f"{number}.{name}")
        return self

    def kept(self, layer: int) -> KeptHeadsSpec:
        """The heads that are left in a layer, from 0."""
        return KeptHeadsSpec() if self.kept_heads is None else self.kept_heads[layer]


def _check_kept(kept: Sequence[int] | None, attention: AttentionSpec | None, where: str) -> None:
    if kept is None:
        return
    if attention is None:
        raise ValueError(f"kept_heads.{where}: there is no such attention")
    if list(kept) != sorted(set(kept)) or any(head >= attention.num_heads for head in kept):
        raise ValueError(
            f"kept_heads.{where}: these are no ascending numbers below {attention.num_heads}"
        )


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
