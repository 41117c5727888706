"""The few options of a model that a person sets; its complete spec follows from them.

The command line makes flags of them, so this module imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability
from heedful.nn.spec import Activation, MixerName, PositionScheme

if TYPE_CHECKING:
    from heedful.models.model_spec import TranslatorSpec

RotaryScaling = Literal["none", "linear", "ntk", "yarn", "by_wavelength"]


class TranslatorShape(Config):
    """The options of a translator; everything else of its spec follows from them."""

    width: PositiveInt = 512
    encoder_layers: PositiveInt = 6
    decoder_layers: PositiveInt = 6
    mixer: MixerName = Field(
        "attention", description="how tokens of a decoder exchange information"
    )
    encoder_mixer: MixerName = Field(
        "attention", description="how tokens of an encoder exchange information"
    )
    attention_every: Annotated[int, Field(ge=2)] | None = Field(
        None, description="in stacks of another mixer, every layer of this number has attention"
    )
    network: Literal["feedforward", "channel_mix"] = Field(
        "feedforward",
        description="of a decoder's layers: of each token alone, or RWKV's, which also reads the "
        "token before",
    )
    features: Literal["elu", "cosine", "random"] | None = Field(
        None,
        description="feature map of linear_attention: cosine is cosFormer's, random Performer's; "
        "elu if unset",
    )
    state_size: PositiveInt | None = Field(
        None, description="numbers that a channel of s4d or mamba remembers; 64 and 16 if unset"
    )
    num_heads: PositiveInt = 8
    num_kv_heads: PositiveInt | None = None
    head_width: PositiveInt | None = Field(
        None, description="width of an attention head; width / num_heads if unset"
    )
    feedforward: Annotated[int, Field(ge=0)] = Field(
        2048, description="inner width of the feed-forward network; 0 leaves it out"
    )
    num_experts: PositiveInt | None = Field(
        None, description="feed-forward networks in each layer of which a token uses a few"
    )
    experts_per_token: PositiveInt = 2
    activation: Activation = "relu"
    norm: Literal["layer", "rms"] = "layer"
    norm_placement: Literal["post", "pre", "none"] = "post"
    residual: bool = Field(True, description="add each sub-layer's output to its input")
    attention_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="factor on attention scores; 1/sqrt(head width) if unset"
    )
    positions: PositionScheme = "sinusoidal"
    rotary_scaling: RotaryScaling = Field(
        "none", description="how rotary positions are stretched to longer texts than trained on"
    )
    rotary_factor: Annotated[float, Field(ge=1)] = Field(
        1.0, description="how many times longer texts get by rotary_scaling"
    )
    rotary_original_length: PositiveInt | None = Field(
        None, description="tokens of the texts before rotary_scaling; yarn and by_wavelength"
    )
    window: PositiveInt | None = Field(None, description="self-attention sees only this near")
    share_embeddings: Literal["all", "target", "none"] = "all"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    feedforward_dropout: Probability = 0.0
    bias: bool = True
    max_length: PositiveInt = 256

    @model_validator(mode="after")
    def _experts_are_networks(self) -> Self:
        if self.num_experts is not None and not self.feedforward:
            raise ValueError("num_experts needs feedforward above 0: experts are such networks")
        return self

    def expand(self, source_vocabulary: int, target_vocabulary: int) -> TranslatorSpec:
        """Return the complete spec for vocabularies of these sizes, in pieces."""
        from heedful.models.shape_to_spec import translator_spec

        return translator_spec(self, source_vocabulary, target_vocabulary)
