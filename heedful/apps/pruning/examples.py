"""Texts and images with reference answers, and the loss and accuracy of a model on them."""

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
from heedful.pipelines.encoder_input import check_length, frame, word_tokens

BATCH_TOKENS = 2048
"""Positions per batch; fewer than for attention, since logits [positions, V] must fit too."""

HIDDEN_SHARE = 0.15
"""Share of the tokens that are hidden from a masked language model (Devlin 2019)."""


@dataclass(frozen=True, eq=False)
class AnsweredInput:
    """An input with its reference answers.

    Args:
        reading: input of the model.
        targets: id of the right token or label for each state, `NO_TARGET` for states without an
            answer; a single id if the answer is about the whole input.
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
        losses: [N] float64 negative log-likelihoods of the examples' answers, in nats.
        right: [N] int64 numbers of answers that were the most probable prediction.
        counts: [N] int64 numbers of answers.
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
        """Share of the answers that are right; for text under teacher forcing."""
        return float(self.right.sum() / self.counts.sum())


def examples_of_text(
    subject: Subject, texts: Sequence[str], targets: Sequence[str] | None = None
) -> list[AnsweredInput]:
    """Make examples of the task that a model was trained on.

    A translator predicts the targets, a language model each next token, a masked language model
    the hidden tokens, which are the same in every call.

    Args:
        subject: the model.
        texts: sources of a translator, or texts.
        targets: translations for a translator, labels for a classifier.

    Raises:
        DataError: when a text is empty, too long, or has an unknown label (the error names it), or
            when a translator or a classifier gets no targets.
        ModelError: when the model has no head that predicts tokens or labels.
    """
    spec = subject.model.spec
    # Called for its error: a model of images has no tokenizer.
    assert subject.source
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
    # The last state of a language model predicts a token that the text does not have.
    return [AnsweredInput(r, (*r.tokens("decoder").ids[1:], NO_TARGET)) for r in readings]


def examples_of_tags(subject: Subject, sentences: Sequence[TaggedSentence]) -> list[AnsweredInput]:
    """Make examples of a tagger: the tag of each word is predicted at its first token.

    Args:
        subject: a tagger.
        sentences: words with their reference tags.

    Raises:
        DataError: when a sentence is too long or has an unknown tag; it is named.
        ModelError: when the model is not a tagger.
    """
    spec: Any = subject.model.spec
    if spec.predicts != "token_label":
        raise ModelError("This model tags no words", remedy="Give a tagger")
    tokenizer = subject.source
    examples = []
    for number, sentence in enumerate(sentences, start=1):
        ids, places = word_tokens(tokenizer, sentence.words)
        item = frame(tokenizer, ids)
        check_length(spec, item, f"sentence {number}")
        targets = [NO_TARGET] * len(item.ids)
        for place, tag in zip(places, sentence.tags, strict=True):
            # A word of characters that the tokenizer drops has no token, so it cannot be tagged.
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
        images: images [C, h, w], normalised as in training.
        labels: class names of the images.

    Raises:
        ModelError: when the model takes no images or has no classes.
        DataError: when an image has an unknown label; its number is named.
    """
    readings = [see(subject, image) for image in images]
    return _labelled(readings, labels, subject.model.spec.class_names)


def answer(
    subject: Subject,
    examples: Sequence[AnsweredInput],
    *,
    batch_tokens: int = BATCH_TOKENS,
) -> Answers:
    """Compute the losses and the numbers of right answers of a model.

    Args:
        subject: the model.
        examples: examples of the corpus.
        batch_tokens: positions per batch; changes no result.

    Raises:
        DataError: when there is no right answer in the examples.
    """
    losses, right = np.zeros(len(examples)), np.zeros(len(examples), np.int64)

    def count(numbers: Sequence[int], loss: Tensor, hits: Tensor) -> None:
        # Batches come in order of length; the indices restore the order of the examples, which
        # paired tests rely on.
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
        subject: the model; it is in evaluation mode during the call.
        examples: examples of the corpus.
        after: function called after each batch with the indices of its examples, their losses [B]
            and their numbers of right answers [B].
        before: function called before each batch with its size.
        batch_tokens: positions per batch.

    Raises:
        DataError: when there is no right answer in the examples.
    """
    if not any(example.num_answers for example in examples):
        raise DataError("No example has an answer to judge", remedy="Give texts with their targets")
    # Gradients are left to the caller: head importance needs them, the loss alone does not.
    with evaluating(subject.model):
        for numbers in batches([example.reading for example in examples], batch_tokens):
            batch = [examples[number] for number in numbers]
            before(len(batch))
            after(numbers, *_losses(subject, batch))


def _losses(subject: Subject, examples: Sequence[AnsweredInput]) -> tuple[Tensor, Tensor]:
    """Return the losses [B] and the numbers of right answers [B]."""
    readings = [example.reading for example in examples]
    inputs = tensors(subject, readings)
    positions = stack_positions(readings, inputs, readings[0].last_stack)
    states = subject.model(*inputs)
    rows = [torch.tensor(example.targets) for example in examples]
    padded = pad_sequence(rows, batch_first=True, padding_value=NO_TARGET).to(subject.device)
    chosen = padded != NO_TARGET
    targets = padded[chosen]
    # Logits [N, V] of the N rows with an answer; logits of other rows are not computed.
    scores = subject.model.predict(states, positions, chosen)
    losses = F.cross_entropy(scores.float(), targets, reduction="none")
    hits = scores.argmax(-1) == targets
    example = chosen.nonzero()[:, 0]  # [N], the row of the batch that each answer belongs to
    zeros = losses.new_zeros(len(examples))
    right = torch.zeros(len(examples), dtype=torch.int64, device=subject.device)
    # Losses of all answers are summed per example, because the bootstrap resamples examples.
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
        # Only the text's own tokens can be hidden, not [CLS] and [SEP] around them.
        inner = slice(before, len(ids) - after)
        # Seeded by the example's index: two models, or two ablations of one, get the same masks.
        masked, chosen = masking(ids[inner], seed=0, epoch=0, start=number)
        targets = np.full(len(ids), NO_TARGET)
        # Chosen tokens are targets even where masking replaced them by a random token or left them.
        targets[inner] = np.where(chosen, ids[inner], NO_TARGET)
        ids[inner] = masked
        tokens = StackTokens.of(tokenizer, ids.tolist())
        examples.append(
            AnsweredInput(ModelInput(reading.text, encoder=tokens), tuple(targets.tolist()))
        )
    return examples
