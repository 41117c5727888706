"""Pixels as the numbers a model of images reads."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.nn.spec import PixelSpec


def normalized(pixels: Tensor, spec: PixelSpec) -> Tensor:
    """Images of the model's size as its input.

    Args:
        pixels: [B, C, h, w], 0 to 255, uint8 or float.
        spec: what the model was trained with.

    Returns:
        [B, C, h, w] float32.
    """
    mean, std = (
        torch.tensor(values, device=pixels.device)[:, None, None]
        for values in (spec.mean, spec.std)
    )
    return pixels.float().mul(spec.rescale).sub_(mean).div_(std)
