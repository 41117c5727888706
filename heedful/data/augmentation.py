"""Images changed at random, as training sees them.

What happens to an image is a function of the seed, the epoch and the image's number alone: not of
the batch it is in, nor of what was drawn before. So the numbers come from a counter that is mixed
(SplitMix64, Steele 2014), all of a batch at once; NumPy's generators would need one for each image.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from heedful.data.batch_plan import Indices
from heedful.data.corpus_spec import AugmentSpec

ERASED_AREA = (0.02, 0.33)
"""Share of an image that a hidden rectangle has at least and at most (Zhong 2020)."""
ERASED_SHAPE = (0.3, 1 / 0.3)
"""Its height divided by its width, at least and at most."""

_DRAWS = 10
_STEP = np.uint64(0x9E3779B97F4A7C15)


def draws(seed: int, epoch: int, indices: Indices, count: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), `count` for each index.

    Args:
        seed: of the run.
        epoch: counted from 0.
        indices: [B].
        count: how many for each.

    Returns:
        [B, count].
    """
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    counters = indices[:, None] * count + np.arange(1, count + 1)
    x: npt.NDArray[np.uint64] = counters.astype(np.uint64)
    x *= _STEP
    x += key.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    high: npt.NDArray[np.uint64] = x >> np.uint64(11)
    return high.astype(np.float64) * 2.0**-53


class Augmentation:
    """Changes the images of a batch: mirrored, then moved, turned and scaled, then partly hidden.

    Args:
        spec: how much of each.
        seed: of the run.
        filling: what a hidden rectangle shows, a value for each channel, 0 to 255.
    """

    def __init__(self, spec: AugmentSpec, seed: int, filling: tuple[float, ...]) -> None:
        self.spec = spec
        self.seed = seed
        self.filling = torch.tensor(filling)[:, None, None]

    def __call__(self, images: Tensor, indices: Indices, epoch: int) -> Tensor:
        """Change images.

        Args:
            images: [B, C, h, h] uint8.
            indices: their numbers [B].
            epoch: counted from 0.

        Returns:
            [B, C, h, h] float32, 0 to 255.
        """
        x = images.float()
        spec = self.spec
        if spec == AugmentSpec():
            return x
        drawn = draws(self.seed, epoch, indices, _DRAWS).astype(np.float32)
        # One row for each draw: of a column PyTorch would compute sines by another route.
        rows = torch.from_numpy(np.ascontiguousarray(drawn.T))
        if spec.flip:
            x = torch.where(rows[0, :, None, None, None] < 0.5, x.flip(-1), x)
        if spec.shift or spec.rotate or spec.scale:
            x = self._moved(x, rows[1:5])
        if spec.erase:
            x = torch.where(self._hidden(rows[5:10], x.shape[-1]), self.filling, x)
        return x

    def _moved(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Shifted by whole pixels, turned and scaled about the middle, in one interpolation."""
        spec, side = self.spec, x.shape[-1]
        shift = (drawn[:2] * (2 * spec.shift + 1)).floor() - spec.shift
        angle = (2 * drawn[2] - 1) * math.radians(spec.rotate)
        size = 1 + (2 * drawn[3] - 1) * spec.scale
        # Where each pixel of the result comes from, in pixels from the middle. Written out, for a
        # matrix product may add in another order for another number of images.
        middle = torch.arange(side) - (side - 1) / 2
        right = (middle - shift[0, :, None])[:, None, :]
        down = (middle - shift[1, :, None])[:, :, None]
        cosine, sine = ((f(angle) / size)[:, None, None] for f in (torch.cos, torch.sin))
        columns = right * cosine + down * sine
        rows = down * cosine - right * sine
        grid = torch.stack([columns, rows], dim=-1) * (2 / side)
        moved = grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        return moved.clamp_(0.0, 255.0)

    def _hidden(self, drawn: Tensor, side: int) -> Tensor:
        """A mask of the pixels in the hidden rectangle of an image that has one [B, 1, h, h]."""
        share = ERASED_AREA[0] + drawn[1] * (ERASED_AREA[1] - ERASED_AREA[0])
        low, high = (math.log(bound) for bound in ERASED_SHAPE)
        shape = (low + drawn[2] * (high - low)).exp()
        chosen = drawn[0] < self.spec.erase
        at = torch.arange(side)
        within = []
        for length, place in (
            ((share * shape).sqrt(), drawn[3]),
            ((share / shape).sqrt(), drawn[4]),
        ):
            pixels = (length * side).round().clamp(1, side)
            start = (place * (side - pixels + 1)).floor()
            within.append((at >= start[:, None]) & (at < (start + pixels)[:, None]))
        rows, columns = within
        return (rows[:, :, None] & columns[:, None, :] & chosen[:, None, None])[:, None]
