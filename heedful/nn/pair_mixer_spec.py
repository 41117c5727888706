"""Specs of mixers over pairs of residues, as data; nothing here imports torch.

A chain of N residues has N² pairs. They are a sequence in reading order: pair (i, j) stands at
i · N + j. Their features are the edges of a graph whose nodes are residues. The module is imported
by `heedful.registry` when a model has such a part.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from heedful.config import PositiveInt
from heedful.errors import ConfigError
from heedful.nn.mixer_spec import CommonPartSpec


class CommonPairSpec(CommonPartSpec):
    """Base of the specs of mixers over the pairs of a chain."""

    section = "evoformer"
    side: PositiveInt = Field(description="number of residues N of a chain, which has N² pairs")
    first: Annotated[int, Field(ge=0)] = Field(
        1, description="position of the first pair; other tokens stay as they are"
    )
    bias: bool = Field(True, description="bias vectors of the linear layers")
    causal: Literal[False] = False  # a pair reads others on both sides of it

    @classmethod
    def of_shape(cls, shape: Any, causal: bool) -> Self:
        """Refuse to be the only mixer of a layer; the options of `evoformer` make whole stacks.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{cls.label} is one of the four mixers of an Evoformer block",
            where="model.encoder_mixer",
            remedy="Leave it out and set model.evoformer.side",
        )

    @property
    def reads_ahead(self) -> str | None:
        """The reason why the part cannot generate token by token."""
        return "a pair reads pairs that are not written yet"

    @property
    def exact_text(self) -> int:
        """The only number of tokens of a text, special ones not counted: the N² pairs."""
        return self.side * self.side


class TriangleMultiplicationSpec(CommonPairSpec):
    """A sum over the third residue of products of two edges (Jumper 2021, algorithms 11 and 12)."""

    module = "heedful.nn.mixers.triangles:TriangleMultiplication"
    label = "Triangle multiplication"
    kind: Literal["triangle_multiplication"] = "triangle_multiplication"
    edges: Literal["outgoing", "incoming"] = Field(
        "outgoing", description="edges from i and j to the third residue, or from it to them"
    )
    width: PositiveInt | None = Field(
        None, description="number of multiplied channels; model width if unset"
    )


class TriangleAttentionSpec(CommonPairSpec):
    """Attention among the edges of one residue, with a bias by the third edge (Jumper 2021).

    Algorithms 13 and 14: edge (i, j) attends to edges (i, k), which start at its node i, or to
    edges (k, j), which end at its node j. The bias of the score is read from the edge that closes
    the triangle.
    """

    module = "heedful.nn.mixers.triangles:TriangleAttention"
    label = "Triangle attention"
    kind: Literal["triangle_attention"] = "triangle_attention"
    node: Literal["starting", "ending"] = Field(
        "starting", description="node that an edge shares with those it attends to"
    )
    num_heads: PositiveInt = Field(description="number of heads")
    head_width: PositiveInt | None = Field(
        None, description="width of a head; width / num_heads if unset"
    )

    def check_width(self, width: int) -> None:
        """Refuse heads that do not divide the model width, with a ValueError."""
        if self.head_width is None and width % self.num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {self.num_heads}")
