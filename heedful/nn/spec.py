"""Specs of the parts of a block: the settings of the modules in this package, as data.

Nothing here imports torch, as the command line reads the specs to build its flags. Widths that the
rest of the model determines (model width, vocabulary) are arguments of the modules, not settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from heedful.config import (
    ADDED_POSITIONS,
    GATED,
    Activation,
    Config,
    PlainActivation,
    PositiveInt,
    Probability,
    open_class,
    open_union,
)
from heedful.nn.attention.masks import Causal, Everything, Mask, Window
from heedful.nn.mixer_spec import (
    AverageAttentionSpec,
    ChannelMixSpec,
    CommonPartSpec,
    ConvolutionSpec,
    LinearAttentionSpec,
    LinformerSpec,
    MambaSpec,
    RecurrentDecoderSpec,
    RecurrentSpec,
    RWKVSpec,
    S4DSpec,
    ScoreAttentionSpec,
    SSRUSpec,
)

_BIASES = "heedful.nn.attention.relative_positions"


class CommonBiasSpec(Config):
    """Base of the specs of position biases."""

    family: ClassVar[str] = "position bias"
    module: ClassVar[str]  # `package.module:name` of its `Bias`, which `of_spec` makes
    is_shared: ClassVar[bool] = False  # true for one bias of all layers, as in T5

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return the bias for a shape's options; see `CommonPartSpec.of_shape`."""
        return cls()

    def check_width(self, width: int) -> None:
        """Refuse an unsuitable model width with a ValueError; every width is suitable here."""


class AlibiSpec(CommonBiasSpec):
    """A penalty linear in distance, a slope per head (Press 2022)."""

    module = f"{_BIASES}:Alibi"
    kind: Literal["alibi"] = "alibi"


class T5BiasSpec(CommonBiasSpec):
    """A trained bias per head and distance bucket (Raffel 2020)."""

    module = f"{_BIASES}:T5Bias"
    is_shared = True
    kind: Literal["t5"] = "t5"
    num_buckets: PositiveInt = 32
    max_distance: PositiveInt = 128
    bidirectional: bool = True

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return the bias, with buckets for each side where later tokens are visible."""
        return cls(bidirectional=not causal)


class KerpleSpec(CommonBiasSpec):
    """A penalty logarithmic in distance, trained for each head (Chi 2022)."""

    module = f"{_BIASES}:Kerple"
    kind: Literal["kerple"] = "kerple"


class RelativeKeysSpec(CommonBiasSpec):
    """A trained key per clipped distance, multiplied with the query (Shaw 2018)."""

    module = f"{_BIASES}:RelativeKeys"
    kind: Literal["relative_keys"] = "relative_keys"
    max_distance: PositiveInt = 16

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return the bias, with keys up to the distance that a shape names."""
        return cls(max_distance=shape.relative_distance)


_OwnBias = AlibiSpec | T5BiasSpec | KerpleSpec | RelativeKeysSpec

BIASES: Mapping[str, type[CommonBiasSpec]] = {spec.known_as(): spec for spec in get_args(_OwnBias)}
"""The package's own position biases by their kind."""

if TYPE_CHECKING:  # a registered spec has the same methods
    BiasSpec = _OwnBias
else:
    BiasSpec = open_union("position bias", _OwnBias)


def bias_of_shape(shape: Any, causal: bool) -> BiasSpec | None:
    """Return the position bias that a shape's positions are, if they are one.

    Args:
        shape: options, a `TranslatorShape`.
        causal: restriction of every token to those before it.
    """
    if shape.positions in (*ADDED_POSITIONS, "rotary"):
        return None
    spec = open_class("position bias", shape.positions, BIASES)
    bias: BiasSpec = spec.of_shape(shape, causal)  # type: ignore[assignment]
    return bias


class RotarySpec(Config):
    """Rotary position embedding (Su 2021), and its scaling past the trained length."""

    base: Annotated[float, Field(gt=1)] = Field(10_000.0, description="base of the frequencies")
    layout: Literal["halves", "pairs"] = "halves"
    width: PositiveInt | None = Field(None, description="rotated channels of a head; all if unset")
    scaling: Literal["none", "linear", "ntk", "yarn", "by_wavelength"] = "none"
    factor: Annotated[float, Field(ge=1)] = Field(1.0, description="longest text / trained length")
    original_length: PositiveInt | None = Field(
        None, description="trained length in tokens; required by yarn and by_wavelength"
    )
    beta_fast: float = Field(
        32.0, description="turns within the trained length above which a frequency is unchanged"
    )
    beta_slow: float = Field(1.0, description="turns below which a frequency is divided by factor")
    temperature: Annotated[float, Field(gt=0)] | None = Field(
        None, description="factor on q and k; if unset, 0.1 ln(factor) + 1 for yarn, else 1"
    )

    @model_validator(mode="after")
    def _some_need_the_length(self) -> Self:
        if self.scaling in ("yarn", "by_wavelength") and self.original_length is None:
            raise ValueError(f"{self.scaling} scaling needs original_length")
        return self

    @classmethod
    def of_shape(cls, shape: Any) -> Self | None:
        """Return the rotation that follows from the options of a shape; None without one."""
        if shape.positions != "rotary":
            return None
        scaling = cls.scaling_of_shape(shape)
        return cls.parse({"original_length": shape.max_length} | scaling) if scaling else cls()

    @staticmethod
    def scaling_of_shape(shape: Any) -> dict[str, Any]:
        """Return the options of rotary scaling that a shape sets, as fields."""
        names = {name: f"rotary_{name}" for name in ("scaling", "factor", "original_length")}
        is_set = {name: getattr(shape, option) for name, option in names.items()}
        defaults = {"scaling": "none", "factor": 1.0, "original_length": None}
        return {name: value for name, value in is_set.items() if value != defaults[name]}

    def attention_factor(self) -> float:
        """Return the factor on queries and on keys."""
        if self.temperature is not None:
            return self.temperature
        return 0.1 * math.log(self.factor) + 1.0 if self.scaling == "yarn" else 1.0


class PositionSpec(Config):
    """The vector added to an embedding for its position."""

    kind: Literal["sinusoidal", "learned", "axes", "none"] = "sinusoidal"
    max_length: PositiveInt | None = Field(None, description="number of positions, if learned")
    axes: tuple[tuple[PositiveInt, ...], ...] | None = Field(
        None, description="axes of each field of a sequence, such as rows and columns of an image"
    )
    unused_rows: Annotated[int, Field(ge=0)] = Field(
        0, description="number of rows of the learned table before the first position"
    )
    layout: Literal["pairs", "halves"] = Field(
        "pairs", description="sines and cosines alternate (pairs), or sines come first (halves)"
    )

    @model_validator(mode="after")
    def _learned_needs_length(self) -> Self:
        if self.kind == "learned" and self.max_length is None:
            raise ValueError("learned positions need max_length")
        if (self.kind == "axes") != bool(self.axes):
            raise ValueError("axes belong to positions of this kind, which need them")
        if self.axes and self.max_length != (size := sum(map(math.prod, self.axes))):
            raise ValueError(f"axes of {size} positions need max_length = {size}")
        return self


# Before the part in GPT-2 (Xiong 2020), after the sum in Vaswani 2017, on both sides in Gemma 2, on
# the part's output alone in OLMo 2.
NormPlacement = Literal["before", "after", "both", "output", "none"]


class NormSpec(Config):
    """Layer normalisation (Ba 2016) or its root-mean-square form (Zhang 2019)."""

    kind: Literal["layer", "rms"] = "layer"
    epsilon: Annotated[float, Field(gt=0)] = Field(1e-5, description="term added to the variance")
    unit_offset: bool = Field(False, description="multiply by 1 + weight (rms; Gemma)")
    bias: bool = Field(True, description="bias vector (layer); an rms norm has none")

    @model_validator(mode="after")
    def _only_rms_has_an_offset(self) -> Self:
        if self.unit_offset and self.kind != "rms":
            raise ValueError("unit_offset needs kind = 'rms'")
        return self


class ExpertsSpec(Config):
    """Several feed-forward networks, of which each token uses a few (Shazeer 2017; Fedus 2021)."""

    num_experts: PositiveInt = Field(description="number of feed-forward networks")
    per_token: PositiveInt = Field(2, description="number of experts that compute each token")
    renormalize: bool = Field(True, description="scale the weights of a token's experts to sum 1")
    balance_weight: Annotated[float, Field(ge=0)] = Field(
        0.01, description="factor on the load-balancing loss in training"
    )
    scoring: Literal["softmax", "sigmoid"] = Field(
        "softmax",
        description="scores of experts: shares, or independent ones, to which a bias is added for "
        "the choice (sigmoid; DeepSeek V3, 2024)",
    )
    num_groups: PositiveInt = Field(1, description="number of groups of equally many experts")
    groups_per_token: PositiveInt = Field(1, description="groups with experts of a token")
    scale: Annotated[float, Field(gt=0)] = Field(1.0, description="factor on the experts' weights")
    shared_width: PositiveInt | None = Field(
        None, description="inner width of a network that all tokens use, too; none if unset"
    )

    @model_validator(mode="after")
    def _router_learns(self) -> Self:
        if self.num_experts % self.num_groups or self.groups_per_token > self.num_groups:
            raise ValueError(
                "num_experts must be a multiple of num_groups, which groups_per_token cannot exceed"
            )
        if self.per_token > self.num_experts:
            raise ValueError(f"per_token {self.per_token} exceeds num_experts {self.num_experts}")
        if self.per_token > self.num_experts // self.num_groups * self.groups_per_token:
            raise ValueError("groups_per_token groups have fewer experts than per_token")
        if self.renormalize and self.per_token == 1 < self.num_experts:
            raise ValueError(
                "per_token = 1 needs renormalize = false: the only weight would always be 1, "
                "from which the router learns nothing"
            )
        return self


class FeedForwardSpec(CommonPartSpec):
    """The position-wise network: inner width, activation (gated forms: Shazeer 2020), dropout."""

    module = "heedful.nn.feedforward:FeedForward"
    module_with = (("experts", "heedful.nn.moe:MixtureOfExperts"),)
    label = "Feed-forward network"
    is_network = True
    dropout_option = "feedforward_dropout"
    kind: Literal["feedforward"] = "feedforward"
    width: PositiveInt = Field(description="inner width")
    activation: Activation = Field("relu", description="activation or gated activation")
    bias: bool = Field(True, description="bias vectors of the linear layers")
    dropout: Probability = Field(0.0, description="dropout probability after the activation")
    experts: ExpertsSpec | None = Field(None, description="experts, each of the inner width")

    @property
    def gate(self) -> PlainActivation | None:
        """Activation of the gate of a gated form; None for other forms."""
        return GATED.get(self.activation)


class LatentSpec(Config):
    """Keys and values as maps of one small vector for each token, the latent (DeepSeek V2, 2024).

    The channels that `rotary` rotates, the last of each head, have one key for all heads.
    """

    width: PositiveInt = Field(description="width of the latent")
    value_width: PositiveInt = Field(description="width of a head's values")
    query_width: PositiveInt | None = Field(
        None, description="width of a latent of queries; none if unset"
    )
    norm: NormSpec = Field(NormSpec(kind="rms", epsilon=1e-6), description="norm of latents")


class AttentionSpec(CommonPartSpec):
    """Multi-head attention; fewer key/value heads make it grouped-query or multi-query."""

    module = "heedful.nn.attention.multi_head:SelfAttention"
    module_with = (
        ("reads_memory", "heedful.nn.attention.multi_head:CrossAttention"),
        ("global_tokens", "heedful.nn.attention.global_tokens:GlobalSelfAttention"),
        ("latent", "heedful.nn.attention.latent:LatentSelfAttention"),
    )
    label = "Attention"
    sublayer = "self_attention"
    dropout_option = "attention_dropout"
    kind: Literal["attention"] = "attention"
    over: Literal["input", "memory"] = Field(
        "input", description="attended sequence: the input itself, or the encoder's output (memory)"
    )
    num_heads: PositiveInt = Field(description="number of query heads")
    num_kv_heads: PositiveInt | None = Field(
        None, description="number of key/value heads; num_heads if unset"
    )
    head_width: PositiveInt | None = Field(
        None, description="width of a head; width / num_heads if unset"
    )
    bias: bool = Field(True, description="bias vectors of the projections")
    output_bias: bool | None = Field(
        None, description="bias vector of the output projection; as bias if unset"
    )
    scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="factor on attention scores; 1/sqrt(head width) if unset"
    )
    softcap: Annotated[float, Field(gt=0)] | None = Field(None, description="cap on scores (Gemma)")
    query_key_norm: NormSpec | None = Field(
        None, description="norm of queries and keys before the rotation; none if unset"
    )
    query_key_norm_over: Literal["head", "all_heads"] = Field(
        "head",
        description="numbers normed together: each head's (Qwen 3), or all (OLMo 2)",
    )
    dropout: Probability = Field(0.0, description="dropout probability of attention weights")
    mask: Mask = Everything()
    rotary: RotarySpec | None = None
    position_bias: BiasSpec | None = None
    relative_values: PositiveInt | None = Field(
        None,
        description="maximum distance in tokens that has an embedding added to the values "
        "(Shaw 2018); none if unset",
    )
    global_tokens: PositiveInt | None = Field(
        None,
        description="number of first tokens that get attention projections of their own "
        "(Longformer, Beltagy 2020); none if unset",
    )
    latent: LatentSpec | None = Field(
        None, description="latent of keys and values; maps of the input if unset"
    )
    kept_heads: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None,
        description="ascending indices of the heads left by pruning (Michel 2019); all if unset",
    )

    @model_validator(mode="after")
    def _heads_group(self) -> Self:
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError("num_heads must be a multiple of num_kv_heads")
        kept = self.kept_heads
        if kept is not None and list(kept) != sorted(set(kept) & set(range(self.num_heads))):
            raise ValueError(f"kept_heads are not ascending numbers below {self.num_heads}")
        if self.over == "memory" and (self.relative_values or self.global_tokens):
            raise ValueError(
                "relative_values and global_tokens are of attention over the input: positions of "
                "two texts have no distance"
            )
        if kept is not None and self.query_key_norm_over == "all_heads":
            raise ValueError("a norm over all heads would see fewer numbers without some of them")
        if self.global_tokens and kept is not None:
            raise ValueError("heads of attention with global_tokens cannot be pruned")
        if self.latent is not None:
            self._check_latent()
        return self

    def _check_latent(self) -> None:
        """Refuse settings that latents do not go with (ValueError)."""
        own = ("num_kv_heads", "query_key_norm", "relative_values", "global_tokens", "kept_heads")
        if found := [name for name in own if getattr(self, name) is not None]:
            raise ValueError(f"attention with latents has no {found[0]}")
        if self.over == "memory":
            raise ValueError("latents are of attention over the input")
        rotated = None if self.rotary is None else self.rotary.width
        if rotated is None or self.head_width is None or rotated >= self.head_width:
            raise ValueError("latents need rotary.width and a larger head_width")

    @classmethod
    def with_heads_of_shape(cls, shape: Any) -> Self:
        """Return attention to all keys, with the heads of a shape."""
        return cls(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_width=shape.head_width,
            scale=shape.attention_scale,
            bias=shape.bias,
            dropout=shape.attention_dropout,
        )

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return attention over the input, with the mask and positions of a shape."""
        mask: Mask = Everything() if shape.window is None else Window(shape.window)
        if shape.mask is not None:
            from heedful.nn.mask_text import parse_mask  # imported on use: few have one

            mask = parse_mask(shape.mask, where="model.mask")
        bias = bias_of_shape(shape, causal)
        return cls.with_heads_of_shape(shape).model_copy(
            update={
                "mask": Causal() & mask if causal else mask,
                "rotary": RotarySpec.of_shape(shape),
                "position_bias": None if bias is None or bias.is_shared else bias,
                "relative_values": shape.relative_values,
                "global_tokens": shape.global_tokens,
            }
        )

    @classmethod
    def shared_bias_of_shape(cls, shape: Any, causal: bool) -> BiasSpec | None:
        """Return the position bias of all layers of a shape; see `bias_of_shape`."""
        bias = bias_of_shape(shape, causal)
        return bias if bias is not None and bias.is_shared else None

    @property
    def heads_of_keys(self) -> tuple[int, ...]:
        """The index of the key/value head of each head that pruning left, ascending."""
        shared = self.num_heads // (self.num_kv_heads or self.num_heads)
        kept = range(self.num_heads) if self.kept_heads is None else self.kept_heads
        return tuple(head // shared for head in kept)

    def width_of_heads(self, width: int) -> int:
        """Return the head width E for a model width."""
        return self.head_width or width // self.num_heads

    def scale_of_scores(self, width: int) -> float:
        """Return the factor on scores for a model width."""
        return self.scale or 1 / math.sqrt(self.width_of_heads(width))

    def check_width(self, width: int) -> None:
        """Refuse heads that do not divide the width and odd widths of sinusoids (ValueError)."""
        if self.head_width is None and width % self.num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {self.num_heads}")
        if self.position_bias is not None:
            self.position_bias.check_width(width)


_OwnPart = (
    AttentionSpec
    | LinearAttentionSpec
    | S4DSpec
    | MambaSpec
    | RWKVSpec
    | ChannelMixSpec
    | LinformerSpec
    | AverageAttentionSpec
    | SSRUSpec
    | RecurrentSpec
    | RecurrentDecoderSpec
    | ScoreAttentionSpec
    | ConvolutionSpec
    | FeedForwardSpec
)

PARTS: Mapping[str, type[CommonPartSpec]] = {spec.known_as(): spec for spec in get_args(_OwnPart)}
"""The package's own parts of sub-layers by their kind."""

if TYPE_CHECKING:  # a registered spec has the same methods
    PartSpec = _OwnPart
else:
    PartSpec = open_union("mixer", _OwnPart)


class EmbeddingSpec(Config):
    """Token embedding: scaled by sqrt(width) or not, with positions, an optional norm, dropout."""

    scale: bool | Literal["rounded"] = Field(
        True, description="multiply by sqrt(width); rounded: in the dtype of the table (Gemma)"
    )
    num_segments: PositiveInt | None = Field(
        None, description="number of segment embeddings (Devlin 2019); none if unset"
    )
    row_size: PositiveInt | None = Field(
        None, description="tokens that an encoder reads at a position, as numbers; ids if unset"
    )
    width: PositiveInt | None = Field(
        None,
        description="width of the tables and the norm, whose vectors an affine map brings to the "
        "model's width (ALBERT, Lan 2020); the model's width and no map if unset",
    )
    positions: PositionSpec = PositionSpec()
    norm: NormSpec | None = None
    dropout: Probability = 0.0

    def refuse_width(self) -> None:
        """Refuse tables of another width than the model's (ValueError)."""
        if self.width is not None:
            raise ValueError("only encoders of text have embeddings of their own width")
