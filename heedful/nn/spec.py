"""Specs of the parts of a block: the settings of the modules in this package, as data.

No torch here: the command line reads these to build its flags. Widths that follow from the place
in the model (the model width, the vocabulary) are arguments of the modules, not settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Activation as Activation
from heedful.config import Config, PositiveInt, Probability
from heedful.config import MixerName as MixerName
from heedful.config import PlainActivation as PlainActivation
from heedful.config import PositionScheme as PositionScheme
from heedful.errors import ConfigError
from heedful.nn.mask_spec import EverythingSpec, MaskSpec
from heedful.nn.mixer_spec import (
    AnyWidthSpec,
    AverageAttentionSpec,
    ChannelMixSpec,
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

GATED: dict[Activation, PlainActivation] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
}
"""The activation of the gate in each gated form."""


class AlibiSpec(Config):
    """A penalty linear in distance, a slope per head (Press 2022)."""

    kind: Literal["alibi"] = "alibi"


class T5BiasSpec(Config):
    """A learned bias per head and distance bucket (Raffel 2020)."""

    kind: Literal["t5"] = "t5"
    num_buckets: PositiveInt = 32
    max_distance: PositiveInt = 128
    bidirectional: bool = True


class KerpleSpec(Config):
    """A penalty logarithmic in distance, learned for each head (Chi 2022)."""

    kind: Literal["kerple"] = "kerple"


class RelativeKeysSpec(Config):
    """A learned key per clipped distance, added to the score (Shaw 2018)."""

    kind: Literal["relative_keys"] = "relative_keys"
    max_distance: PositiveInt = 16


class TransformerXLSpec(Config):
    """A key for each distance, made of its sinusoids, and two learned queries (Dai 2019)."""

    kind: Literal["transformer_xl"] = "transformer_xl"


BiasSpec = Annotated[
    AlibiSpec | T5BiasSpec | KerpleSpec | RelativeKeysSpec | TransformerXLSpec,
    Field(discriminator="kind"),
]


LAYER_BIASES: Mapping[str, Callable[[], BiasSpec]] = {
    "alibi": AlibiSpec,
    "kerple": KerpleSpec,
    "relative_keys": RelativeKeysSpec,
    "transformer_xl": TransformerXLSpec,
}
"""The biases that every layer has of its own, by their scheme; that of T5 all layers share."""


class RotarySpec(Config):
    """Rotary position embedding (Su 2021) and how it is stretched past its trained length."""

    base: Annotated[float, Field(gt=1)] = 10_000.0
    layout: Literal["halves", "pairs"] = "halves"
    width: PositiveInt | None = Field(
        None, description="rotated width of a head; all of it if unset"
    )
    scaling: Literal["none", "linear", "ntk", "yarn", "by_wavelength"] = "none"
    factor: Annotated[float, Field(ge=1)] = 1.0
    original_length: PositiveInt | None = Field(
        None, description="trained length in tokens; yarn and by_wavelength need it"
    )
    beta_fast: float = Field(
        32.0, description="turns over the trained length from which a frequency is kept"
    )
    beta_slow: float = Field(1.0, description="turns up to which it is divided by the factor")
    temperature: Annotated[float, Field(gt=0)] | None = Field(
        None, description="factor on queries and on keys; 0.1 ln(factor) + 1 for yarn if unset"
    )

    @model_validator(mode="after")
    def _some_need_the_length(self) -> Self:
        if self.scaling in ("yarn", "by_wavelength") and self.original_length is None:
            raise ValueError(f"{self.scaling} scaling needs original_length")
        return self

    def frequencies(self, head_width: int) -> tuple[float, ...]:
        """Return the angle per position of each pair of channels in radians, the largest first.

        Longer contexts are reached by dividing positions (Chen 2023), by a larger base
        ("NTK-aware") or by dividing the low frequencies only (YaRN, Peng 2023; by wavelength,
        LLaMA 3.1).

        Args:
            head_width: E.

        Raises:
            ConfigError: when the rotated width is odd or wider than a head.
        """
        width = head_width if self.width is None else self.width
        if width % 2 or width > head_width:
            raise ConfigError(
                f"A head of width {head_width} cannot be rotated in {width} channels",
                remedy="Use an even rotary width, at most the width of a head",
            )
        base, factor = self.base, self.factor
        if self.scaling == "ntk" and width > 2:  # a single pair turns by 1 whatever the base
            base *= factor ** (width / (width - 2))
        plain = [base ** (-i / width) for i in range(0, width, 2)]
        if self.scaling == "linear":
            return tuple(f / factor for f in plain)
        if self.scaling in ("yarn", "by_wavelength"):
            ramp = self._yarn_ramp(width) if self.scaling == "yarn" else self._turns_ramp(plain)
            return tuple(
                f / factor * share + f * (1 - share) for f, share in zip(plain, ramp, strict=True)
            )
        return tuple(plain)

    def attention_factor(self) -> float:
        """Return the factor on queries and on keys."""
        if self.temperature is not None:
            return self.temperature
        return 0.1 * math.log(self.factor) + 1.0 if self.scaling == "yarn" else 1.0

    def _turns_ramp(self, frequencies: list[float]) -> list[float]:
        """As `_yarn_ramp`, but linear in the number of turns (LLaMA 3.1, Grattafiori 2024)."""
        assert self.original_length is not None
        turns = [self.original_length * f / (2 * math.pi) for f in frequencies]
        span = self.beta_fast - self.beta_slow
        return [min(max((self.beta_fast - t) / span, 0.0), 1.0) for t in turns]

    def _yarn_ramp(self, width: int) -> list[float]:
        """Return the share of interpolation of each pair: 0 for fast pairs, 1 for slow ones.

        Pairs that turn more than `beta_fast` times over the trained length keep their frequency,
        those that turn less than `beta_slow` times are interpolated.
        """
        assert self.original_length is not None
        length = self.original_length

        def pair_turning(turns: float) -> float:
            return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        low = max(math.floor(pair_turning(self.beta_fast)), 0)
        high = min(math.ceil(pair_turning(self.beta_slow)), width - 1)
        # One pair may be both ends; a step there is the limit of ever steeper ramps.
        span = max(high - low, 1e-3)
        return [min(max((pair - low) / span, 0.0), 1.0) for pair in range(width // 2)]


class PositionSpec(Config):
    """The vector added to an embedding for its position."""

    kind: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_length: PositiveInt | None = Field(
        None, description="number of learned positions; sinusoidal ones need none"
    )
    unused_rows: Annotated[int, Field(ge=0)] = Field(
        0, description="rows of the learned table before that of the first position"
    )
    layout: Literal["pairs", "halves"] = Field(
        "pairs", description="sines and cosines of a position take turns, or stand apart"
    )

    @model_validator(mode="after")
    def _learned_needs_length(self) -> Self:
        if self.kind == "learned" and self.max_length is None:
            raise ValueError("learned positions need max_length")
        return self


NormPlacement = Literal["before", "after", "both", "none"]
"""The norm of a sub-layer stands before its part, after the sum, before and after the part."""


class NormSpec(Config):
    """Layer normalisation (Ba 2016) or its root-mean-square form (Zhang 2019)."""

    kind: Literal["layer", "rms"] = "layer"
    epsilon: Annotated[float, Field(gt=0)] = 1e-5
    unit_offset: bool = Field(False, description="the factor is 1 + weight (rms only; Gemma)")

    @model_validator(mode="after")
    def _only_rms_has_an_offset(self) -> Self:
        if self.unit_offset and self.kind != "rms":
            raise ValueError("unit_offset needs kind = 'rms'")
        return self


class ExpertsSpec(Config):
    """Several feed-forward networks, of which each token uses a few (Shazeer 2017; Fedus 2021)."""

    num_experts: PositiveInt
    per_token: PositiveInt = Field(2, description="experts that work on a token")
    renormalize: bool = Field(
        True, description="the weights of a token's experts sum to 1; else to their probability"
    )
    balance_weight: Annotated[float, Field(ge=0)] = Field(
        0.01, description="of the load-balancing loss, in training"
    )

    @model_validator(mode="after")
    def _router_learns(self) -> Self:
        if self.per_token > self.num_experts:
            raise ValueError(f"per_token {self.per_token} exceeds num_experts {self.num_experts}")
        if self.renormalize and self.per_token == 1 < self.num_experts:
            raise ValueError(
                "per_token = 1 needs renormalize = false: the only weight would always be 1, "
                "from which the router learns nothing"
            )
        return self


class FeedForwardSpec(AnyWidthSpec):
    """The position-wise network: inner width, activation (gated forms: Shazeer 2020), dropout."""

    kind: Literal["feedforward"] = "feedforward"
    width: PositiveInt
    activation: Activation = "relu"
    bias: bool = True
    dropout: Probability = 0.0
    experts: ExpertsSpec | None = Field(
        None, description="several networks of this width instead of one"
    )


class AttentionSpec(Config):
    """Multi-head attention; fewer key/value heads make it grouped-query or multi-query."""

    kind: Literal["attention"] = "attention"
    over: Literal["input", "memory"] = Field(
        "input", description="attend over the input itself, or over the encoder's output"
    )
    num_heads: PositiveInt
    num_kv_heads: PositiveInt | None = Field(None, description="as many as num_heads if unset")
    head_width: PositiveInt | None = Field(None, description="width / num_heads if unset")
    bias: bool = True
    output_bias: bool | None = Field(
        None, description="bias of the output projection, where it differs from the others'"
    )
    scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="factor on scores; 1/sqrt(head width) if unset"
    )
    softcap: Annotated[float, Field(gt=0)] | None = None
    query_key_norm: NormSpec | None = Field(
        None, description="norm of each head's queries and keys, before they are rotated"
    )
    dropout: Probability = 0.0
    mask: MaskSpec = EverythingSpec()
    rotary: RotarySpec | None = None
    position_bias: BiasSpec | None = None
    relative_values: PositiveInt | None = Field(
        None,
        description="farthest distance with a learned vector of its own, added to the values that "
        "are mixed (Shaw 2018); none if unset",
    )
    global_tokens: PositiveInt | None = Field(
        None,
        description="tokens at the beginning of a text that attend by projections of their own "
        "(Longformer 2020); none if unset",
    )
    kept_heads: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None,
        description="ascending numbers of the heads that pruning left (Michel 2019); all if unset",
    )

    @model_validator(mode="after")
    def _heads_group(self) -> Self:
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError("num_heads must be a multiple of num_kv_heads")
        kept = self.kept_heads
        if kept is not None and (
            list(kept) != sorted(set(kept)) or any(head >= self.num_heads for head in kept)
        ):
            raise ValueError(f"kept_heads are not ascending numbers below {self.num_heads}")
        if self.over == "memory" and (self.relative_values or self.global_tokens):
            raise ValueError(
                "relative_values and global_tokens are of attention over the input: positions of "
                "two texts have no distance"
            )
        if self.global_tokens and kept is not None:
            raise ValueError("heads of attention with global_tokens cannot be pruned")
        return self

    def width_of_heads(self, width: int) -> int:
        """Return E for a model width."""
        return self.head_width or width // self.num_heads

    def scale_of_scores(self, width: int) -> float:
        """Return the factor on scores for a model width."""
        return self.scale or 1 / math.sqrt(self.width_of_heads(width))

    def check_width(self, width: int) -> None:
        """Refuse heads that do not share the model width evenly, and sinusoids without cosines.

        Raises:
            ValueError: when there are some.
        """
        if self.head_width is None and width % self.num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {self.num_heads}")
        if width % 2 and self.position_bias and self.position_bias.kind == "transformer_xl":
            raise ValueError(
                f"width {width} is odd: transformer_xl needs as many sines of a distance as cosines"
            )


PartSpec = Annotated[
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
    | FeedForwardSpec,
    Field(discriminator="kind"),
]
"""The part of a sub-layer. A new one is a spec here, a builder in `heedful.nn.parts`."""


class EmbeddingSpec(Config):
    """Token embedding: scaled by sqrt(width) or not, with positions, an optional norm, dropout."""

    scale: bool | Literal["rounded"] = Field(
        True, description="times sqrt(width); rounded: to the type of the table first (Gemma)"
    )
    num_segments: PositiveInt | None = Field(
        None, description="kinds of segment that have a learned vector each (Devlin 2019)"
    )
    positions: PositionSpec = PositionSpec()
    norm: NormSpec | None = None
    dropout: Probability = 0.0


Resampling = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]


class PixelSpec(Config):
    """The way from an image's pixels, 0 to 255, to the numbers a model reads.

    They are resized, multiplied by `rescale`, then a channel's mean is taken away and the rest
    divided by its standard deviation.
    """

    resample: Resampling | None = Field(
        None, description="how other sizes become the model's; unset: they are refused"
    )
    rescale: Annotated[float, Field(gt=0)] = 1 / 255
    mean: tuple[float, ...] = Field(description="of each channel, after `rescale`")
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(description="of each channel")
