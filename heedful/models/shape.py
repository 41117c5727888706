"""The dials of a model: what a person turns, from which its complete description follows.

No more than that is loaded here, as the command line makes its flags of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from heedful.config import Config, PositiveInt, Probability
from heedful.nn.kinds import Activation

if TYPE_CHECKING:
    from heedful.models.spec import TranslatorSpec

PositionScheme = Literal["sinusoidal", "learned", "none", "rotary", "alibi", "t5", "relative_keys"]


class TranslatorShape(Config):
    """The dials of a translator; everything else of its spec follows from them."""

    width: PositiveInt = 512
    encoder_layers: PositiveInt = 6
    decoder_layers: PositiveInt = 6
    num_heads: PositiveInt = 8
    num_kv_heads: PositiveInt | None = None
    feedforward: PositiveInt = 2048
    num_experts: PositiveInt | None = Field(
        None, description="feed-forward networks in each layer of which a token uses a few"
    )
    experts_per_token: PositiveInt = 2
    activation: Activation = "relu"
    norm: Literal["layer", "rms"] = "layer"
    norm_placement: Literal["post", "pre"] = "post"
    positions: PositionScheme = "sinusoidal"
    window: PositiveInt | None = Field(None, description="self-attention sees only this near")
    share_embeddings: Literal["all", "target", "none"] = "all"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    feedforward_dropout: Probability = 0.0
    bias: bool = True
    max_length: PositiveInt = 256

    def expand(self, source_vocabulary: int, target_vocabulary: int) -> TranslatorSpec:
        """The complete spec for vocabularies of these sizes (in types)."""
        from heedful.models.shapes import translator_spec

        return translator_spec(self, source_vocabulary, target_vocabulary)
