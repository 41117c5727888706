"""A denoiser of images: a Transformer over noisy patches that reads a caption (Peebles 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heedful.models.block import BlockState
from heedful.models.images.vision_spec import DenoiserSpec
from heedful.models.stack import Stack
from heedful.nn.capture import Capture
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.feedforward import linear
from heedful.nn.mixer import Context, Memory
from heedful.nn.patches import PatchEmbedding, joined
from heedful.nn.positions import LearnedPositions, Positions, sinusoids

_TIMES = 1000
"""Factor on times in [0, 1], so that sinusoids tell them apart as the steps of Ho (2020)."""


class TimeEmbedding(nn.Module):
    """Sinusoids of a time and two dense layers (Ho 2020).

    Args:
        width: model width D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(
            linear(width, width, bias=True), nn.SiLU(), linear(width, width, bias=True)
        )

    def forward(self, times: Tensor, dtype: torch.dtype) -> Tensor:
        """Embed times [B] in [0, 1] as vectors [B, D] of a type."""
        vectors: Tensor = self.layers(sinusoids(times * _TIMES, self.width, "halves").to(dtype))
        return vectors


class Denoiser(nn.Module):
    """A model of the velocity from noise to an image that a caption describes (Lipman 2023).

    Args:
        spec: complete description; see `heedful.models.images.vision_spec`.
    """

    def __init__(self, spec: DenoiserSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = TokenEmbedding(spec.vocabulary, spec.width)
        self.input = InputEmbedding(spec.width, spec.embedding)
        self.encoder = Stack(spec.width, spec.encoder, "encoder")
        self.patches = PatchEmbedding(spec.width, spec.image_size, spec.patch_size, spec.channels)
        self.positions = LearnedPositions(spec.width, spec.num_patches)
        self.time = TimeEmbedding(spec.width)
        self.dropout = nn.Dropout(spec.embedding.dropout)
        self.decoder = Stack(spec.width, spec.decoder, "decoder")
        self.projection = linear(spec.width, spec.channels * spec.patch_size**2, bias=True)
        # A new model answers 0 everywhere, from where it learns fastest (Peebles 2023, 3.2).
        nn.init.zeros_(self.projection.weight)

    def encode(
        self, captions: Tensor, caption_positions: Tensor, capture: Capture | None = None
    ) -> Memory:
        """Run the encoder of captions.

        Args:
            captions: [B, S] int64 ids, each row ending in eos.
            caption_positions: [B, S] int64; −1 is padding.
            capture: tensors to keep, by addresses such as `encoder.0.self.weights`.
        """
        x = self.input(captions, caption_positions, self.embedding)
        states = self.encoder(x, Context(Positions.of_self(caption_positions), capture=capture))
        return Memory(states, caption_positions, embedding=x)

    def velocity(
        self,
        images: Tensor,
        times: Tensor,
        memory_positions: Tensor,
        read: Sequence[BlockState],
        capture: Capture | None = None,
    ) -> Tensor:
        """Return the velocities of noisy images; a sampler calls it once a step.

        Args:
            images: noisy images [B, C, h, w].
            times: [B], 0 for noise and 1 for images.
            memory_positions: positions of the captions' tokens [B, S].
            read: result of the decoder's `read` for the encoded captions.
            capture: tensors to keep, by addresses such as `decoder.0.cross.weights`.

        Returns:
            [B, C, h, w].
        """
        x = self.patches(images)
        at = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        x = self.dropout(x + self.positions(at) + self.time(times, x.dtype)[:, None])
        over = Positions(at, memory_positions)
        context = Context(Positions.of_self(at), over, capture=capture)
        vectors = self.projection(self.decoder(x, context, read))
        return joined(vectors, self.spec.patch_size, self.spec.channels)

    def forward(
        self,
        images: Tensor,
        times: Tensor,
        captions: Tensor,
        caption_positions: Tensor,
        capture: Capture | None = None,
    ) -> Tensor:
        """Return the velocities [B, C, h, w] of noisy images; see `encode` and `velocity`.

        Raises:
            DataError: when the images have another size or number of channels than the spec.
        """
        # A single call for training: wrappers such as DistributedDataParallel know only `forward`.
        memory = self.encode(captions, caption_positions, capture)
        read = self.decoder.read(memory)
        return self.velocity(images, times, caption_positions, read, capture)

    def stacks(self) -> dict[str, Stack]:
        """Return the stacks by name, in the order of a pass."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    def input_modules(self) -> dict[str, nn.Module]:
        """Return the module that embeds the input of each stack: the model itself for patches."""
        return {"encoder": self.input, "decoder": self}
