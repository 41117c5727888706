"""Images and texts in one space: vectors, zero-shot classification and retrieval (CLIP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.images.captioned_images import caption_problem, captioned_examples
from heedful.device import Precision
from heedful.engines.inference.prepare import HeldModel
from heedful.errors import ConfigError, DataError
from heedful.evaluate.retrieval import Vectors, retrieval_recall
from heedful.models.images.two_towers import TwoTowers
from heedful.pipelines.batching import list_of_texts
from heedful.pipelines.encoder_input import check_length, encode, frame
from heedful.pipelines.image_input import BATCH_TOKENS, ImageInput, Picture
from heedful.pipelines.predictions import Label, ranked
from heedful.pipelines.text_pipeline import TextPipeline, checked
from heedful.text.tokenizer import TextTokenizer

TEMPLATE = "{}"
"""Text of a label, with {} in the place of the label: the label itself."""


class TwoTowersPipeline(TextPipeline[TwoTowers]):
    """Images and texts as vectors of one space, in which what belongs together is near.

    Args:
        model: model with the normalisation of pixels in the spec of its images.
        tokenizer: tokenizer of the texts.
        precision: precision of the forward passes; float32 if unset.

    Raises:
        ModelError: when the spec has no normalisation of pixels.
    """

    kind = TwoTowers
    verbs = ("classify", "embed", "embed_images", "retrieve", "recall")
    refusal = "This model does not compare images with texts"
    remedy = "Give one that was trained with --task contrast, or a CLIP or SigLIP"

    def __init__(
        self,
        model: TwoTowers | HeldModel[TwoTowers],
        tokenizer: TextTokenizer,
        *,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(model, tokenizer, precision=precision)
        self._input = ImageInput(self.spec.images)

    def embed(
        self,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        first_line: int = 1,
    ) -> Vectors:
        """Return a vector of length 1 for each text.

        Args:
            texts: texts such as captions.
            batch_size: texts in a batch, instead of `batch_tokens`; it changes no result.
            batch_tokens: positions in a batch, padding counted.
            first_line: number of the first text in errors.

        Returns:
            [texts, D] float32.

        Raises:
            DataError: when a text has no words, has characters that the model does not know, or
                is too long; its line is named.
            ConfigError: when a batch size is below 1.
        """
        texts, model, items = list_of_texts(texts, "texts"), self.engine, []
        for line, (text, ids) in enumerate(
            zip(texts, self.tokenizer.encode_batch(texts), strict=True), start=first_line
        ):
            if problem := caption_problem(self.tokenizer, text, ids):
                raise DataError(
                    problem, where=f"line {line}", remedy="Give words like those of the training"
                )
            item = frame(self.tokenizer, ids)
            check_length(self.spec.texts, item, f"line {line}")
            # Tokens like others to a model that was trained so: a mask would change its vectors.
            filling = (self.tokenizer.pad,) * ((self.spec.padded_length or 0) - len(item.ids))
            items.append(replace(item, ids=item.ids + filling))
        vectors = np.zeros((len(texts), self.spec.width), np.float32)
        batches = encode(
            model.texts,
            items,
            padding=self.tokenizer.pad,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
        )
        with self.computing():
            for batch in batches:
                found = checked(model.projected(batch.states, batch.positions))
                vectors[batch.numbers] = found.cpu().numpy()
        return vectors

    def embed_images(
        self,
        images: Sequence[Picture],
        *,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> Vectors:
        """Return a vector of length 1 for each image.

        Args:
            images: files or pixels.
            batch_size: images in a batch, instead of `batch_tokens`; it changes no result.
            batch_tokens: positions in a batch: images × patches.

        Returns:
            [images, D] float32.

        Raises:
            DataError: when a file is no image; it is named.
            ConfigError: when Pillow is needed, to read files or to resize, and not installed; or
                when a batch size is below 1.
        """
        model = self.engine
        weight = model.images.positions.weight

        def run(pixels: Tensor) -> Tensor:
            with self.computing():
                return checked(model.image_vectors(pixels.to(weight.device, weight.dtype)))

        batches = self._input.run(images, run, batch_size, batch_tokens)
        vectors = [found.cpu().numpy() for found in batches]
        return np.concatenate([np.zeros((0, self.spec.width), np.float32), *vectors])

    def classify(
        self,
        images: Sequence[Picture],
        labels: Sequence[str],
        *,
        template: str = TEMPLATE,
        top: int | None = None,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[list[Label]]:
        """Classify images by labels that training need not have had (zero-shot).

        Args:
            images: files or pixels.
            labels: labels, which become texts by the template; at least two.
            template: text with {} in the place of a label, such as "a picture of {}".
            top: number of labels for each image; all if unset.
            batch_size: images in a batch, instead of `batch_tokens`; it changes no result.
            batch_tokens: positions in a batch: images × patches.

        Returns:
            For each image its labels, that of the nearest text first. Probabilities are among
            these labels.

        Raises:
            DataError: when a label has no words or unknown characters, or a file is no image.
            ConfigError: when there are fewer than two labels, two that are equal, or the template
                has no place for them; or as `embed_images`.
        """
        labels = list_of_texts(labels, "labels")
        if len(set(labels)) < max(2, len(labels)):
            raise ConfigError(
                "At least two labels are needed, and all must differ",
                where=f"labels = {labels}",
                remedy="Give texts such as captions: --labels 'a cat' 'a dog'",
            )
        if "{}" not in template:
            raise ConfigError(
                "It has no {} in the place of a label", where=f"template = {template!r}"
            )
        texts = self.embed([template.replace("{}", label) for label in labels])
        vectors = self.embed_images(images, batch_size=batch_size, batch_tokens=batch_tokens)
        scale = self.engine.log_scale
        with self.computing():
            scores = self.engine.scores(
                torch.from_numpy(vectors).to(scale.device), torch.from_numpy(texts).to(scale.device)
            )
        return ranked(checked(scores), labels, top)

    @staticmethod
    def retrieve(
        queries: Vectors, among: Vectors, *, top: int = 5
    ) -> list[list[tuple[int, float]]]:
        """Find the nearest vectors, such as the images that fit a text.

        Args:
            queries: vectors [Q, D] of texts or images, from `embed` or `embed_images`.
            among: vectors [N, D] of what is searched.
            top: number of results for each query.

        Returns:
            For each query the numbers of the nearest, from 0, and their cosines, the nearest first.
        """
        cosines = queries @ among.T
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :top]
        return [
            list(zip(numbers.tolist(), row[numbers].tolist(), strict=True))
            for numbers, row in zip(order, cosines, strict=True)
        ]

    def read(self, files: Mapping[str, Any]) -> tuple[list[Picture], list[str]]:
        """Return the images of a corpus in the model's size, and the caption of each.

        Args:
            files: corpus of the task `contrast`, such as {"file": "pictures.jsonl"}.

        Raises:
            DataError: when an image or its caption cannot be read; its line is named.
        """
        images, captions = captioned_examples(
            files, self.spec.images.image_size, self.spec.images.channels
        )
        return [*images], captions

    def recall(
        self, images: Sequence[Picture], captions: Sequence[str], **options: int
    ) -> dict[str, float]:
        """Return the recall of captions for images and of images for captions; see `RANKS`.

        Args:
            images: files or pixels.
            captions: caption of each image; equal ones are one text to be found.
            **options: `batch_size` and `batch_tokens`.
        """
        known = {caption: number for number, caption in enumerate(dict.fromkeys(captions))}
        numbers: npt.NDArray[np.int64] = np.array([known[each] for each in captions], np.int64)
        vectors = self.embed_images(images, **options), self.embed(list(known), **options)
        return retrieval_recall(*vectors, numbers)
