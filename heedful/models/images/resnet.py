"""A residual network of convolutions (He 2016), beside which attention to images is measured.

Shapes: B images, C channels of a stage, h and w sides of its feature maps, n places of the last
one, D channels of the last stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from heedful.models.images.image_model import ImageModel
from heedful.models.images.resnet_spec import ResNetSpec
from heedful.models.prediction_heads import Classifier
from heedful.models.stack import Stack
from heedful.nn.batch_norm import NormedConvolution
from heedful.nn.capture import Capture
from heedful.nn.patches import check_images


class ResidualBlock(nn.Module):
    """Two convolutions, and the sum of their result and the input.

    Args:
        inputs: channels of the input.
        outputs: channels C of the output.
        stride: stride of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = NormedConvolution(inputs, outputs, 3, stride)
        self.second = NormedConvolution(outputs, outputs, 3)
        # Where the shape changes, the input goes through a convolution of its own (option B).
        changes = stride != 1 or inputs != outputs
        self.shortcut = NormedConvolution(inputs, outputs, 1, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, inputs, h, w] to [B, C, ⌈h / stride⌉, ⌈w / stride⌉]."""
        residual = x if self.shortcut is None else self.shortcut(x)
        # ReLU follows the sum, as in the paper.
        y: Tensor = (self.second(self.first(x).relu()) + residual).relu()
        return y


class ResNet(ImageModel):
    """A residual network with an optional classifier of the mean over places.

    Args:
        spec: complete description.
    """

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        self.spec = spec
        widths = [spec.width * 2**stage for stage in range(len(spec.blocks))]
        self.stem = NormedConvolution(spec.channels, spec.width, 3, spec.stem_stride)
        blocks = [ResidualBlock(spec.width, spec.width, 1) for _ in range(spec.blocks[0])]
        for (inputs, outputs), count in zip(pairwise(widths), spec.blocks[1:], strict=True):
            blocks.append(ResidualBlock(inputs, outputs, 2))
            blocks += [ResidualBlock(outputs, outputs, 1) for _ in range(count - 1)]
        self.blocks = nn.Sequential(*blocks)
        num_classes = len(spec.class_names)
        self.classifier = Classifier(spec.state_width, num_classes) if num_classes else None

    def forward(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        """Run the convolutions.

        Args:
            images: [B, channels, h, w] float.
            capture: tensors to keep; a residual network has none of attention.

        Returns:
            States [B, n, D], the places of the last feature map in reading order.

        Raises:
            DataError: when the images have another size or number of channels than the spec.
        """
        check_images(images, self.spec.channels, self.spec.image_size)
        x: Tensor = self.blocks(self.stem(images).relu())
        return x.flatten(2).transpose(1, 2)

    def convolution_work(self) -> int:
        """Return the operations of all convolutions for one image; see `heedful.nn.work`."""
        side = self.stem.side(self.spec.image_size)
        work = self.stem.work(side)
        for block in cast("Iterable[ResidualBlock]", self.blocks):
            side = block.first.side(side)
            convolutions = (block.first, block.second, block.shortcut)
            work += sum(each.work(side) for each in convolutions if each is not None)
        return work

    def stacks(self) -> dict[str, Stack]:
        """Return no stacks: there are no blocks of sub-layers."""
        return {}

    def input_modules(self) -> dict[str, nn.Module]:
        """Return no modules, as there are no stacks to read from them."""
        return {}
