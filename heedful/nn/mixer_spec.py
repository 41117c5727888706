"""Specs of mixers other than attention, as data; nothing here imports torch.

The order is linear attention, averages, state spaces, and layers older than the Transformer.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Cell, Config, Direction, Feeding, PositiveInt, Probability, Readout
from heedful.errors import ConfigError


class CommonPartSpec(Config):
    """Base of the specs of parts of sub-layers.

    Attributes:
        module: `package.module:name` of a function or class that makes the part from the model
            width D and the spec.
        module_with: pairs of an option of the spec and the module that replaces `module` if the
            option is set; the first that applies counts.
        label: name of the part in texts.
        is_network: True for a feed-forward network and its replacements.
        sublayer: name of a mixer's sub-layer in a block, which its tensors begin with.
        is_one_way: True for a mixer that reads forward only, so it is refused in encoders.
        dropout_option: option of a shape that sets the part's own dropout; None without one.
        section: options of a shape for stacks of such parts; None for parts of Transformer blocks.
    """

    family: ClassVar[str] = "mixer"
    module: ClassVar[str]
    module_with: ClassVar[tuple[tuple[str, str], ...]] = ()
    label: ClassVar[str]
    is_network: ClassVar[bool] = False
    sublayer: ClassVar[str] = "mixer"
    is_one_way: ClassVar[bool] = False
    dropout_option: ClassVar[str | None] = None
    section: ClassVar[str | None] = None

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return the mixer for the options of a shape; by default they are ignored.

        Args:
            shape: a `TranslatorShape`.
            causal: restriction of every token to those before it.

        Raises:
            ConfigError: when options contradict the mixer.
        """
        return cls()

    @property
    def title(self) -> str:
        """The name of the part in texts."""
        return self.label

    @property
    def reads_memory(self) -> bool:
        """True if the part reads an encoder's output."""
        return getattr(self, "over", "input") == "memory"

    @property
    def sees_later(self) -> bool:
        """True if tokens see later tokens, which do not exist yet in generation."""
        return not getattr(self, "causal", True)

    @property
    def reads_ahead(self) -> str | None:
        """The reason why the part cannot generate token by token; None if it can."""
        return None

    @property
    def longest_text(self) -> int | None:
        """Maximum length of a text in tokens; None if unlimited."""
        return None

    def check_width(self, width: int) -> None:
        """Refuse an unsuitable model width with a ValueError; every width is suitable here."""


class EluFeaturesSpec(Config):
    """elu(x) + 1 (Katharopoulos 2020)."""

    kind: Literal["elu"] = "elu"


class CosineFeaturesSpec(Config):
    """max(x, 0), and a weight that falls with distance as a cosine does (cosFormer; Qin 2022)."""

    kind: Literal["cosine"] = "cosine"
    length: PositiveInt = Field(1024, description="maximum length in tokens, where weights reach 0")


class RandomFeaturesSpec(Config):
    """Positive orthogonal random features, which approximate softmax (Performer; Choromanski 2021).

    The error is proportional to one over the square root of the number of features.
    """

    kind: Literal["random"] = "random"
    num_features: PositiveInt = Field(256, description="number of features of a head")
    redraw_every: PositiveInt | None = Field(
        1000, description="number of training passes between draws; drawn only once if unset"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="random seed of the features")


FeaturesSpec = Annotated[
    EluFeaturesSpec | CosineFeaturesSpec | RandomFeaturesSpec, Field(discriminator="kind")
]


class CommonHeadsSpec(CommonPartSpec):
    """Heads of a mixer with queries, keys and values."""

    num_heads: PositiveInt = Field(description="number of heads")
    head_width: PositiveInt | None = Field(
        None, description="width of a head; width / num_heads if unset"
    )
    bias: bool = Field(True, description="bias vectors of the projections")

    def check_width(self, width: int) -> None:
        """Refuse heads that do not divide the model width, with a ValueError."""
        if self.head_width is None and width % self.num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {self.num_heads}")


class LinearAttentionSpec(CommonHeadsSpec):
    """Attention by a positive feature map instead of softmax (Katharopoulos 2020)."""

    module = "heedful.nn.mixers.linear_attention:LinearAttention"
    label = "Linear attention"
    kind: Literal["linear_attention"] = "linear_attention"
    causal: bool = Field(False, description="hide later tokens")
    features: FeaturesSpec = Field(
        EluFeaturesSpec(), description="feature map: elu, cosine (cosFormer) or random (Performer)"
    )

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return linear attention with the heads and features of a shape."""
        kind = shape.features or "elu"
        # One more than `max_length`, as a text may have an end token.
        length = {"length": shape.max_length + 1} if kind == "cosine" else {}
        options = {"causal": causal, "features": {"kind": kind} | length}
        return cls.parse(_heads(shape) | options, where="model")

    @property
    def title(self) -> str:
        """The name of the features' paper, if they have one."""
        return {"cosine": "cosFormer", "random": "Performer"}.get(self.features.kind, self.label)

    @property
    def longest_text(self) -> int | None:
        """The length of the longest sequence; None for no limit."""
        return self.features.length if self.features.kind == "cosine" else None


class LinformerSpec(CommonHeadsSpec):
    """Attention over a fixed number of sums of keys and values (Linformer; Wang 2020).

    Every sum is over the whole sequence, so a token sees later ones: there is no causal form.
    """

    module = "heedful.nn.mixers.linformer:Linformer"
    label = "Linformer"
    kind: Literal["linformer"] = "linformer"
    causal: Literal[False] = False
    rank: PositiveInt = Field(128, description="projected length of keys and values (k)")
    length: PositiveInt = Field(512, description="maximum length in tokens")
    sharing: Literal["none", "heads", "key_value"] = Field(
        "heads",
        description="sharing of the length projections: none, among all heads (heads), or also "
        "between keys and values (key_value)",
    )

    @model_validator(mode="after")
    # With more sums than tokens the scores would cost more than those of full attention.
    def _is_low(self) -> Self:
        if self.rank > self.length:
            raise ValueError(
                f"rank {self.rank} exceeds length {self.length}: there would be more sums than "
                "tokens"
            )
        return self

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return Linformer for the longest text of a shape.

        Raises:
            ConfigError: when later tokens are to be hidden.
        """
        if causal:
            raise ConfigError(
                "Every sum of Linformer is over the whole text, so it cannot hide later tokens "
                "from a model that writes",
                where="model.mixer",
                remedy="Use it as model.encoder_mixer; linear_attention is cheap and writes",
            )
        length = shape.max_length + 1  # one more, as a text may have an end token
        options = {"length": length, "rank": min(128, length)}
        return cls.parse(_heads(shape) | options, where="model")

    @property
    def longest_text(self) -> int | None:
        """The length of the longest sequence."""
        return self.length


def _heads(shape: Any) -> dict[str, Any]:
    return {"num_heads": shape.num_heads, "head_width": shape.head_width, "bias": shape.bias}


class AverageAttentionSpec(CommonPartSpec):
    """The average of all tokens so far, transformed and gated (Zhang 2018).

    It replaces the self-attention of a decoder: a step takes the same time at any length.
    """

    module = "heedful.nn.mixers.average_attention:AverageAttention"
    label = "Average attention"
    is_one_way = True
    kind: Literal["average_attention"] = "average_attention"
    feedforward: Annotated[int, Field(ge=0)] | None = Field(
        None, description="inner width of the network (0: none); 4 x width if unset"
    )
    gate: bool = Field(True, description="gate between token and average")
    causal: Literal[True] = True

    def inner_width(self, width: int) -> int:
        """Return the inner width of the network in a model of width D; 0 for no network."""
        return 4 * width if self.feedforward is None else self.feedforward


class SSRUSpec(CommonPartSpec):
    """The simpler simple recurrent unit: one forget gate, no output gate (Kim 2019).

    It replaces the self-attention of a decoder: a step takes the same time at any length.
    """

    module = "heedful.nn.mixers.ssru:SSRU"
    label = "SSRU"
    is_one_way = True
    kind: Literal["ssru"] = "ssru"
    bias: bool = Field(True, description="bias vector of the forget gate")
    causal: Literal[True] = True

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return the unit with the biases of a shape."""
        return cls(bias=shape.bias)


class S4DSpec(CommonPartSpec):
    """A diagonal state space of each channel, the same for every token (Gu 2022)."""

    module = "heedful.nn.mixers.s4d:S4D"
    label = "S4D"
    is_one_way = True
    kind: Literal["s4d"] = "s4d"
    state_size: Annotated[int, Field(ge=2, multiple_of=2)] = Field(
        64, description="real numbers in the state of a channel (half as many complex ones)"
    )
    initialization: Literal["lin", "inv"] = Field(
        "lin", description="initial frequencies of the states: S4D-Lin or S4D-Inv"
    )
    discretization: Literal["zoh", "bilinear"] = Field(
        "zoh", description="discretization: zero-order hold, or bilinear (Tustin)"
    )
    bias: bool = Field(True, description="bias vectors of the linear layers")

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return state spaces of the size that a shape names."""
        return cls.parse({"bias": shape.bias} | _state_size(shape), where="model")


def _state_size(shape: Any) -> dict[str, Any]:
    return {} if shape.state_size is None else {"state_size": shape.state_size}


class MambaSpec(CommonPartSpec):
    """A state space whose decay, input and output depend on the token (Gu and Dao 2023)."""

    module = "heedful.nn.mixers.mamba:Mamba"
    label = "Mamba"
    is_one_way = True
    kind: Literal["mamba"] = "mamba"
    state_size: PositiveInt = Field(16, description="size of the state of a channel")
    expansion: PositiveInt = Field(2, description="inner width / model width")
    convolution: PositiveInt = Field(4, description="kernel width of the convolution")
    rank: PositiveInt | None = Field(None, description="rank of step sizes; width / 16 if unset")
    bias: bool = Field(False, description="bias vectors of the input and output projections")

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Return a state space of the size that a shape names."""
        return cls.parse(_state_size(shape), where="model")


class RWKVSpec(CommonPartSpec):
    """RWKV version 4's time mixing: an average of values that fades with time (Peng 2023)."""

    module = "heedful.nn.mixers.rwkv:TimeMix"
    label = "RWKV"
    is_one_way = True
    kind: Literal["rwkv"] = "rwkv"


class ChannelMixSpec(CommonPartSpec):
    """RWKV version 4's network: gated squared ReLU of a token and the previous one (Peng 2023)."""

    module = "heedful.nn.mixers.rwkv:ChannelMix"
    label = "Channel mix"
    is_network = True
    kind: Literal["channel_mix"] = "channel_mix"
    width: PositiveInt = Field(description="inner width")


Score = Literal["additive", "concat", "dot", "general"]
"""v · tanh(W q + U k + b) (Bahdanau 2015); the same without b, which Luong 2015 calls concat;
q · k; q · W k (both Luong 2015)."""


class RecurrentSpec(CommonPartSpec):
    """A recurrent layer: each state is computed from the previous state and a token."""

    module = "heedful.nn.mixers.recurrent:RecurrentMixer"
    label = "Recurrent layer"
    section = "recurrent"
    kind: Literal["recurrent"] = "recurrent"
    cell: Cell = Field("lstm", description="recurrent cell: rnn, lstm or gru")
    direction: Direction = Field("forward", description="reading direction")
    keep_bias: float = Field(
        1.0, description="initial bias of the gate that keeps the state (Gers 2000); not for rnn"
    )

    @property
    def title(self) -> str:
        """The name of the cell."""
        return self.cell.upper()

    @property
    def reads_ahead(self) -> str | None:
        """The reason why the part cannot generate token by token; None if it can."""
        if self.direction == "forward":
            return None
        return f"a recurrent layer of direction {self.direction} reads tokens not written yet"

    def check_width(self, width: int) -> None:
        """Refuse two directions that do not share the model width evenly, with a ValueError."""
        if self.direction == "both" and width % 2:
            raise ValueError(f"width {width} is odd; two directions have half of it each")


class ConvolutionSpec(CommonPartSpec):
    """A convolution over neighbouring tokens with gated linear units (Dauphin 2017)."""

    module = "heedful.nn.mixers.convolution:Convolution"
    module_with = (("columns", "heedful.nn.mixers.convolution_2d:Convolution2d"),)
    label = "Gated convolution"
    section = "convolution"
    dropout_option = "dropout"
    kind: Literal["convolution"] = "convolution"
    kernel_width: PositiveInt = Field(3, description="tokens of a kernel, or side of a square one")
    causal: bool = Field(False, description="hide later tokens")
    dropout: Probability = Field(0.0, description="dropout probability of the input")
    columns: PositiveInt | None = Field(None, description="columns of an image, for square kernels")
    first: Annotated[int, Field(ge=0)] = Field(0, description="position of its top left token")

    @model_validator(mode="after")
    def _kernel_fits(self) -> Self:
        width, columns = self.kernel_width, self.columns
        if columns is None and self.first:
            raise ValueError("first is the beginning of an image: it needs columns")
        if columns is not None and not self.causal:
            raise ValueError("columns is for models without an encoder, which hide later tokens")
        # A wider kernel would see the same columns twice.
        if columns is not None and width // 2 >= columns:
            raise ValueError(f"kernel_width {width} reaches past a row of {columns} columns")
        if width % 2 == 0 and (columns is not None or not self.causal):
            raise ValueError(
                f"kernel_width {width} has no middle, where the token itself stands: use an odd "
                "one, or causal = true without columns"
            )
        return self

    @property
    def reads_ahead(self) -> str | None:
        """The reason why the part cannot generate token by token; None if it can."""
        return None if self.causal else "a convolution without causal = true reads later tokens"


class ScoreAttentionSpec(CommonPartSpec):
    """Attention of one head over the encoder's output, by a score function of states.

    Local attention (local-p, Luong 2015) predicts a position p = S · sigmoid(v · tanh(W q)) in a
    source of S tokens. It attends to tokens up to `window` away from it, and multiplies their
    weights by a Gaussian around it whose standard deviation is half of `window`.
    """

    module = "heedful.nn.attention.score_attention:ScoreAttention"
    label = "Attention by a score function"
    kind: Literal["score_attention"] = "score_attention"
    over: Literal["input", "memory"] = Field(
        "memory", description="attend over the encoder's output"
    )
    score: Score = Field("additive", description="score function")
    width: PositiveInt | None = Field(
        None,
        description="size of queries and keys for additive, concat and dot scores; if unset, the "
        "model width, without projections for dot",
    )
    scale: Annotated[float, Field(gt=0)] = Field(1.0, description="factor on attention scores")
    window: PositiveInt | None = Field(
        None, description="half width of the window of local-p attention; unlimited if unset"
    )
    embeddings: bool = Field(
        False,
        description="add token embeddings to queries and values, and multiply outputs by the root "
        "of the source's length (Gehring 2017)",
    )
    dropout: Probability = Field(0.0, description="dropout probability of attention weights")

    @model_validator(mode="after")
    def _has_a_width_and_a_memory(self) -> Self:
        if self.width is not None and self.score == "general":
            raise ValueError("general compares states through a map of the model width: no width")
        if self.width is not None and self.embeddings:
            raise ValueError("width with embeddings: token embeddings have the model width")
        if self.over == "input":
            if self.window is not None:
                raise ValueError(
                    "local-p attention predicts a place in another text; in self-attention a token "
                    "has its own place: use kind = 'attention' with a mask of kind 'window'"
                )
            raise ValueError("scores compare states with a memory: use kind = 'attention' for over")
        return self


class RecurrentDecoderSpec(CommonPartSpec):
    """Recurrent layers that decode from an encoder's output, with or without attention to it.

    Without attention they see the source only as one vector, its last state (Sutskever 2014; Cho
    2014). With attention each step has a context vector of its own. If the first layer reads it
    beside the token, the previous state is the query (Bahdanau 2015); otherwise the current one
    (Luong 2015). The initial state of each layer is tanh(W · last state).
    """

    module = "heedful.nn.mixers.recurrent_decoder:RecurrentDecoder"
    label = "Recurrent decoder"
    section = "recurrent"
    dropout_option = "dropout"
    kind: Literal["recurrent_decoder"] = "recurrent_decoder"
    over: Literal["memory"] = "memory"
    cell: Cell = Field("lstm", description="recurrent cell: rnn, lstm or gru")
    num_layers: PositiveInt = Field(1, description="number of layers")
    summary: Direction = Field(
        "forward", description="reading direction of the encoder, whose last state is read"
    )
    attention: ScoreAttentionSpec | None = Field(None, description="cross-attention; none if unset")
    feeding: Feeding = Field("none", description="extra input of the first layer")
    readout: Readout = Field("none", description="layer between state and output")
    dropout: Probability = Field(0.0, description="dropout probability between layers")
    residual: bool = Field(
        False, description="add the input of each layer from the second on to its output (Wu 2016)"
    )
    keep_bias: float = Field(
        1.0, description="initial bias of the gate that keeps the state (Gers 2000); not for rnn"
    )

    @property
    def title(self) -> str:
        """The name of the cell, and the number of layers if there are several."""
        layers = f" of {self.num_layers} layers" if self.num_layers > 1 else ""
        return f"{self.cell.upper()}{layers}"

    @model_validator(mode="after")
    # A context vector that nothing reads would be trained for nothing, without any error.
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
        """Refuse an odd model width for a summary of two directions, with a ValueError."""
        if self.summary == "both" and width % 2:
            raise ValueError(f"width {width} is odd; two directions have half of it each")
