"""Images as sequences: each patch becomes one vector (Dosovitskiy 2021).

Shapes: B batch, C channels, h and w height and width in pixels, p side of a patch in pixels,
n = (h/p)·(w/p) patches in reading order, D model width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heedful.errors import DataError
from heedful.nn.feedforward import linear
from heedful.nn.pixel_spec import PixelSpec


def cut(images: Tensor, patch_size: int) -> Tensor:
    """Cut images into square patches in reading order, without overlap.

    Args:
        images: [B, C, h, w].
        patch_size: p, which divides h and w.

    Returns:
        [B, n, C·p·p]; the elements of a patch are ordered by channel, row, column.
    """
    batch, channels, height, width = images.shape
    rows, columns = height // patch_size, width // patch_size
    grid = images.reshape(batch, channels, rows, patch_size, columns, patch_size)
    # [B, h/p, w/p, C, p, p]: a patch in the order of Conv2d's kernel [D, C, p, p], so that weights
    # of published models load by a reshape.
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def joined(patches: Tensor, patch_size: int, channels: int) -> Tensor:
    """Put the square patches of square images together again; the inverse of `cut`.

    Args:
        patches: [B, n, C·p·p], in the order of `cut`.
        patch_size: p.
        channels: C.

    Returns:
        [B, C, h, w] with h = w = p · √n.
    """
    side = math.isqrt(patches.shape[1])
    grid = patches.reshape(-1, side, side, channels, patch_size, patch_size)
    # [B, C, h/p, p, w/p, p]
    return grid.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


class PatchEmbedding(nn.Module):
    """A linear map of each patch's pixels: a convolution whose stride is its kernel size.

    Args:
        width: model width D.
        image_size: height and width in pixels.
        patch_size: p, which divides the image size.
        channels: C.
        bias: presence of a bias.
    """

    def __init__(
        self, width: int, image_size: int, patch_size: int, channels: int, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.image_size = image_size
        self.patch_size = patch_size
        self.channels = channels
        self.projection = linear(channels * patch_size**2, width, bias)

    def forward(self, images: Tensor) -> Tensor:
        """Embed the patches of images [B, C, h, w] as vectors [B, n, D].

        Raises:
            DataError: when the images have another size or number of channels.
        """
        check_images(images, self.channels, self.image_size)
        vectors: Tensor = self.projection(cut(images, self.patch_size))
        return vectors


def check_images(images: Tensor, channels: int, side: int) -> None:
    """Refuse images of another size or number of channels than a model reads.

    Args:
        images: [B, C, h, w].
        channels: C that the model reads.
        side: height and width that it reads.

    Raises:
        DataError: when they differ.
    """
    expected = (channels, side, side)
    if images.ndim != 4 or tuple(images.shape[1:]) != expected:
        raise DataError(
            f"The images are {_sizes(images.shape[1:])}; the model takes {_sizes(expected)} "
            "(channels × height × width)",
            remedy="Scale or crop the images, or use the `at_size` of a vision Transformer for "
            "another size",
        )


def stretched(table: Tensor, old: int, new: int) -> Tensor:
    """Interpolate learned positions for another image size (Dosovitskiy 2021, section 3.2).

    Interpolation is bicubic over the square of patches.

    Args:
        table: [n, D], positions of n = `old`² patches in reading order.
        old: patches on a side of the table's image.
        new: patches on a side of the result.

    Returns:
        [`new`², D].
    """
    assert table.shape[0] == old * old, (table.shape, old)
    grid = table.T.reshape(1, -1, old, old)
    # Computed in float32: each value is a weighted sum of 16, and in 16 bits every term would be
    # rounded.
    resized = nn.functional.interpolate(grid.float(), size=(new, new), mode="bicubic")
    return resized.to(table.dtype).flatten(2)[0].T.contiguous()


def _sizes(shape: torch.Size | tuple[int, ...]) -> str:
    return " × ".join(str(size) for size in shape)


def _statistics(spec: PixelSpec, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel [C, 1, 1]."""
    # Of a type by name: a notebook's default type would round them otherwise.
    mean, std = (
        torch.tensor(values, dtype=torch.float32, device=device)[:, None, None]
        for values in (spec.mean, spec.std)
    )
    return mean, std


def normalized(pixels: Tensor, spec: PixelSpec) -> Tensor:
    """Normalise the pixels of images that have the model's size.

    Args:
        pixels: [B, C, h, w], 0 to 255, uint8 or float.
        spec: scaling and statistics that the model was trained with.

    Returns:
        [B, C, h, w] float32.
    """
    mean, std = _statistics(spec, pixels.device)
    # The first multiplication makes a new tensor, so the steps in place do not change the caller's.
    return pixels.float().mul(spec.rescale).sub_(mean).div_(std)


def denormalized(images: Tensor, spec: PixelSpec) -> Tensor:
    """Return normalised images [B, C, h, w] as bytes, 0 to 255, the nearest that there are."""
    mean, std = _statistics(spec, images.device)
    values = images.float().mul(std).add_(mean).div_(spec.rescale)
    return values.round_().clamp_(0, 255).to(torch.uint8)
