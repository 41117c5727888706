"""Two encoders with vectors in one space: images and the texts that describe them (CLIP)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.models.encoder import EncoderModel, first_states
from heedful.models.images.two_towers_spec import TwoTowersSpec
from heedful.models.images.vision import VisionModel
from heedful.models.stack import Stack
from heedful.nn.capture import Capture

FIRST_BIAS = -10.0
"""Number added to each score at the start, where there is one (Zhai 2023, 3.2)."""
LARGEST_SCALE = 100.0
"""Largest factor of the cosines, for stable training (Radford 2021, 2.5)."""
FIRST_SCALE = 1 / 0.07
"""Factor of the cosines at the start, the inverse of the temperature (Radford 2021, 2.5)."""


class TwoTowers(nn.Module):
    """An encoder of images and one of texts, each with a projection to a common space.

    Args:
        spec: complete description; see `heedful.models.images.two_towers_spec`.
    """

    def __init__(self, spec: TwoTowersSpec) -> None:
        super().__init__()
        self.spec = spec
        self.images = VisionModel(spec.images)
        self.texts = EncoderModel(spec.texts)
        self.image_projection = None
        if spec.image_projection:
            self.image_projection = _projection(spec.images.width, spec.width, bias=False)
        bias = spec.text_projection_bias
        self.text_projection = _projection(spec.texts.width, spec.width, bias=bias)
        # One element and not a scalar, which processes could not share.
        self.log_scale = nn.Parameter(torch.full((1,), math.log(FIRST_SCALE)))
        # Few pairs of a batch belong together, so at the start none seems to (Zhai 2023, 3.2).
        self.score_bias = nn.Parameter(torch.full((1,), FIRST_BIAS)) if spec.score_bias else None

    def forward(
        self,
        images: Tensor,
        ids: Tensor,
        positions: Tensor,
        image_capture: Capture | None = None,
        text_capture: Capture | None = None,
    ) -> Tensor:
        """Compare images with texts.

        Args:
            images: [B, C, h, w] float.
            ids: token ids [T, L] int64.
            positions: [T, L] int64, counted from 0 at each text's first token; −1 is padding.
            image_capture: tensors of the images' tower to keep; see `VisionModel`.
            text_capture: tensors of the texts' tower to keep; see `EncoderModel`.

        Returns:
            Scaled cosines [B, T] of each image and each text.
        """
        of_images = self.image_vectors(images, image_capture)
        return self.scores(of_images, self.text_vectors(ids, positions, text_capture))

    def image_vectors(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        """Return vectors of length 1 [B, D] of images [B, C, h, w]."""
        states = self.images(images, capture=capture)
        vectors = self.images.pooled(states)
        return _normed(vectors if self.image_projection is None else self.image_projection(vectors))

    def text_vectors(
        self, ids: Tensor, positions: Tensor, capture: Capture | None = None
    ) -> Tensor:
        """Return vectors of length 1 [T, D] of token ids [T, L] at positions [T, L]."""
        return self.projected(self.texts(ids, positions, capture=capture), positions)

    def projected(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return vectors of length 1 [T, D] of the states of texts [T, L, width]."""
        kind = self.spec.text_pooling
        if kind == "first":
            pooled = first_states(states, positions)
        elif kind == "last":
            pooled = states[torch.arange(len(states), device=states.device), positions.argmax(1)]
        else:
            real = (positions >= 0)[..., None]
            pooled = states.masked_fill(~real, 0).sum(1) / real.sum(1)
        return _normed(self.text_projection(pooled))

    def scores(self, of_images: Tensor, of_texts: Tensor) -> Tensor:
        """Return the cosines [B, T] of vectors [B, D] and [T, D], scaled, with the bias if any."""
        log_scale = self.log_scale
        if self.spec.bounded_scale:
            log_scale = log_scale.clamp(max=math.log(LARGEST_SCALE))
        scores = log_scale.exp() * of_images @ of_texts.T
        return scores if self.score_bias is None else scores + self.score_bias

    def stacks(self) -> dict[str, Stack]:
        """Return the stack of each tower."""
        return {"images": self.images.encoder, "texts": self.texts.encoder}

    def input_modules(self) -> dict[str, nn.Module]:
        """Return the module that makes the input of each tower's stack."""
        return {"images": self.images, "texts": self.texts.input}


def _projection(width: int, common: int, *, bias: bool) -> nn.Linear:
    """Return a map to the common space, drawn so that vectors keep their length (Radford 2021)."""
    projection = nn.Linear(width, common, bias=bias)
    nn.init.normal_(projection.weight, std=width**-0.5)
    if bias:
        nn.init.zeros_(projection.bias)
    return projection


def _normed(vectors: Tensor) -> Tensor:
    # Under autocast they are bfloat16, in which lengths would be off by a percent.
    return F.normalize(vectors.float(), dim=-1)
