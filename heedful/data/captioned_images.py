"""Images with captions, for losses that compare all images of a batch with all captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from torch import Tensor

from heedful.data.batch_plan import Indices
from heedful.data.batches import ExampleBatch
from heedful.data.corpus_spec import CorpusSpec, ImageSpec
from heedful.data.encoded_images import Augmentation, EncodedImages, LabelledImages
from heedful.data.encoded_texts import frame_size
from heedful.data.idx_files import Pixels
from heedful.data.image_files import image_reader
from heedful.data.padding import source_tensors
from heedful.errors import DataError, RunError
from heedful.nn.pixel_spec import PixelSpec
from heedful.text.tokenizer import TextTokenizer
from heedful.text.unknown_characters import describe_unknown


@dataclass(frozen=True)
class CaptionBatch(ExampleBatch):
    """A batch of images, each with its caption.

    Args:
        images: normalised pixels [B, C, h, w] float32.
        ids: token ids of the captions [B, L] int64.
        positions: positions from 0 [B, L] int64; −1 is padding.
        targets: number of each image's caption [B] int64; equal captions have equal numbers.
        indices: numbers of the images [B] int64.
    """

    images: Tensor
    ids: Tensor
    positions: Tensor
    targets: Tensor
    indices: Tensor

    @property
    def target_tokens(self) -> int:
        """Number of pairs."""
        return len(self.targets)

    def part(self, start: int, stop: int) -> Self:
        """Return one example, which stands in for a process without a batch.

        Raises:
            RunError: for several, as their loss depends on all pairs of the batch.
        """
        if stop - start > 1:
            raise RunError(
                f"There is not enough memory for a batch of {len(self.targets)} pairs, and its "
                "loss compares all of them, so it cannot be computed in parts",
                where="data.batch_tokens",
                remedy="Lower it, or set checkpointing = full",
            )
        return super().part(start, stop)


class CaptionedImages:
    """Images with their captions, for making batches.

    Args:
        images: encoded images, whose labels are the captions.
        tokenizer: tokenizer of the captions.
        pixels: mean and deviation by which pixels are normalised.
        max_length: most tokens of a caption, special ones included; the rest is left out.

    Attributes:
        captions: all different captions.
        numbers: number of each image's caption [N] int64.
        num_cut: number of captions that are longer than `max_length`.

    Raises:
        DataError: when a caption has no words, or characters that the tokenizer does not know; its
            image is named.
    """

    def __init__(
        self, images: EncodedImages, tokenizer: TextTokenizer, pixels: PixelSpec, max_length: int
    ) -> None:
        self.captions = images.label_names
        self._labelled = LabelledImages(images, self.captions, pixels)
        self._tokenizer = tokenizer
        self.numbers = self._labelled.labels
        self.ids = tokenizer.encode_batch(self.captions)
        self._check()
        content = max_length - frame_size(tokenizer)
        self.num_cut = sum(len(ids) > content for ids in self.ids)
        self.ids = [ids[:content] for ids in self.ids]

    def batch(
        self, indices: Indices, augmentation: Augmentation | None = None, epoch: int = 0
    ) -> CaptionBatch:
        """Make a batch of images and their captions."""
        of_images = self._labelled.batch(indices, augmentation, epoch)
        ids, positions = self.tokens(self.numbers[indices])
        return CaptionBatch(of_images.images, ids, positions, of_images.targets, of_images.indices)

    def tokens(self, numbers: Sequence[int] | Indices) -> tuple[Tensor, Tensor]:
        """Return token ids [T, L] and positions [T, L] of captions, by their numbers."""
        return source_tensors([self.ids[number] for number in numbers], self._tokenizer)

    def _check(self) -> None:
        for number, (caption, ids) in enumerate(zip(self.captions, self.ids, strict=True)):
            if problem := caption_problem(self._tokenizer, caption, ids):
                first = int(np.argmax(self.numbers == number))
                raise DataError(
                    problem,
                    where=self._labelled.images.name(first),
                    remedy="Mend the caption, or leave the image out",
                )


def captioned_examples(
    files: Mapping[str, Any], image_size: int, channels: int
) -> tuple[list[Pixels], list[str]]:
    """Return the images of a corpus, [h, w] or [h, w, 3], and the caption of each.

    Args:
        files: corpus of the task `contrast` by name, such as {"file": "pictures.jsonl"}.
        image_size: height and width to which images are resized.
        channels: 1 for grey, 3 for colour.

    Raises:
        DataError: when an image or its caption cannot be read; its line is named.
    """
    examples = list(
        image_reader(CorpusSpec.parse(files), ImageSpec(size=image_size, channels=channels))
    )
    # Channels last, as images come from files.
    images = [
        each.pixels[0] if channels == 1 else each.pixels.transpose(1, 2, 0) for each in examples
    ]
    return images, [each.label for each in examples]


def caption_problem(tokenizer: TextTokenizer, caption: str, ids: Sequence[int]) -> str | None:
    """Return a sentence on a caption that a model cannot read; None for all others.

    Args:
        tokenizer: tokenizer of the model.
        caption: caption of an image.
        ids: its token ids, without special tokens.
    """
    # White space alone may have a token, that of a space.
    if not (ids and caption.strip()):
        return f"The caption {caption!r} has no words"
    unknown = describe_unknown(tokenizer, [caption]) if tokenizer.unk in ids else None
    return unknown and f"The caption {caption!r} has {unknown}"
