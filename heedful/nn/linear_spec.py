"""Specs of mixers whose cost is linear in length, as data. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt


class EluFeaturesSpec(Config):
    """elu(x) + 1 (Katharopoulos 2020)."""

    kind: Literal["elu"] = "elu"


class CosineFeaturesSpec(Config):
    """max(x, 0), and a weight that falls with distance as a cosine does (cosFormer; Qin 2022)."""

    kind: Literal["cosine"] = "cosine"
    length: PositiveInt = Field(
        1024, description="longest text in tokens; at that distance a weight is 0"
    )


class RandomFeaturesSpec(Config):
    """Positive orthogonal random features, which approximate softmax (Performer; Choromanski 2021).

    The error falls as one over the square root of their number.
    """

    kind: Literal["random"] = "random"
    num_features: PositiveInt = 256
    redraw_every: PositiveInt | None = Field(
        1000, description="passes in training between two draws; one draw for ever if unset"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="of the draws")


FeaturesSpec = Annotated[
    EluFeaturesSpec | CosineFeaturesSpec | RandomFeaturesSpec, Field(discriminator="kind")
]


class CommonHeadsSpec(Config):
    """Heads of a mixer with queries, keys and values."""

    num_heads: PositiveInt
    head_width: PositiveInt | None = Field(None, description="width / num_heads if unset")
    bias: bool = True

    def check_width(self, width: int) -> None:
        """Refuse heads that do not share the model width evenly.

        Raises:
            ValueError: when they do not.
        """
        if self.head_width is None and width % self.num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {self.num_heads}")


class LinearAttentionSpec(CommonHeadsSpec):
    """Attention by a positive feature map instead of softmax (Katharopoulos 2020)."""

    kind: Literal["linear_attention"] = "linear_attention"
    causal: bool = Field(False, description="tokens see themselves and those before them only")
    features: FeaturesSpec = Field(
        EluFeaturesSpec(), description="elu: linear attention; cosine: cosFormer; random: Performer"
    )


class LinformerSpec(CommonHeadsSpec):
    """Attention over a fixed number of sums of keys and values (Linformer; Wang 2020).

    Every sum is over the whole text, so a token sees those after it: there is no causal form.
    """

    kind: Literal["linformer"] = "linformer"
    causal: Literal[False] = False
    rank: PositiveInt = Field(128, description="number of sums, k of the paper")
    length: PositiveInt = Field(512, description="longest text in tokens, n of the paper")
    sharing: Literal["none", "heads", "key_value"] = Field(
        "heads",
        description="of the weights of the sums: each head has its own for keys and for values; "
        "all heads share those; keys and values share them too",
    )

    @model_validator(mode="after")
    def _is_low(self) -> Self:
        if self.rank > self.length:
            raise ValueError(
                f"rank {self.rank} exceeds length {self.length}: there would be more sums than "
                "tokens"
            )
        return self


class AverageAttentionSpec(Config):
    """The average of all tokens so far, transformed and gated (Zhang 2018).

    Instead of self-attention in a decoder: a step takes the same time however long the text.
    """

    kind: Literal["average_attention"] = "average_attention"
    feedforward: Annotated[int, Field(ge=0)] | None = Field(
        None, description="inner width of the network on averages; 0: none; 4 x width if unset"
    )
    gate: bool = Field(True, description="learned shares of the token and of the average")
    causal: Literal[True] = True

    def check_width(self, width: int) -> None:
        """Accept any model width."""


class SSRUSpec(Config):
    """The simpler simple recurrent unit: one forget gate, no output gate (Kim 2019).

    Instead of self-attention in a decoder: a step takes the same time however long the text.
    """

    kind: Literal["ssru"] = "ssru"
    bias: bool = Field(True, description="of the forget gate")
    causal: Literal[True] = True

    def check_width(self, width: int) -> None:
        """Accept any model width."""
