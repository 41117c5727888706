"""Options of the architecture that users set, from which the complete spec of a model follows.

The command line makes flags of them, so this module imports nothing heavy.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import (
    ADDED_POSITIONS,
    Activation,
    AnyMixer,
    AnyPositions,
    Cell,
    Config,
    Direction,
    Feeding,
    PositiveInt,
    Probability,
    Readout,
)

RotaryScaling = Literal["none", "linear", "ntk", "yarn", "by_wavelength"]


_OF_ATTENTION_BLOCKS = (
    *("num_heads", "num_kv_heads", "head_width", "feedforward", "num_experts"),
    *("experts_per_token", "activation", "norm", "norm_placement", "window", "memory"),
    *("mask", "global_tokens", "relative_values"),
    *("feedforward_dropout", "bias", "attention_scale", "residual"),
    *("mixer", "encoder_mixer", "attention_every", "network", "features", "state_size"),
)
"""Options of `TranslatorShape` that have no meaning in recurrent and convolutional layers."""

_OF_TOKENS_ATTENTION = (
    *("num_kv_heads", "attention_scale", "attention_dropout", "encoder_mixer", "attention_every"),
    *("window", "mask", "global_tokens", "relative_values"),
)
"""Options that have no meaning in the blocks of an Evoformer."""


class RecurrentShape(Config):
    """Recurrent layers instead of blocks of attention and feed-forward networks."""

    cell: Cell = Field(
        "lstm",
        description="recurrent cell: Elman's network with tanh (rnn), LSTM (Hochreiter and "
        "Schmidhuber 1997) or GRU (Cho 2014)",
    )
    direction: Direction = Field(
        "both",
        description="reading direction of the encoder; backward reverses the source (Sutskever "
        "2014), both reads both ways with half of the width each (Schuster 1997)",
    )
    attention: Literal["none", "additive", "concat", "dot", "general"] = Field(
        "none",
        description="score function of the decoder's attention (Bahdanau 2015: additive; Luong "
        "2015: the others); with none the decoder knows only the encoder's last state",
    )
    window: PositiveInt | None = Field(
        None,
        description="half width, in tokens, of the window that attention sees around a predicted "
        "source position (local-p attention, Luong 2015); the whole source if unset",
    )
    key_width: PositiveInt | None = Field(
        None,
        description="size of the queries and keys of additive, concat and dot attention; "
        "model.width if unset",
    )
    scale: Annotated[float, Field(gt=0)] = Field(
        1.0, description="factor on attention scores before the softmax"
    )
    feeding: Feeding = Field(
        "none",
        description="decoder input in addition to the token embedding: the context vector (Cho "
        "2014; Bahdanau 2015), or the last output (input feeding, Luong 2015)",
    )
    readout: Readout = Field(
        "none",
        description="layer between decoder state and output projection: tanh (Luong 2015) or "
        "maxout (Goodfellow 2013; Bahdanau 2015)",
    )
    residual: bool = Field(
        False,
        description="add the input of each layer from the second on to its output (Wu 2016); for "
        "four layers and more",
    )

    @model_validator(mode="after")
    def _options_are_of_attention(self) -> Self:
        for name in ("window", "key_width", "scale"):
            # Compared with the default and not by `model_fields_set`: an option that is set to its
            # default does no harm.
            default = type(self).model_fields[name].default
            if self.attention == "none" and getattr(self, name) != default:
                raise ValueError(f"{name} is of attention, and attention is none")
        return self


class ConvolutionShape(Config):
    """Gated convolutions instead of self-attention and feed-forward networks (Gehring 2017)."""

    kernel_width: PositiveInt = Field(
        3,
        description="number of tokens that each convolution sees, its own included; with columns "
        "the side of a square kernel",
    )
    columns: PositiveInt | None = Field(
        None,
        description="tokens in a row of an image, for convolutions over the rows above and the "
        "pixels to the left (PixelCNN, van den Oord 2016); one dimension if unset",
    )
    first: Annotated[int, Field(ge=0)] = Field(
        0,
        description="position of the top left pixel: 1 where an image follows the begin token",
    )


class EvoformerShape(Config):
    """The pair stack of the Evoformer instead of blocks of attention (Jumper 2021).

    A block is triangle multiplication with outgoing and with incoming edges, triangle attention
    around the starting and the ending node, and the feed-forward network, each after a norm.
    """

    side: PositiveInt = Field(
        description="number of residues N of every chain; a text has N² words, one for each pair, "
        "row by row"
    )


class TranslatorShape(Config):
    """Options of the architecture, from which the complete spec follows."""

    # Without a preset a model is the base model of Vaswani 2017.
    width: PositiveInt = Field(
        512,
        description="size of embeddings and hidden states (d_model); num_heads must divide it "
        "unless head_width is set",
    )
    encoder_layers: PositiveInt = Field(
        6, description="number of encoder layers; models without an encoder ignore it"
    )
    decoder_layers: PositiveInt = Field(
        6, description="number of decoder layers, also of a language model"
    )
    mixer: AnyMixer = Field(
        "attention",
        description="token mixer of decoder layers: attention, or a layer whose time grows "
        "linearly with the length",
    )
    encoder_mixer: AnyMixer = Field(
        "attention",
        description="token mixer of encoder layers, also of encoders such as BERT and ViT",
    )
    attention_every: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="keep attention in every N-th layer where the mixer is another one; in none "
        "if unset",
    )
    network: Literal["feedforward", "channel_mix"] = Field(
        "feedforward",
        description="network after the mixer in decoder layers: feedforward, or channel_mix of "
        "RWKV (Peng 2023), which also sees the previous token",
    )
    features: Literal["elu", "cosine", "random"] | None = Field(
        None,
        description="feature map of linear_attention: elu (Katharopoulos 2020), cosine "
        "(cosFormer, Qin 2022) or random (Performer, Choromanski 2021); elu if unset",
    )
    state_size: PositiveInt | None = Field(
        None,
        description="size of the recurrent state of each channel of s4d (64 if unset) or mamba "
        "(16 if unset)",
    )
    num_heads: PositiveInt = Field(
        8, description="number of attention heads; a head size (width / num_heads) of 64 is usual"
    )
    num_kv_heads: PositiveInt | None = Field(
        None,
        description="number of key and value heads (grouped-query attention, Ainslie 2023); a "
        "divisor of num_heads, which is the value if unset; 1 is multi-query attention",
    )
    head_width: PositiveInt | None = Field(
        None, description="size of an attention head; width / num_heads if unset"
    )
    feedforward: Annotated[int, Field(ge=0)] = Field(
        2048,
        description="inner size of the feed-forward network, usually 4 x width; 0 leaves the "
        "network out",
    )
    num_experts: PositiveInt | None = Field(
        None,
        description="number of feed-forward networks (experts) in each layer, of which a router "
        "chooses some for each token; one network without a router if unset",
    )
    experts_per_token: PositiveInt = Field(
        2, description="number of experts that compute each token (top-k routing)"
    )
    activation: Activation = Field(
        "relu",
        description="activation of the feed-forward network; swiglu, geglu and reglu are gated "
        "(Shazeer 2020) and use a third matrix",
    )
    norm: Literal["layer", "rms"] = Field(
        "layer",
        description="normalisation: LayerNorm (layer) or RMSNorm (rms, Zhang and Sennrich 2019)",
    )
    norm_placement: Literal["post", "pre", "none"] = Field(
        "post",
        description="place of the norms: after each residual sum (post, Vaswani 2017), before "
        "each sub-layer (pre), which trains deep models more stably, or nowhere (none)",
    )
    residual: bool = Field(
        True, description="add the input of each sub-layer to its output; false is for experiments"
    )
    attention_scale: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="factor on attention scores before the softmax; 1 / sqrt(head size) if unset",
    )
    positions: AnyPositions = Field(
        "sinusoidal",
        description="position encoding: embeddings (sinusoidal, learned), rotary (Su 2021), or "
        "terms of the attention scores (alibi, kerple, t5, relative_keys, transformer_xl, "
        "disentangled); axes learns the rows and columns of the fields of token sequences",
    )
    rotary_scaling: RotaryScaling = Field(
        "none",
        description="method that stretches rotary positions for texts longer than those of "
        "training",
    )
    rotary_factor: Annotated[float, Field(ge=1)] = Field(
        1.0, description="factor of rotary_scaling: 4 reads texts four times as long"
    )
    rotary_original_length: PositiveInt | None = Field(
        None,
        description="maximum length in tokens before stretching, for yarn and by_wavelength; "
        "max_length if unset",
    )
    window: PositiveInt | None = Field(
        None,
        description="distance in tokens below which self-attention sees other tokens (sliding "
        "window); unlimited if unset",
    )
    mask: str | None = Field(
        None,
        description="attention pattern, such as 'window(128) | global(2)' or 'strided(32)'; a "
        "decoder still sees no later tokens",
    )
    global_tokens: PositiveInt | None = Field(
        None,
        description="number of first tokens that get attention projections of their own "
        "(Longformer, Beltagy 2020); use with mask = 'global(N)'",
    )
    relative_values: PositiveInt | None = Field(
        None,
        description="maximum distance in tokens that has an embedding added to the values (Shaw "
        "2018); none if unset",
    )
    relative_distance: PositiveInt = Field(
        16, description="maximum distance in tokens that has a key of its own in relative_keys"
    )
    memory: PositiveInt | None = Field(
        None,
        description="number of earlier tokens whose hidden states a language model keeps from "
        "segment to segment of data.max_length (Transformer-XL, Dai 2019)",
    )
    share_embeddings: Literal["all", "target", "none"] = Field(
        "all",
        description="matrices that are shared (Press and Wolf 2017): source, target and output "
        "(all), target and output, or none",
    )
    dropout: Probability = Field(
        0.1,
        description="dropout probability of embeddings and sub-layer outputs; 0.1 is usual, 0.3 "
        "for small data",
    )
    attention_dropout: Probability = Field(
        0.0, description="dropout probability of attention weights"
    )
    feedforward_dropout: Probability = Field(
        0.0, description="dropout probability inside the feed-forward network, after the activation"
    )
    bias: bool = Field(True, description="add bias vectors to the linear layers")
    max_length: PositiveInt = Field(
        256,
        description="maximum length in tokens of a translator with learned positions, cosine "
        "features or linformer; other tasks use data.max_length",
    )
    recurrent: RecurrentShape | None = Field(
        None, description="recurrent layers instead of blocks of attention"
    )
    convolution: ConvolutionShape | None = Field(
        None, description="gated convolutions instead of blocks of attention"
    )
    evoformer: EvoformerShape | None = Field(
        None,
        description="mixers over pairs of residues instead of attention, in an encoder whose texts "
        "are the pairs of a chain",
    )

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> Self:
        kinds = {
            "recurrent layers": self.recurrent,
            "convolutions": self.convolution,
            "an Evoformer's": self.evoformer,
        }
        chosen = [name for name, section in kinds.items() if section]
        if len(chosen) > 1:
            raise ValueError(f"layers are of one kind, and two are set: {' and '.join(chosen)}")
        # An option without effect is refused: comparing its values would compare equal models.
        if not chosen:
            return self
        (layers,) = chosen
        without = _OF_TOKENS_ATTENTION if self.evoformer else _OF_ATTENTION_BLOCKS
        # Read from the class, as pydantic deprecates `model_fields` of instances.
        defaults = {name: type(self).model_fields[name].default for name in without}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                raise ValueError(f"{name} is of blocks of attention; the model's are {layers}")
        # The other encodings are terms or rotations of the scores of self-attention.
        if self.positions not in ADDED_POSITIONS:
            raise ValueError(f"positions = {self.positions!r} are known by self-attention only")
        return self

    @model_validator(mode="after")
    def _one_option_says_what_is_seen(self) -> Self:
        # The message shows one mask with the meaning of both: if one of them won, users would be
        # surprised.
        if self.window is not None and self.mask is not None:
            raise ValueError(
                f"window and mask both say what is seen; as one mask: ({self.mask}) & "
                f"window({self.window})"
            )
        return self

    @model_validator(mode="after")
    def _distances_have_keys(self) -> Self:
        default = type(self).model_fields["relative_distance"].default
        if self.relative_distance != default and self.positions != "relative_keys":
            raise ValueError(
                f"relative_distance is of positions = 'relative_keys', not {self.positions!r}"
            )
        return self

    @model_validator(mode="after")
    def _experts_are_networks(self) -> Self:
        if self.num_experts is not None and not self.feedforward:
            raise ValueError("num_experts needs feedforward above 0: experts are such networks")
        return self
