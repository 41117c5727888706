"""Feature maps of linear attention: positive features whose dot products are the weights.

With features φ the weight of a key for a query is φ(q) · φ(k), and sums over keys need no pairs of
tokens (`linear_attention`). The choice of φ decides what is attended to.

Shapes: B sentences, H heads, L length, E head width, F features.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.nn.mixer_spec import FeaturesSpec
from heedful.nn.positions import check_below


class FeatureMap(nn.Module):
    """Features of queries and of keys.

    Attributes:
        width: F.
        smallest: lower bound of the sum of weights, so that no keys give 0 instead of 0 / 0.
    """

    width: int
    smallest: float = 1e-6

    def forward(self, x: Tensor, positions: Tensor, *, of_keys: bool) -> Tensor:
        """Return the features.

        Args:
            x: [B, H, L, E] float32.
            positions: [B, L] int64; the result is arbitrary but finite where they are −1.
            of_keys: flag of keys; otherwise x are queries.

        Returns:
            [B, H, L, F], none of them negative.
        """
        raise NotImplementedError

    def count_pass(self) -> None:
        """Count a training pass, after which random features may be redrawn."""

    def work(self, tokens: int) -> int:
        """Return the operations of matmuls for queries and keys of one head."""
        return 0


class EluFeatures(FeatureMap):
    """elu(x) + 1 (Katharopoulos 2020, equation 7)."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.width = head_width

    def forward(self, x: Tensor, positions: Tensor, *, of_keys: bool) -> Tensor:
        return F.elu(x) + 1


class CosineFeatures(FeatureMap):
    """max(x, 0) times the cosine and times the sine of the position (cosFormer; Qin 2022).

    As cos(a − b) = cos a cos b + sin a sin b, the weight of a key is max(q, 0) · max(k, 0) times
    the cosine of their distance · π / (2 · length): near keys count more.

    Args:
        head_width: E.
        length: distance at which the weight reaches 0, and longest sequence.
    """

    def __init__(self, head_width: int, length: int) -> None:
        super().__init__()
        self.width = 2 * head_width
        self.length = length

    def forward(self, x: Tensor, positions: Tensor, *, of_keys: bool) -> Tensor:
        check_below(
            positions,
            self.length,
            f"the {self.length} tokens of cosine features, where weights would become negative",
            "Use shorter texts, or a model with a larger length",
        )
        angles = positions[:, None, :, None].to(x.dtype) * (math.pi / (2 * self.length))
        x = F.relu(x)
        return torch.cat([x * angles.cos(), x * angles.sin()], -1)


class RandomFeatures(FeatureMap):
    """exp(ω · x − |x|² / 2) for random directions ω: FAVOR+ (Choromanski 2021, section 2.3).

    With x = q / E^¼ and k / E^¼ the mean of their products over ω is exp(q · k / √E), the weight
    of softmax. Directions are orthogonal in groups of E, which makes the error smaller, and drawn
    again from time to time in training, so that no layer comes to rely on one draw. A draw
    depends on the seed and the number of passes, which is stored with the weights.

    Args:
        head_width: E.
        num_features: F.
        redraw_every: number of training passes between two draws; None for one draw.
        seed: seed of all draws.
    """

    # Softmax has no lower bound either; products of exponentials may be very small.
    smallest = float(torch.finfo(torch.float32).tiny)

    passes: Tensor

    def __init__(
        self, head_width: int, num_features: int, redraw_every: int | None, seed: int
    ) -> None:
        super().__init__()
        self.head_width = head_width
        self.width = num_features
        self.redraw_every = redraw_every
        self.seed = seed
        # An integer: averaging of weights skips it, and no precision rounds it.
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, positions: Tensor, *, of_keys: bool) -> Tensor:
        x = x / math.sqrt(math.sqrt(self.head_width))
        scores = x @ self.directions(x.device).T
        if of_keys:
            # No common factor is divided out of keys: a step cannot know the largest to come. Their
            # exponents are at most |ω|² / 2, near E / 2.
            return torch.exp(scores - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(self.width)
        # A factor of a query alone, such as exp(−|q|² / 2), cancels in its output; the maximum
        # keeps the exponentials from overflowing.
        return torch.exp(scores - scores.detach().amax(-1, keepdim=True)) / math.sqrt(self.width)

    def directions(self, device: torch.device) -> Tensor:
        """Return ω of the current draw, [F, E] float32."""
        sizes, passes = (self.width, self.head_width), self.passes.to(device)
        directions: Tensor = _drawn(passes, *sizes, self.seed, self.redraw_every or 0)
        return directions

    def count_pass(self) -> None:
        """See `FeatureMap`."""
        if self.redraw_every is not None:
            self.passes += 1

    def work(self, tokens: int) -> int:
        """Return the operations of the matmuls with ω, of queries and of keys."""
        return 2 * 2 * tokens * self.width * self.head_width


def build_features(spec: FeaturesSpec, head_width: int) -> FeatureMap:
    """Build the feature map that a spec describes, for heads of width E."""
    return _BUILDERS[spec.kind](spec, head_width)


_BUILDERS: Mapping[str, Callable[[Any, int], FeatureMap]] = {
    "elu": lambda spec, width: EluFeatures(width),
    "cosine": lambda spec, width: CosineFeatures(width, spec.length),
    "random": lambda spec, width: RandomFeatures(
        width, spec.num_features, spec.redraw_every, spec.seed
    ),
}


@torch.library.custom_op("heedful::random_directions", mutates_args=())
def _drawn(passes: Tensor, number: int, width: int, seed: int, redraw_every: int) -> Tensor:
    """Return the directions after `passes` (0-dim) training passes, [number, width] float32.

    A custom operator, so that a compiler does not trace the drawing.
    """
    draw = int(passes) // redraw_every if redraw_every else 0
    return _directions(number, width, seed, draw, passes.device).clone()


@_drawn.register_fake
def _shape_of_drawn(
    passes: Tensor, number: int, width: int, seed: int, redraw_every: int
) -> Tensor:
    return passes.new_empty((number, width), dtype=torch.float32)


@functools.lru_cache(maxsize=64)
def _directions(number: int, width: int, seed: int, draw: int, device: torch.device) -> Tensor:
    """Return directions [number, width], orthogonal in groups of `width`, of Gaussian lengths."""
    # PyTorch's generator uses 32 bits of a seed; these are a hash of both numbers.
    mixed = random.Random(f"{seed} {draw}").getrandbits(32)
    source = torch.Generator().manual_seed(mixed)
    with torch.inference_mode(False), torch.no_grad():
        groups = []
        for _ in range(-(-number // width)):
            q, r = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64, generator=source))
            # With these signs Q is uniformly distributed (Mezzadri 2007).
            groups.append((q * r.diagonal().sign()).T)
        # Norms of Gaussian vectors, so that each ω alone is distributed as a Gaussian vector.
        lengths = torch.randn(number, width, dtype=torch.float64, generator=source)
        lengths = torch.linalg.vector_norm(lengths, dim=1, keepdim=True)
        result: Tensor = torch.cat(groups)[:number] * lengths
        return result.float().to(device)
