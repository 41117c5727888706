"""Texts and images with right answers, and the loss and accuracy of a model on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heedful.data.batches import NO_TARGET
from heedful.data.corruption import Masking
from heedful.data.text_corpus import TaggedSentence
from heedful.errors import DataError, ModelError, suggest
from heedful.inspect.readings import (
    ModelInput,
    StackTokens,
    batches,
    read_all,
    see,
    stack_positions,
    tensors,
)
from heedful.inspect.subject import Subject, evaluating
from heedful.pipelines.encoder_input import check_length, frame, word_pieces

BATCH_TOKENS = 2048
"""Positions that go through a model together; their scores of a whole vocabulary must fit too."""

HIDDEN_SHARE = 0.15
"""Share of the tokens that a masked language model has to guess (Devlin 2019)."""


@dataclass(frozen=True, eq=False)
class AnsweredInput:
    """An input with its right answers.

    Args:
        reading: the input.
        targets: the right piece or label at each row of the model's states, `NO_TARGET` where there
            is none; one number where the answer is about the whole.
    """

    reading: ModelInput
    targets: tuple[int, ...]

    @property
    def num_answers(self) -> int:
        """Number of answers."""
        return sum(number != NO_TARGET for number in self.targets)


@dataclass(frozen=True, eq=False)
class Answers:
    """Losses and right answers of a model on examples.

    Args:
        losses: [N] float64, the negative natural-log probability of each example's right answers.
        right: [N] int64, how many answers were the most probable ones.
        counts: [N] int64, how many answers there are.
    """

    losses: np.ndarray
    right: np.ndarray
    counts: np.ndarray

    @property
    def loss(self) -> float:
        """Loss per answer (per token, for text), in nats."""
        return float(self.losses.sum() / self.counts.sum())

    @property
    def accuracy(self) -> float:
        """Share of the answers that are right; of text, given all the right ones before."""
        return float(self.right.sum() / self.counts.sum())


def examples_of_text(
    subject: Subject, texts: Sequence[str], targets: Sequence[str] | None = None
) -> list[AnsweredInput]:
    """Make examples of a model's own task.

    A translator predicts the targets, a language model each next token, a masked language model
    tokens that are hidden from it: always the same ones.

    Args:
        subject: the model.
        texts: sources, or texts.
        targets: a translator's, or the labels of a classifier.

    Raises:
        DataError: naming the text that is missing, too long, or has an unknown label; or when a
            translator or a classifier has no targets.
        ModelError: when the model predicts nothing of text.
    """
    spec = subject.model.spec
    assert subject.source  # a model of images has none, and says so
    if spec.predicts is None:
        raise ModelError(
            "The model has no head whose answers can be judged",
            remedy="Give a classifier, a tagger or a masked language model",
        )
    if targets is None and (spec.reads == "pairs" or spec.predicts == "label"):
        raise DataError("The right answers are missing", remedy="Give each text its target")
    if spec.predicts == "token_label":
        raise ModelError("A tagger needs words with tags", remedy="Use `examples_of_tags`")
    if spec.predicts == "label":
        assert targets is not None
        return _labelled(read_all(subject, texts), targets, spec.class_names)
    readings = read_all(subject, texts, targets)
    if spec.predicts == "masked_token":
        return _masked(subject, readings)
    if spec.reads == "pairs":
        return [AnsweredInput(r, r.predicted.ids) for r in readings if r.predicted is not None]
    return [AnsweredInput(r, (*r.tokens("decoder").ids[1:], NO_TARGET)) for r in readings]


def examples_of_tags(subject: Subject, sentences: Sequence[TaggedSentence]) -> list[AnsweredInput]:
    """Make examples of a tagger: the tag of each word, at its first piece.

    Args:
        subject: a tagger.
        sentences: words and their right tags.

    Raises:
        DataError: naming a sentence that is too long or has an unknown tag.
        ModelError: when the model is no tagger.
    """
    spec: Any = subject.model.spec
    if spec.predicts != "token_label":
        raise ModelError("This model tags no words", remedy="Give a tagger")
    tokenizer = subject.source
    examples = []
    for number, sentence in enumerate(sentences, start=1):
        ids, places = word_pieces(tokenizer, sentence.words)
        item = frame(tokenizer, ids)
        check_length(spec, item, f"sentence {number}")
        targets = [NO_TARGET] * len(item.ids)
        for place, tag in zip(places, sentence.tags, strict=True):
            if place is not None:
                targets[item.first + place] = _number(tag, spec.class_names, number)
        reading = ModelInput(" ".join(sentence.words), encoder=StackTokens.of(tokenizer, item.ids))
        examples.append(AnsweredInput(reading, tuple(targets)))
    return examples


def examples_of_images(
    subject: Subject, images: Sequence[np.ndarray], labels: Sequence[str]
) -> list[AnsweredInput]:
    """Make examples of a classifier of images.

    Args:
        subject: the model.
        images: [C, h, w] each, scaled as in training.
        labels: of each.

    Raises:
        ModelError: when the model takes no images or has no classes.
        DataError: naming an image with an unknown label.
    """
    readings = [see(subject, image) for image in images]
    return _labelled(readings, labels, subject.model.spec.class_names)


def answer(
    subject: Subject,
    examples: Sequence[AnsweredInput],
    *,
    batch_tokens: int = BATCH_TOKENS,
) -> Answers:
    """Compute the losses and right answers of a model.

    Args:
        subject: the model.
        examples: the corpus.
        batch_tokens: positions that go through the model together; changes no result.

    Raises:
        DataError: when there is no right answer in the examples.
    """
    losses, right = np.zeros(len(examples)), np.zeros(len(examples), np.int64)

    def count(numbers: Sequence[int], loss: Tensor, hits: Tensor) -> None:
        losses[numbers] = loss.double().cpu().numpy()
        right[numbers] = hits.cpu().numpy()

    with torch.inference_mode():
        for_each_batch(subject, examples, count, batch_tokens=batch_tokens)
    return Answers(losses, right, np.array([each.num_answers for each in examples], np.int64))


def for_each_batch(
    subject: Subject,
    examples: Sequence[AnsweredInput],
    after: Callable[[Sequence[int], Tensor, Tensor], None],
    *,
    before: Callable[[int], Any] = lambda size: None,
    batch_tokens: int = BATCH_TOKENS,
) -> None:
    """Run a model over examples, batch by batch.

    Args:
        subject: the model; in evaluation mode meanwhile.
        examples: the corpus.
        after: called with the numbers of a batch's examples, their losses [B] and how many answers
            of each are right [B].
        before: called with the size of each batch.
        batch_tokens: positions that go through the model together.

    Raises:
        DataError: when there is no right answer in the examples.
    """
    if not any(example.num_answers for example in examples):
        raise DataError("No example has an answer to judge", remedy="Give texts with their targets")
    with evaluating(subject.model):
        for numbers in batches([example.reading for example in examples], batch_tokens):
            batch = [examples[number] for number in numbers]
            before(len(batch))
            after(numbers, *_losses(subject, batch))


def _losses(subject: Subject, examples: Sequence[AnsweredInput]) -> tuple[Tensor, Tensor]:
    """Losses [B] and numbers of right answers [B]."""
    readings = [example.reading for example in examples]
    inputs = tensors(subject, readings)
    positions = stack_positions(readings, inputs, readings[0].last_stack)
    states = subject.model(*inputs)
    rows = [torch.tensor(example.targets) for example in examples]
    padded = pad_sequence(rows, batch_first=True, padding_value=NO_TARGET).to(subject.device)
    chosen = padded != NO_TARGET
    targets = padded[chosen]
    scores = subject.model.predict(states, positions, chosen)
    losses = F.cross_entropy(scores.float(), targets, reduction="none")
    hits = scores.argmax(-1) == targets
    example = chosen.nonzero()[:, 0]
    zeros = losses.new_zeros(len(examples))
    right = torch.zeros(len(examples), dtype=torch.int64, device=subject.device)
    return zeros.index_add(0, example, losses), right.index_add(0, example, hits.long())


def _labelled(
    readings: Sequence[ModelInput], labels: Sequence[str], names: Sequence[str]
) -> list[AnsweredInput]:
    numbers = [(_number(label, names, n),) for n, label in enumerate(labels, start=1)]
    return [
        AnsweredInput(reading, number) for reading, number in zip(readings, numbers, strict=True)
    ]


def _number(label: str, names: Sequence[str], number: int) -> int:
    if label not in names:
        raise DataError(
            f"The model knows no label {label!r}",
            where=f"example {number}",
            remedy=suggest(label, names),
        )
    return names.index(label)


def _masked(subject: Subject, readings: Sequence[ModelInput]) -> list[AnsweredInput]:
    tokenizer = subject.source
    if tokenizer.mask is None:
        raise ModelError(
            "The model's tokenizer has no mask token, so nothing can be hidden from it",
            remedy="Give a model that was trained with one",
        )
    masking = Masking(tokenizer, HIDDEN_SHARE, whole_words=False)
    before, after = len(tokenizer.first), len(tokenizer.last)
    examples = []
    for number, reading in enumerate(readings):
        ids = np.array(reading.tokens("encoder").ids, np.int64)
        inner = slice(before, len(ids) - after)
        masked, chosen = masking(ids[inner], seed=0, epoch=0, start=number)
        targets = np.full(len(ids), NO_TARGET)
        targets[inner] = np.where(chosen, ids[inner], NO_TARGET)
        ids[inner] = masked
        tokens = StackTokens.of(tokenizer, ids.tolist())
        examples.append(
            AnsweredInput(ModelInput(reading.text, encoder=tokens), tuple(targets.tolist()))
        )
    return examples
