"""Images as sequences: patches cut out, each one vector (Dosovitskiy 2021).

Shapes: B batch, C channels, h and w height and width in pixels, p side of a patch in pixels,
n = (h/p)·(w/p) patches in reading order, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.errors import DataError
from heedful.nn.feedforward import linear
from heedful.nn.spec import PixelSpec


def cut(images: Tensor, patch_size: int) -> Tensor:
    """Square patches in reading order, without overlap.

    Args:
        images: [B, C, h, w].
        patch_size: p, which divides h and w.

    Returns:
        [B, n, C·p·p]; the numbers of a patch run over channels, its rows, its columns.
    """
    batch, channels, height, width = images.shape
    rows, columns = height // patch_size, width // patch_size
    grid = images.reshape(batch, channels, rows, patch_size, columns, patch_size)
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class PatchEmbedding(nn.Module):
    """A linear map of each patch's pixels; the same as a convolution whose steps are its size.

    Args:
        width: model width D.
        image_size: height and width in pixels.
        patch_size: p, which divides the image size.
        channels: C.
    """

    def __init__(self, width: int, image_size: int, patch_size: int, channels: int) -> None:
        super().__init__()
        self.image_size = image_size
        self.patch_size = patch_size
        self.channels = channels
        self.projection = linear(channels * patch_size**2, width, bias=True)

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, C, h, w] to vectors [B, n, D].

        Raises:
            DataError: when the images have another size or number of channels.
        """
        expected = (self.channels, self.image_size, self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise DataError(
                f"The images are {_sizes(images.shape[1:])}; the model takes {_sizes(expected)} "
                "(channels × height × width)",
                remedy="Scale or crop the images, or use the model's `at_size` for another size",
            )
        vectors: Tensor = self.projection(cut(images, self.patch_size))
        return vectors


def stretched(table: Tensor, old: int, new: int) -> Tensor:
    """Learned positions of a square of patches, interpolated (bicubic) for another number of them.

    Args:
        table: [n, D] for n = `old`² patches in reading order.
        old: patches on a side.
        new: patches on a side of the result.

    Returns:
        [`new`², D].
    """
    assert table.shape[0] == old * old, (table.shape, old)
    grid = table.T.reshape(1, -1, old, old)
    resized = nn.functional.interpolate(grid.float(), size=(new, new), mode="bicubic")
    return resized.to(table.dtype).flatten(2)[0].T.contiguous()


def _sizes(shape: torch.Size | tuple[int, ...]) -> str:
    return " × ".join(str(size) for size in shape)


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
