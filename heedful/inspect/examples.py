"""Texts and images with right answers, and how well a model finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.data.masking import Masking
from heedful.data.tagged import TaggedSentence
from heedful.data.windows import NO_TARGET
from heedful.decode.encoder_input import check_length, frame
from heedful.decode.long_texts import word_pieces
from heedful.errors import DataError, ModelError, suggest
from heedful.inspect.reading import Reading, Tokens, batches, read_all, see, tensors
from heedful.inspect.subject import Subject
from heedful.models.causal_lm import CausalLM
from heedful.models.encoder import EncoderModel
from heedful.models.translator import Translator
from heedful.models.vision import VisionModel

BATCH_TOKENS = 2048
"""Positions that go through a model together; their scores of a whole vocabulary must fit too."""

HIDDEN_SHARE = 0.15
"""Of the tokens, that a masked language model has to guess (Devlin 2019)."""

_HEADS = ("sequence", "token", "masked_lm")


@dataclass(frozen=True, eq=False)
class Example:
    """What a model reads, and the right answers.

    Args:
        reading: what it reads.
        wanted: the number of the right piece or label at each row of the states that the answers
            are read off, `NO_TARGET` where nothing is asked; one number where the answer is about
            the whole.
    """

    reading: Reading
    wanted: tuple[int, ...]

    @property
    def asked(self) -> int:
        """How many answers it asks for."""
        return sum(number != NO_TARGET for number in self.wanted)


@dataclass(frozen=True, eq=False)
class Answers:
    """How a model did on examples.

    Args:
        losses: [N] float64, the negative natural-log probability of each example's right answers.
        right: [N] int64, how many answers were the most probable ones.
        asked: [N] int64, how many there are.
    """

    losses: np.ndarray
    right: np.ndarray
    asked: np.ndarray

    @property
    def loss(self) -> float:
        """Per answer (per token, for text), in nats."""
        return float(self.losses.sum() / self.asked.sum())

    @property
    def accuracy(self) -> float:
        """Share of the answers that are right; of text, given all the right ones before."""
        return float(self.right.sum() / self.asked.sum())


def examples_of_text(
    subject: Subject, texts: Sequence[str], targets: Sequence[str] | None = None
) -> list[Example]:
    """Examples of what a model of text is to predict.

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
    model = subject.model
    head = _head(model) if isinstance(model, EncoderModel) else ""
    if targets is None and (isinstance(model, Translator) or head == "sequence"):
        raise DataError("The right answers are missing", remedy="Give each text its target")
    if head == "sequence":
        assert targets is not None and isinstance(model, EncoderModel)
        names = _labels(model, head)
        readings = read_all(subject, texts)
        wanted = [(_number(label, names, n),) for n, label in enumerate(targets, start=1)]
        return _examples(readings, wanted)
    if head == "token":
        raise ModelError("A tagger needs words with tags", remedy="Use `examples_of_tags`")
    readings = read_all(subject, texts, targets)
    if head == "masked_lm":
        return _hidden(subject, readings)
    sides = [reading.predicted or reading.decoder for reading in readings]
    assert all(sides)
    if isinstance(model, Translator):
        return _examples(readings, [side.ids for side in sides if side is not None])
    return _examples(readings, [(*side.ids[1:], NO_TARGET) for side in sides if side is not None])


def examples_of_tags(subject: Subject, sentences: Sequence[TaggedSentence]) -> list[Example]:
    """Examples of a tagger: the tag of each word, at its first piece.

    Args:
        subject: a tagger.
        sentences: words and their right tags.

    Raises:
        DataError: naming a sentence that is too long or has an unknown tag.
        ModelError: when the model is no tagger.
    """
    model = subject.model
    if not isinstance(model, EncoderModel) or _head(model) != "token":
        raise ModelError("This model tags no words", remedy="Give a tagger")
    names = _labels(model, "token")
    tokenizer = subject.source
    found = []
    for number, sentence in enumerate(sentences, start=1):
        ids, places = word_pieces(tokenizer, sentence.words)
        item = frame(tokenizer, ids)
        check_length(model.spec, item, f"sentence {number}")
        wanted = [NO_TARGET] * len(item.ids)
        for place, tag in zip(places, sentence.tags, strict=True):
            if place is not None:
                wanted[item.first + place] = _number(tag, names, number)
        reading = Reading(" ".join(sentence.words), encoder=Tokens.of(tokenizer, item.ids))
        found.append(Example(reading, tuple(wanted)))
    return found


def examples_of_images(
    subject: Subject, images: Sequence[np.ndarray], labels: Sequence[str]
) -> list[Example]:
    """Examples of a classifier of images.

    Args:
        subject: the model.
        images: [C, h, w] each, scaled as the model was trained.
        labels: of each.

    Raises:
        ModelError: when the model takes no images or has no classes.
        DataError: naming an image with an unknown label.
    """
    model = subject.model
    readings = [see(subject, image) for image in images]
    assert isinstance(model, VisionModel)
    names = model.spec.class_names
    wanted = [(_number(label, names, n),) for n, label in enumerate(labels, start=1)]
    return _examples(readings, wanted)


def answer(
    subject: Subject,
    examples: Sequence[Example],
    *,
    batch_tokens: int = BATCH_TOKENS,
) -> Answers:
    """How well a model finds the right answers.

    Args:
        subject: the model.
        examples: what it is asked.
        batch_tokens: positions that go through the model together; changes no result.

    Raises:
        DataError: when nothing is asked.
    """
    losses, right = np.zeros(len(examples)), np.zeros(len(examples), np.int64)

    def count(numbers: Sequence[int], loss: Tensor, hits: Tensor) -> None:
        losses[numbers] = loss.double().cpu().numpy()
        right[numbers] = hits.cpu().numpy()

    with torch.inference_mode():
        for_each_batch(subject, examples, count, batch_tokens=batch_tokens)
    return Answers(losses, right, np.array([each.asked for each in examples], np.int64))


def for_each_batch(
    subject: Subject,
    examples: Sequence[Example],
    found: Callable[[Sequence[int], Tensor, Tensor], None],
    *,
    before: Callable[[int], Any] = lambda size: None,
    batch_tokens: int = BATCH_TOKENS,
) -> None:
    """Ask a model, batch by batch.

    Args:
        subject: the model; in evaluation mode meanwhile.
        examples: what it is asked.
        found: is given which examples were asked, their losses [B] and how many answers of each
            are right [B].
        before: is told the size of each batch.
        batch_tokens: positions that go through the model together.

    Raises:
        DataError: when nothing is asked.
    """
    if not any(example.asked for example in examples):
        raise DataError("There is nothing to ask the model", remedy="Give it texts with answers")
    training = subject.model.training
    subject.model.eval()
    try:
        for numbers in batches([example.reading for example in examples], batch_tokens):
            chosen = [examples[number] for number in numbers]
            before(len(chosen))
            found(numbers, *_asked(subject, chosen))
    finally:
        subject.model.train(training)


def _asked(subject: Subject, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Losses [B] and right answers [B]."""
    model = subject.model
    inputs = tensors(subject, [example.reading for example in examples])
    states = model(*inputs)
    longest = max(len(example.wanted) for example in examples)
    rows = [[*e.wanted, *[NO_TARGET] * (longest - len(e.wanted))] for e in examples]
    wanted = torch.tensor(rows, device=subject.device)
    asked = wanted != NO_TARGET
    scores = _scores(model, states, inputs, asked)
    losses = F.cross_entropy(scores.float(), wanted[asked], reduction="none")
    hits = scores.argmax(-1) == wanted[asked]
    of = asked.nonzero()[:, 0]
    zeros = losses.new_zeros(len(examples))
    right = torch.zeros(len(examples), dtype=torch.int64, device=subject.device)
    return zeros.index_add(0, of, losses), right.index_add(0, of, hits.long())


def _scores(model: Any, states: Tensor, inputs: Sequence[Tensor], asked: Tensor) -> Tensor:
    """[answers, classes]; only rows that are asked about are scored."""
    if isinstance(model, Translator | CausalLM):
        return model.logits(states[asked])
    if isinstance(model, VisionModel):
        return model.class_logits(states)
    assert isinstance(model, EncoderModel)
    head = _head(model)
    if head == "sequence":
        return model.sequence_logits(states, inputs[1])
    each = {"token": model.token_logits, "masked_lm": model.masked_lm_logits}
    return each[head](states[asked])


def _head(model: EncoderModel) -> str:
    """The head whose answers are looked at."""
    found = next((head for head in _HEADS if head in model.heads), None)
    if found is None:
        raise ModelError(
            "The model has no head whose answers can be judged",
            remedy="Give a classifier, a tagger or a masked language model",
        )
    return found


def _labels(model: EncoderModel, head: str) -> tuple[str, ...]:
    (found,) = (spec.labels for spec in model.spec.heads if spec.kind == head)  # type: ignore[union-attr]
    return found


def _number(label: str, names: Sequence[str], number: int) -> int:
    if label not in names:
        raise DataError(
            f"The model knows no label {label!r}",
            where=f"example {number}",
            remedy=suggest(label, names),
        )
    return names.index(label)


def _hidden(subject: Subject, readings: Sequence[Reading]) -> list[Example]:
    tokenizer = subject.source
    if tokenizer.mask is None:
        raise ModelError(
            "The model's tokenizer has no mask token, so nothing can be hidden from it",
            remedy="Give a model that was trained with one",
        )
    masking = Masking(tokenizer, HIDDEN_SHARE, whole_words=False)
    before, after = len(tokenizer.first), len(tokenizer.last)
    found = []
    for number, reading in enumerate(readings):
        assert reading.encoder is not None
        ids = np.array(reading.encoder.ids, np.int64)
        inner = slice(before, len(ids) - after)
        shown, chosen = masking(ids[inner], seed=0, epoch=0, start=number)
        wanted = np.full(len(ids), NO_TARGET)
        wanted[inner] = np.where(chosen, ids[inner], NO_TARGET)
        ids[inner] = shown
        tokens = Tokens.of(tokenizer, ids.tolist())
        found.append(Example(Reading(reading.text, encoder=tokens), tuple(wanted.tolist())))
    return found


def _examples(readings: Sequence[Reading], wanted: Sequence[tuple[int, ...]]) -> list[Example]:
    return [Example(reading, each) for reading, each in zip(readings, wanted, strict=True)]
