"""Specs of mixers other than attention, as data. No torch here.

Linear and low-rank attention, averages and gated sums come first, then state spaces and RWKV, then
the recurrent cells, attention by score functions and convolutions of the time before 2017.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Cell as Cell
from heedful.config import Config, PositiveInt, Probability
from heedful.config import Direction as Direction
from heedful.config import Feeding as Feeding
from heedful.config import Readout as Readout


class AnyWidthSpec(Config):
    """A part that fits every model width."""

    def check_width(self, width: int) -> None:
        """Accept any model width."""


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

    @property
    def longest_text(self) -> int | None:
        """Tokens of the longest text that it can read; None if any length is fine."""
        return self.features.length if self.features.kind == "cosine" else None


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

    @property
    def longest_text(self) -> int | None:
        """Tokens of the longest text that it can read."""
        return self.length


class AverageAttentionSpec(AnyWidthSpec):
    """The average of all tokens so far, transformed and gated (Zhang 2018).

    Instead of self-attention in a decoder: a step takes the same time however long the text.
    """

    kind: Literal["average_attention"] = "average_attention"
    feedforward: Annotated[int, Field(ge=0)] | None = Field(
        None, description="inner width of the network on averages; 0: none; 4 x width if unset"
    )
    gate: bool = Field(True, description="learned shares of the token and of the average")
    causal: Literal[True] = True

    def inner_width(self, width: int) -> int:
        """Return the inner width of the network in a model of width D; 0 if there is none."""
        return 4 * width if self.feedforward is None else self.feedforward


class SSRUSpec(AnyWidthSpec):
    """The simpler simple recurrent unit: one forget gate, no output gate (Kim 2019).

    Instead of self-attention in a decoder: a step takes the same time however long the text.
    """

    kind: Literal["ssru"] = "ssru"
    bias: bool = Field(True, description="of the forget gate")
    causal: Literal[True] = True


class S4DSpec(AnyWidthSpec):
    """A diagonal state space of each channel, the same for every token (Gu 2022)."""

    kind: Literal["s4d"] = "s4d"
    state_size: Annotated[int, Field(ge=2, multiple_of=2)] = Field(
        64, description="numbers that a channel remembers, as half as many complex ones"
    )
    initialization: Literal["lin", "inv"] = Field(
        "lin", description="frequencies of the states at first: evenly spaced, or by inverses"
    )
    discretization: Literal["zoh", "bilinear"] = Field(
        "zoh", description="from continuous time to tokens: zero-order hold, or bilinear (Tustin)"
    )
    bias: bool = True


class MambaSpec(AnyWidthSpec):
    """A selective state space: what is kept and read follows from the token (Gu and Dao 2023)."""

    kind: Literal["mamba"] = "mamba"
    state_size: PositiveInt = Field(16, description="numbers that a channel remembers")
    expansion: PositiveInt = Field(2, description="inner width in model widths")
    convolution: PositiveInt = Field(4, description="tokens that the convolution before it sees")
    rank: PositiveInt | None = Field(
        None, description="numbers that a token's step sizes follow from; width / 16 if unset"
    )
    bias: bool = Field(False, description="of the maps into it and out of it")


class RWKVSpec(AnyWidthSpec):
    """RWKV version 4's time mixing: an average of values that fades with time (Peng 2023)."""

    kind: Literal["rwkv"] = "rwkv"


class ChannelMixSpec(AnyWidthSpec):
    """RWKV version 4's network: squared ReLU behind a gate, of a token and the one before it."""

    kind: Literal["channel_mix"] = "channel_mix"
    width: PositiveInt


Score = Literal["additive", "concat", "dot", "general"]
"""v · tanh(W q + U k + b) (Bahdanau 2015); the same without b, which Luong 2015 calls concat;
q · k; q · W k (both Luong 2015)."""


class RecurrentSpec(Config):
    """A layer of a recurrent cell: each state is made from the one before and a token."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Cell = "lstm"
    direction: Direction = "forward"
    keep_bias: float = Field(
        1.0, description="first bias of the gate that keeps the state (Gers 2000); rnn has none"
    )

    @property
    def reads_ahead(self) -> str | None:
        """The reason why it cannot write token by token; None if it can."""
        if self.direction == "forward":
            return None
        return f"a recurrent layer of direction {self.direction} reads tokens not written yet"

    def check_width(self, width: int) -> None:
        """Refuse two directions that do not share the model width evenly.

        Raises:
            ValueError: when they do not.
        """
        if self.direction == "both" and width % 2:
            raise ValueError(f"width {width} is odd; two directions have half of it each")


class ConvolutionSpec(AnyWidthSpec):
    """A convolution over neighbouring tokens with gated linear units (Dauphin 2017)."""

    kind: Literal["convolution"] = "convolution"
    kernel_width: PositiveInt = Field(3, description="tokens that one output is made of")
    causal: bool = Field(False, description="tokens see themselves and those before them only")
    dropout: Probability = Field(0.0, description="on what the convolution reads")

    @model_validator(mode="after")
    def _has_a_middle(self) -> Self:
        if not self.causal and self.kernel_width % 2 == 0:
            raise ValueError(
                f"kernel_width {self.kernel_width} has no middle, where the token itself stands: "
                "use an odd one, or causal = true"
            )
        return self

    @property
    def reads_ahead(self) -> str | None:
        """The reason why it cannot write token by token; None if it can."""
        return None if self.causal else "a convolution without causal = true reads later tokens"


class ScoreAttentionSpec(AnyWidthSpec):
    """Attention of one head over the encoder's output, by a score function of states.

    Local attention (local-p, Luong 2015) predicts a place p = S · sigmoid(v · tanh(W q)) in a
    source of S tokens. It attends to tokens up to `window` away from it, and multiplies their
    weights by a Gaussian around it whose standard deviation is half of `window`.
    """

    kind: Literal["score_attention"] = "score_attention"
    over: Literal["input", "memory"] = Field("memory", description="the encoder's output")
    score: Score = "additive"
    width: PositiveInt | None = Field(
        None,
        description="numbers of a query and a key that additive, concat and dot compare; the model "
        "width if unset, and dot then compares states as they are",
    )
    scale: Annotated[float, Field(gt=0)] = Field(1.0, description="factor on scores")
    window: PositiveInt | None = Field(
        None, description="local-p: tokens on each side of the predicted place; all if unset"
    )
    embeddings: bool = Field(
        False,
        description="queries add their token's embedding, values the source token's, and outputs "
        "are multiplied by the root of the source's length (Gehring 2017)",
    )
    dropout: Probability = Field(0.0, description="on attention weights")

    @model_validator(mode="after")
    def _width_is_projected_to(self) -> Self:
        if self.width is not None and self.score == "general":
            raise ValueError("general compares states through a map of the model width: no width")
        if self.width is not None and self.embeddings:
            raise ValueError("width with embeddings: token embeddings have the model width")
        return self

    @model_validator(mode="after")
    def _reads_a_memory(self) -> Self:
        if self.over == "input":
            if self.window is not None:
                raise ValueError(
                    "local-p attention predicts a place in another text; in self-attention a token "
                    "has its own place: use kind = 'attention' with a mask of kind 'window'"
                )
            raise ValueError("scores compare states with a memory: use kind = 'attention' for over")
        return self


class RecurrentDecoderSpec(Config):
    """Recurrent layers that write from an encoder's output, with or without attention to it.

    Without attention all they know of a source is one vector, its last state (Sutskever 2014; Cho
    2014). With it each step has a context vector of its own. If that is read together with the
    token, the state before the token asks for it (Bahdanau 2015); else the state after it (Luong
    2015). The first states are tanh(W · last state), of each layer.
    """

    kind: Literal["recurrent_decoder"] = "recurrent_decoder"
    over: Literal["memory"] = "memory"
    cell: Cell = "lstm"
    num_layers: PositiveInt = 1
    summary: Direction = Field(
        "forward",
        description="the encoder's last state: that of the last token, if it reads forward; of the "
        "first, backward; half of its width of each, both",
    )
    attention: ScoreAttentionSpec | None = Field(None, description="one vector for all if unset")
    feeding: Feeding = Field("none", description="read by the first layer beside the token")
    readout: Readout = Field("none", description="output from state, token and context")
    dropout: Probability = Field(0.0, description="between layers")
    residual: bool = Field(
        False, description="layers from the second on add what they read (Wu 2016)"
    )
    keep_bias: float = Field(
        1.0, description="first bias of the gate that keeps the state (Gers 2000); rnn has none"
    )

    @model_validator(mode="after")
    def _context_is_used(self) -> Self:
        if self.attention is None and self.feeding == "output":
            raise ValueError("feeding = 'output' feeds what attention found: it needs attention")
        if self.attention is not None and self.feeding != "context" and self.readout == "none":
            raise ValueError(
                "the context is neither read by the first layer nor by the readout: use feeding = "
                "'context', or readout = 'tanh' or 'maxout'"
            )
        if self.attention is not None and self.attention.embeddings:
            raise ValueError("attention.embeddings is for blocks of convolutions, not for states")
        return self

    def check_width(self, width: int) -> None:
        """Refuse a summary of two directions that do not share the model width evenly.

        Raises:
            ValueError: when they do not.
        """
        if self.summary == "both" and width % 2:
            raise ValueError(f"width {width} is odd; two directions have half of it each")
