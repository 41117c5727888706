"""The few options of a model that a person sets; its complete spec follows from them.

The command line makes flags of them, so this module imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import (
    Activation,
    Cell,
    Config,
    Direction,
    Feeding,
    MixerName,
    PositionScheme,
    PositiveInt,
    Probability,
    Readout,
)

if TYPE_CHECKING:
    from heedful.models.model_spec import TranslatorSpec

RotaryScaling = Literal["none", "linear", "ntk", "yarn", "by_wavelength"]


_OF_ATTENTION_BLOCKS = (
    *("num_heads", "num_kv_heads", "head_width", "feedforward", "num_experts"),
    *("experts_per_token", "activation", "norm", "norm_placement", "window", "memory"),
    *("mask", "global_tokens", "relative_values"),
    *("feedforward_dropout", "bias", "attention_scale", "residual"),
    *("mixer", "encoder_mixer", "attention_every", "network", "features", "state_size"),
)
"""Options of `TranslatorShape` that say nothing about layers without self-attention."""


class RecurrentShape(Config):
    """Recurrent layers instead of blocks of attention and feed-forward networks."""

    cell: Cell = "lstm"
    direction: Direction = Field(
        "both", description="of the encoder; backward is a reversed source (Sutskever 2014)"
    )
    attention: Literal["none", "additive", "concat", "dot", "general"] = Field(
        "none",
        description="score of the decoder's attention; none: the encoder's last state is a fixed "
        "vector, all that the decoder knows of a source",
    )
    window: PositiveInt | None = Field(
        None, description="local-p attention: tokens on each side of a predicted place (Luong 2015)"
    )
    key_width: PositiveInt | None = Field(
        None,
        description="numbers of a query and a key that are compared; the width if unset; additive, "
        "concat, dot",
    )
    scale: Annotated[float, Field(gt=0)] = Field(1.0, description="factor on attention scores")
    feeding: Feeding = Field(
        "none",
        description="read beside each token: context (Cho 2014; Bahdanau 2015), or the output of "
        "the step before (input feeding, Luong 2015)",
    )
    readout: Readout = Field(
        "none", description="output of state and context: tanh (Luong 2015), maxout (Bahdanau 2015)"
    )
    residual: bool = Field(
        False, description="layers from the second on add what they read (Wu 2016)"
    )

    @model_validator(mode="after")
    def _options_are_of_attention(self) -> Self:
        for name in ("window", "key_width", "scale"):
            default = type(self).model_fields[name].default
            if self.attention == "none" and getattr(self, name) != default:
                raise ValueError(f"{name} is of attention, and attention is none")
        return self


class ConvolutionShape(Config):
    """Gated convolutions instead of self-attention and feed-forward networks (Gehring 2017)."""

    kernel_width: PositiveInt = Field(3, description="tokens that one output is made of")


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
    mask: str | None = Field(
        None,
        description="keys that self-attention sees, such as 'window(128) | global(2)' or "
        "'strided(32)'; a decoder sees none that come later",
    )
    global_tokens: PositiveInt | None = Field(
        None,
        description="tokens at the beginning of a text that attend by projections of their own "
        "(Longformer); the mask says what they see: global(N)",
    )
    relative_values: PositiveInt | None = Field(
        None,
        description="farthest distance with a vector of its own that is added to values (Shaw)",
    )
    memory: PositiveInt | None = Field(
        None,
        description="language models: tokens before a segment (data.max_length) that its attention "
        "still sees; each token sees so many before it (Transformer-XL)",
    )
    share_embeddings: Literal["all", "target", "none"] = "all"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    feedforward_dropout: Probability = 0.0
    bias: bool = True
    max_length: PositiveInt = 256
    recurrent: RecurrentShape | None = Field(
        None, description="recurrent layers instead of blocks of attention"
    )
    convolution: ConvolutionShape | None = Field(
        None, description="gated convolutions instead of blocks of attention"
    )

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> Self:
        if self.recurrent and self.convolution:
            raise ValueError("layers are recurrent or convolutions: recurrent, convolution")
        if not self.recurrent and not self.convolution:
            return self
        layers = "recurrent layers" if self.recurrent else "convolutions"
        defaults = {name: type(self).model_fields[name].default for name in _OF_ATTENTION_BLOCKS}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                raise ValueError(f"{name} is of blocks of attention; the model's are {layers}")
        if self.positions not in ("sinusoidal", "learned", "none"):
            raise ValueError(f"positions = {self.positions!r} are known by self-attention only")
        return self

    @model_validator(mode="after")
    def _one_option_says_what_is_seen(self) -> Self:
        if self.window is not None and self.mask is not None:
            raise ValueError(
                f"window and mask both say what is seen; as one mask: ({self.mask}) & "
                f"window({self.window})"
            )
        return self

    @model_validator(mode="after")
    def _experts_are_networks(self) -> Self:
        if self.num_experts is not None and not self.feedforward:
            raise ValueError("num_experts needs feedforward above 0: experts are such networks")
        return self

    def expand(self, source_vocabulary: int, target_vocabulary: int) -> TranslatorSpec:
        """Return the complete spec for vocabularies of these sizes, in pieces."""
        from heedful.models.shape_to_spec import translator_spec

        return translator_spec(self, source_vocabulary, target_vocabulary)
