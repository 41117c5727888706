"""The config tree of models of images and texts in one space. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from heedful.config import PositiveInt
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.model_spec import CommonSpec, Side
from heedful.models.stack_spec import StackSpec


class TwoTowersSpec(CommonSpec):
    """An encoder of images and one of texts with vectors in a common space (CLIP, Radford 2021)."""

    kind: Literal["two_towers"] = "two_towers"
    width: PositiveInt = Field(description="width of the common space")
    images: VisionSpec
    texts: EncoderSpec
    text_pooling: Literal["first", "last", "mean"] = Field(
        "first", description="state of a whole text: that of its first or last token, or the mean"
    )
    image_projection: bool = Field(
        True, description="map of an image's vector to the common space, whose width it has without"
    )
    text_projection_bias: bool = Field(False, description="bias of the map of a text's vector")
    score_bias: bool = Field(
        False, description="learned number added to each score (SigLIP, Zhai 2023)"
    )
    bounded_scale: bool = Field(
        True, description="at most 100 for the factor of the cosines (Radford 2021, 2.5)"
    )
    padded_length: PositiveInt | None = Field(
        None,
        description="number of tokens to which texts are filled up with padding tokens that are "
        "read like others (SigLIP); none if unset",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.image_projection and self.images.width != self.width:
            raise ValueError(
                f"without image_projection the width {self.width} must be that of images, "
                f"{self.images.width}"
            )
        longest = self.texts.longest_text
        if self.padded_length and longest and self.padded_length > longest:
            raise ValueError(f"padded_length {self.padded_length} is more than {longest} positions")
        return self

    reads = "images_and_texts"

    @classmethod
    def upgrade(cls, values: Mapping[str, object]) -> Mapping[str, object]:
        """Turn the short form of equal blocks of both towers into patterns of sub-layers."""
        towers: dict[str, type[CommonSpec]] = {"images": VisionSpec, "texts": EncoderSpec}
        upgraded = {
            name: spec.upgrade(tower)
            for name, spec in towers.items()
            if isinstance(tower := values.get(name), Mapping)
        }
        return dict(values) | upgraded

    def stacks(self) -> dict[str, StackSpec]:
        """Return the stack of each tower by the tower's name."""
        return {"images": self.images.encoder, "texts": self.texts.encoder}

    def with_stacks(self, stacks: Mapping[str, StackSpec]) -> Self:
        """Return a copy with other stacks, by the names of their towers."""
        towers = {
            name: self.of_stack(name).with_stacks({"encoder": stacks[name]}) for name in stacks
        }
        return self.model_copy(update=towers)

    def of_stack(self, name: str) -> CommonSpec:
        """Return the spec of a tower."""
        return self.images if name == "images" else self.texts

    def vocabularies(self) -> dict[Side, int]:
        """Return the vocabulary size of the texts, for either side."""
        return self.texts.vocabularies()

    def with_vocabularies(self, *, source: int, target: int) -> Self:
        """Return a copy whose texts have a vocabulary of this size."""
        texts = self.texts.with_vocabularies(source=source, target=target)
        return self.model_copy(update={"texts": texts})

    @property
    def predicted_vocabulary(self) -> int:
        """1, as no token is predicted."""
        return 1

    @property
    def num_positions(self) -> int | None:
        """Number of learned positions of texts; None where they are not learned."""
        return self.texts.num_positions

    @property
    def longest_text(self) -> int | None:
        """Most tokens of a text that the model can read; None without a limit."""
        return self.texts.longest_text
