"""The config trees of the models beside the translator, made of the same stacks.

What tells BERT from RoBERTa or GPT-2 from LLaMA are settings of these trees. No torch here.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability
from heedful.models.spec import StackSpec, TranslatorSpec, check_heads
from heedful.nn.spec import Activation, EmbeddingSpec, NormSpec


class CausalLMSpec(Config):
    """A decoder without a memory that predicts the next token (GPT, LLaMA)."""

    kind: Literal["causal_lm"] = "causal_lm"
    width: PositiveInt
    vocabulary: PositiveInt
    embedding: EmbeddingSpec = EmbeddingSpec()
    decoder: StackSpec
    tied: bool = Field(True, description="the output projection is the embedding table")
    output_bias: bool = False
    max_length: PositiveInt | None = Field(
        None, description="longest text in tokens it was made for; unlimited if unset"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_heads(self.decoder.block.self_attention, self.width)
        if self.decoder.block.cross_attention is not None:
            raise ValueError("a causal language model has no memory to cross-attend to")
        return self


class MaskedLMHeadSpec(Config):
    """Predicts the token at each position (Devlin 2019): dense, activation, norm, vocabulary."""

    kind: Literal["masked_lm"] = "masked_lm"
    activation: Activation = "gelu"
    norm: NormSpec = NormSpec()
    tied: bool = Field(True, description="the output projection is the embedding table")


class SequenceHeadSpec(Config):
    """Labels of a whole text, from its first token."""

    kind: Literal["sequence"] = "sequence"
    labels: tuple[str, ...]
    source: Literal["pooled", "first"] = Field(
        "pooled", description="the pooler's output, or the first state through its own dense, tanh"
    )
    dropout: Probability = 0.0


class TokenHeadSpec(Config):
    """A label of each token."""

    kind: Literal["token"] = "token"
    labels: tuple[str, ...]
    dropout: Probability = 0.0


class SpanHeadSpec(Config):
    """Where an answer starts and ends (Rajpurkar 2016)."""

    kind: Literal["span"] = "span"


HeadSpec = Annotated[
    MaskedLMHeadSpec | SequenceHeadSpec | TokenHeadSpec | SpanHeadSpec,
    Field(discriminator="kind"),
]


class EncoderSpec(Config):
    """An encoder of text and what is predicted from its states (BERT, RoBERTa)."""

    kind: Literal["encoder"] = "encoder"
    width: PositiveInt
    vocabulary: PositiveInt
    embedding: EmbeddingSpec = EmbeddingSpec()
    encoder: StackSpec
    pooler: bool = Field(False, description="a dense layer and tanh over the first state")
    heads: tuple[HeadSpec, ...] = Field((), description="at most one of each kind")
    max_length: PositiveInt | None = Field(
        None, description="longest text in tokens it was made for; unlimited if unset"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_heads(self.encoder.block.self_attention, self.width)
        kinds = [head.kind for head in self.heads]
        if len(set(kinds)) < len(kinds):
            raise ValueError("two heads are of the same kind")
        pooled = [h for h in self.heads if isinstance(h, SequenceHeadSpec) and h.source == "pooled"]
        if pooled and not self.pooler:
            raise ValueError("a sequence head over the pooled state needs pooler = true")
        return self


class VisionSpec(Config):
    """An encoder of images cut into patches (Dosovitskiy 2021)."""

    kind: Literal["vision"] = "vision"
    width: PositiveInt
    image_size: PositiveInt = Field(224, description="height and width in pixels")
    patch_size: PositiveInt = 16
    channels: PositiveInt = 3
    encoder: StackSpec
    pooling: Literal["first", "mean"] = Field(
        "first", description="what stands for the image: a [CLS] vector of its own, or the mean"
    )
    pooler: bool = Field(False, description="a dense layer and tanh over it")
    labels: tuple[str, ...] = Field((), description="classes; no classifier if there are none")
    dropout: Probability = Field(0.0, description="after patches and positions are added")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_heads(self.encoder.block.self_attention, self.width)
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )
        return self


ModelSpec = Annotated[
    TranslatorSpec | CausalLMSpec | EncoderSpec | VisionSpec, Field(discriminator="kind")
]
