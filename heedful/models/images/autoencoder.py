"""An autoencoder of images with discrete codes: VQ-VAE (van den Oord 2017) of our blocks.

The stacks are those of ViT-VQGAN (Yu 2021), and so is the table of codes: its vectors are narrow,
and are compared by their direction alone, so that far more of them come into use. Nothing but
weights is remembered: the table learns by its gradient, and needs no running means.

Shapes: B images, C channels, n patches, D model width, K codes, E width of a code.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.models.images.autoencoder_spec import AutoencoderSpec
from heedful.models.stack import Stack
from heedful.nn.capture import Capture
from heedful.nn.feedforward import linear
from heedful.nn.mixer import Context
from heedful.nn.patches import PatchEmbedding, joined
from heedful.nn.positions import LearnedPositions, Positions
from heedful.nn.work import Work, weight_work


class Reconstruction(NamedTuple):
    """Result of a pass through an autoencoder.

    Args:
        images: reconstructed normalised pixels [B, C, h, w].
        vectors: unit vectors of the patches before they are replaced by codes [B, n, E].
        table: unit vectors of the codes [K, E].
        codes: number of the code of each patch [B, n] int64.
    """

    images: Tensor
    vectors: Tensor
    table: Tensor
    codes: Tensor


class Codebook(nn.Module):
    """A table of K directions, one for each code.

    Args:
        codes: K.
        width: E.
    """

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        # Only directions count, so the length of a row is free; 1 makes its first steps as large
        # as those of other weights.
        self.weight = nn.Parameter(torch.empty(codes, width))
        nn.init.normal_(self.weight, std=width**-0.5)

    def table(self) -> Tensor:
        """Return the unit vectors of the codes [K, E]."""
        return F.normalize(self.weight, dim=-1)


class PatchPositions(nn.Module):
    """The sum of patches with learned positions, which is the input of a stack.

    Args:
        width: D.
        patches: n.
        dropout: dropout probability of the sum.
    """

    def __init__(self, width: int, patches: int, dropout: float) -> None:
        super().__init__()
        self.positions = LearnedPositions(width, patches)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, capture: Capture | None) -> tuple[Tensor, Context]:
        """Return x [B, n, D] with its positions, and the context of the stack."""
        # Images have no padding, so every row has the same positions.
        at = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        return self.dropout(x + self.positions(at)), Context(Positions.of_self(at), capture=capture)


class Autoencoder(nn.Module):
    """Patches → encoder → nearest codes → decoder → pixels.

    Args:
        spec: complete description; see `AutoencoderSpec`.
    """

    def __init__(self, spec: AutoencoderSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.width
        self.patches = PatchEmbedding(width, spec.image_size, spec.patch_size, spec.channels)
        self.encoder_input = PatchPositions(width, spec.num_states, spec.dropout)
        self.encoder = Stack(width, spec.encoder, "encoder")
        self.to_code = linear(width, spec.code_width, bias=True)
        self.codebook = Codebook(spec.codes, spec.code_width)
        self.from_code = linear(spec.code_width, width, bias=True)
        self.decoder_input = PatchPositions(width, spec.num_states, spec.dropout)
        self.decoder = Stack(width, spec.decoder, "decoder")
        self.pixels = linear(width, spec.channels * spec.patch_size**2, bias=True)

    def forward(self, images: Tensor, capture: Capture | None = None) -> Reconstruction:
        """Reconstruct images from their codes.

        The gradient of a code's vector goes to the patch's own (straight through), as choosing
        the nearest has none.

        Args:
            images: normalised pixels [B, C, h, w].
            capture: tensors to keep, by addresses such as `encoder.0.self.weights`.

        Raises:
            DataError: when the images have another size or number of channels than the spec.
        """
        vectors, table = self.vectors(images, capture), self.codebook.table()
        codes = nearest(vectors, table)
        chosen = vectors + (table[codes] - vectors).detach()
        return Reconstruction(self.draw(chosen, capture), vectors, table, codes)

    def vectors(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        """Return unit vectors [B, n, E] of the patches of images [B, C, h, w]."""
        x, context = self.encoder_input(self.patches(images), capture)
        states = self.encoder(x, context)
        # In float32, as the loss sums small differences of these vectors.
        return F.normalize(self.to_code(states).float(), dim=-1)

    def encode(self, images: Tensor) -> Tensor:
        """Return the codes [B, n] int64 of images [B, C, h, w], in reading order."""
        return nearest(self.vectors(images), self.codebook.table())

    def decode(self, codes: Tensor) -> Tensor:
        """Return the normalised pixels [B, C, h, w] of codes [B, n]."""
        return self.draw(self.codebook.table()[codes])

    def draw(self, vectors: Tensor, capture: Capture | None = None) -> Tensor:
        """Return normalised pixels [B, C, h, w] from the vectors of codes [B, n, E]."""
        x, context = self.decoder_input(self.from_code(vectors), capture)
        pixels = self.pixels(self.decoder(x, context))
        return joined(pixels, self.spec.patch_size, self.spec.channels)

    def map_work(self) -> Work:
        """Return the forward work for an image outside of the stacks; `output` finds the codes."""
        n, maps = self.spec.num_states, (self.patches, self.to_code, self.from_code, self.pixels)
        compared = 2 * n * self.codebook.weight.numel()
        return Work(weights=n * weight_work(*maps), output=compared)

    def stacks(self) -> dict[str, Stack]:
        """Return the stacks by name, in the order of a pass."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    def input_modules(self) -> dict[str, nn.Module]:
        """Return the module that adds positions to the input of each stack."""
        return {"encoder": self.encoder_input, "decoder": self.decoder_input}


def nearest(vectors: Tensor, table: Tensor) -> Tensor:
    """Return the number of the nearest row of a table for each vector [..., E], all of length 1.

    Args:
        vectors: unit vectors [..., E].
        table: unit vectors [K, E].

    Returns:
        [...] int64.
    """
    # Of unit vectors the nearest has the largest product: |v − t|² = 2 − 2 v·t.
    return (vectors.detach() @ table.detach().T).argmax(-1)


def used_codes(counts: Tensor) -> float:
    """Return the number of codes that occur, from the number of times [K] that each does."""
    return float((counts > 0).sum())


def code_perplexity(counts: Tensor) -> float:
    """Return the exponential of the entropy of codes from their counts [K]: K if all are equal."""
    shares = counts / counts.sum()
    return float(torch.special.entr(shares).sum().exp())
