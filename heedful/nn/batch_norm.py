"""Two-dimensional convolutions with batch normalisation (Ioffe and Szegedy 2015).

Shapes: B images, C channels, h and w height and width of a feature map.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOMENTUM = 0.1
"""Weight of the last pass in the running statistics, as in PyTorch and the residual networks."""

EPSILON = 1e-5


class BatchNorm(nn.Module):
    """Normalisation of each channel over all images and places, then a scale and an offset.

    Training takes mean and variance of the images of the pass and adds them to running statistics;
    evaluation takes these, so that a result does not depend on the other images of a batch. The
    statistics are buffers: they lie in the weights of a model, and a pass in training changes them
    (`heedful.train.splitting` takes back the change of an update that was not made).

    Args:
        channels: C.
    """

    measures_batch = True
    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        # No number of passes: an average of weights would have to round it.
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [B, C, h, w]; in training B·h·w must be more than 1."""
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_variance,
            self.weight,
            self.bias,
            training=self.training,
            momentum=MOMENTUM,
            eps=EPSILON,
        )


def has_batch_norm(model: nn.Module) -> bool:
    """Return True if passes of a model in training depend on the batch as a whole."""
    return any(getattr(module, "measures_batch", False) for module in model.modules())


class NormedConvolution(nn.Module):
    """A convolution without a bias, whose place the offset of its batch normalisation takes.

    Args:
        inputs: channels of the input.
        outputs: channels C of the output.
        kernel: odd height and width of the kernel; the border is padded with zeros.
        stride: places from one output to the next.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        # Variance 2 / (k²·C) keeps the size of gradients through ReLU (He 2015).
        std = math.sqrt(2 / (kernel * kernel * outputs))
        weight = torch.empty(outputs, inputs, kernel, kernel)
        self.weight = nn.Parameter(nn.init.normal_(weight, std=std))
        self.norm = BatchNorm(outputs)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, inputs, h, w] to [B, C, ⌈h / stride⌉, ⌈w / stride⌉]."""
        padding = self.weight.shape[-1] // 2
        y: Tensor = self.norm(F.conv2d(x, self.weight, stride=self.stride, padding=padding))
        return y

    def side(self, side: int) -> int:
        """Return the height and width of the output for an input of this height and width."""
        return -(-side // self.stride)

    def work(self, side: int) -> int:
        """Return the operations for an output of this height and width, two a multiply-add."""
        return 2 * self.weight.numel() * side * side
