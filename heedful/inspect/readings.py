"""Texts and images as inputs of a model: ids with their tokens, and the tensors of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.data.padding import pad
from heedful.errors import DataError, ModelError
from heedful.inspect.subject import Subject, inference
from heedful.pipelines.batching import plan_batches
from heedful.pipelines.encoder_input import MASK, check_length, frame
from heedful.pipelines.text_generation import generate
from heedful.pipelines.text_splitting import clean
from heedful.search.alignment import token_words
from heedful.search.dispatch import search as search_for
from heedful.search.search_settings import (
    GenerationSettings,
    SearchSettings,
    Specials,
    check_fits,
    longest_output,
)
from heedful.text.field_tokenizer import prompt_ids
from heedful.text.tokenizer import TextTokenizer

LONGEST = 4096
"""Maximum number of tokens of a text; a weight matrix of 4,096 tokens has 64 MiB for each head."""

BATCH_TOKENS = 4096
"""Positions per batch when a corpus goes through a model."""


@dataclass(frozen=True)
class StackTokens:
    """The tokens that are the input of a stack.

    Args:
        ids: token ids, special tokens included; indices of patches for an image.
        pieces: tokens as strings, for display.
        special: flags of special tokens.
    """

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    special: tuple[bool, ...]

    @classmethod
    def of(cls, tokenizer: TextTokenizer, ids: Sequence[int]) -> StackTokens:
        """Build the tokens of a sequence of ids."""
        # The mask token is not among them: measures of heads treat it like the word it stands for.
        special = {tokenizer.pad, tokenizer.bos, tokenizer.eos}
        special |= {*tokenizer.first, *tokenizer.last, *(tokenizer.between or ())}
        return cls(
            tuple(ids), tuple(tokenizer.pieces(ids)), tuple(int(id) in special for id in ids)
        )

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class ModelInput:
    """One input of a model.

    Args:
        text: source of a translator, text of another model, or two texts with a tab between.
        target: translation or continuation; None without.
        encoder: tokens of the encoder; None for a model without encoder.
        decoder: tokens of the decoder; a translator's begin with the BOS token.
        predicted: right prediction at each position of a translator's decoder: the target's
            tokens, then EOS.
        second: index of the first token of the second text in an encoder's pair of texts.
        image: [C, h, w] float32 image, for a model of images.
    """

    text: str = ""
    target: str | None = None
    encoder: StackTokens | None = None
    decoder: StackTokens | None = None
    predicted: StackTokens | None = None
    second: int | None = None
    image: np.ndarray | None = None

    @property
    def length(self) -> int:
        """Number of tokens of the longer sequence."""
        return max(len(side) for side in (self.encoder, self.decoder) if side is not None)

    @property
    def last_stack(self) -> str:
        """`decoder` for a model with a decoder, else `encoder`."""
        return "encoder" if self.decoder is None else "decoder"

    def tokens(self, stack: str) -> StackTokens:
        """Return the tokens of a stack that the model has."""
        side: StackTokens | None = getattr(self, stack)
        assert side is not None
        return side


def read(
    subject: Subject,
    text: str,
    target: str | None = None,
    *,
    search: SearchSettings | None = None,
) -> ModelInput:
    """Encode a text as an input of the model.

    Args:
        subject: the model.
        text: source of a translator, text of another model, or the first of a pair of texts.
        target: translation for a translator (its own if None), continuation for a language model,
            second text for an encoder.
        search: settings of the search for the model's own output. A translator searches like
            `translate`; a language model continues the text only if the settings are given.

    Raises:
        DataError: when the text is empty, or too long for one pass.
        ModelError: when the model takes no text, or no pairs of texts.
    """
    return read_all(subject, [text], None if target is None else [target], search=search)[0]


def read_all(
    subject: Subject,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    search: SearchSettings | None = None,
) -> list[ModelInput]:
    """Encode several texts; see `read`.

    Raises:
        DataError: when a text is empty or too long (its number is named), or the numbers of
            targets and texts differ.
    """
    if targets is not None and len(targets) != len(texts):
        raise DataError(f"{len(targets)} targets for {len(texts)} texts")
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise DataError("There is no text to look at", where=f"text {number}")
    # Evaluated for its error: a model of images has no tokenizer.
    assert subject.source
    if subject.model.spec.reads == "captions":
        raise ModelError(
            "This model reads captions beside noisy images, which this command does not show",
            remedy="Capture addresses such as `decoder.0.cross.weights` in a pass of the model",
        )
    if subject.model.spec.reads == "pairs":
        return _pairs(subject, texts, targets, search)
    # The rest are encoders, with one text or two texts in one sequence.
    if subject.model.spec.generates:
        return _continued_texts(subject, texts, targets, search)
    return _encoder_texts(subject, texts, targets)


def see(subject: Subject, image: np.ndarray) -> ModelInput:
    """Build the input of a model of images.

    Args:
        subject: a model of images.
        image: [C, h, w] image, normalised as in training.

    Raises:
        ModelError: when the model takes no images.
    """
    spec: Any = subject.model.spec
    if spec.reads != "images":
        raise ModelError("This model takes no images", remedy="Give it text, by `read`")
    side = spec.image_size // spec.patch_size
    names = [f"{row},{column}" for row in range(side) for column in range(side)]
    # 1 with a class token in front of the patches (ViT), 2 with a distillation token (DeiT).
    num_special = spec.num_states - len(names)
    pieces = (*("[CLS]", "[DIST]")[:num_special], *names)
    special = (True,) * num_special + (False,) * len(names)
    tokens = StackTokens(tuple(range(len(pieces))), pieces, special)
    # Images are no tokens; ids number the patches, so that rows and columns of a map can be named.
    return ModelInput(encoder=tokens, image=np.asarray(image, dtype=np.float32))


def tensors(subject: Subject, readings: Sequence[ModelInput]) -> tuple[Tensor, ...]:
    """Return the arguments of the model's `forward` for a batch, padded on the right."""
    first = readings[0]
    if first.image is not None:
        images = np.stack([r.image for r in readings if r.image is not None])
        return (torch.from_numpy(images).to(subject.device),)
    inputs: list[Tensor] = []
    # `pad` gives ids and positions [B, L], so a translator gets four tensors, others two.
    for name, tokenizer in (("encoder", subject.source), ("decoder", subject.target)):
        if getattr(first, name) is not None:
            inputs += pad([reading.tokens(name).ids for reading in readings], tokenizer.pad)
    spec: Any = subject.model.spec
    if (spec.embedding.num_segments or 1) > 1:
        # Segment ids of BERT: 0 for the first text, 1 from the second text on. Padding is −1 and
        # stays 0.
        second = [r.length if r.second is None else r.second for r in readings]
        inputs.append((inputs[1] >= torch.tensor(second)[:, None]).long())
    return tuple(tensor.to(subject.device) for tensor in inputs)


def stack_positions(readings: Sequence[ModelInput], inputs: Sequence[Tensor], stack: str) -> Tensor:
    """Return positions [B, L] int64 of a stack's tokens in the inputs of a pass; −1 is padding."""
    if readings[0].image is not None:
        count = torch.arange(readings[0].length, device=inputs[0].device)
        return count.expand(len(readings), -1)
    # Ids and positions alternate, and a translator's decoder comes after its encoder.
    return inputs[3 if len(inputs) > 3 and stack == "decoder" else 1]


def pair_words(subject: Subject, reading: ModelInput) -> list[tuple[list[str], list[int]]]:
    """Return the words of a source and of its target, each with the word of every token.

    The tokens are those between the special ones, which belong to no word.
    """
    assert reading.predicted is not None
    source = reading.tokens("encoder").ids
    source = source[len(subject.source.first) : len(source) - len(subject.source.last)]
    # Rows of cross-attention are predicted tokens, of which the last is EOS.
    target = reading.predicted.ids[:-1]
    return [
        token_words(subject.source, source, reading.text),
        token_words(subject.target, target, reading.target or ""),
    ]


def batches(readings: Sequence[ModelInput], batch_tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Return batches of indices of readings, grouped by similar length."""
    lengths = [reading.length for reading in readings]
    return plan_batches(lengths, width=1, batch_tokens=batch_tokens, batch_size=None)


def _pairs(
    subject: Subject,
    texts: Sequence[str],
    targets: Sequence[str] | None,
    search: SearchSettings | None,
) -> list[ModelInput]:
    source, target = subject.source, subject.target
    spec: Any = subject.model.spec
    lines = [_line(text, f"text {n}") for n, text in enumerate(texts, start=1)]
    source_ids = source.encode_batch(lines)
    for number, row in enumerate(source_ids, start=1):
        where = f"text {number}"
        _check_not_empty(row, where)
        _check_length(len(row), spec.max_length, where)
    if targets is None:
        # Ids of the search are kept, not encoded again from the text: a search may choose another
        # split into tokens.
        target_ids = _translate(subject, source_ids, search or SearchSettings())
        translations = [target.decode(row) for row in target_ids]
    else:
        translations = [_line(text, f"target {n}") for n, text in enumerate(targets, start=1)]
        target_ids = target.encode_batch(translations)
        for number, row in enumerate(target_ids, start=1):
            check_fits([spec], row, f"target {number}")
            _check_length(len(row), None, f"target {number}")
    return [
        ModelInput(
            text=line,
            target=translation,
            encoder=StackTokens.of(source, [*source.first, *before, *source.last]),
            # Teacher forcing: the decoder's input is its target shifted right by the BOS token.
            decoder=StackTokens.of(target, [target.bos, *after]),
            predicted=StackTokens.of(target, [*after, target.eos]),
        )
        for line, translation, before, after in zip(
            lines, translations, source_ids, target_ids, strict=True
        )
    ]


def _translate(
    subject: Subject, ids: Sequence[Sequence[int]], settings: SearchSettings
) -> list[list[int]]:
    """Return the ids of the best hypothesis for each source, the same that `translate` finds."""
    target, source = subject.target, subject.source
    model: Any = subject.model
    specials = Specials(pad=target.pad, bos=target.bos, eos=target.eos)
    best: dict[int, list[int]] = {}
    # Batches weigh a row by its beam, since every hypothesis is a row of the decoder.
    lengths = [len(row) + 1 for row in ids]
    plan = plan_batches(lengths, width=settings.beam, batch_tokens=BATCH_TOKENS, batch_size=None)
    for numbers in plan:
        framed = [[*source.first, *ids[n], *source.last] for n in numbers]
        rows, positions = pad(framed, source.pad)
        with inference(model), _autocast(subject):
            hypotheses = search_for(
                model,
                rows.to(subject.device),
                positions.to(subject.device),
                settings,
                specials=specials,
                names=numbers,
                longest=longest_output([model.spec], settings),
            )
        # Batches come in order of length; indices bring the results back into the order of the
        # texts.
        best |= {n: list(ranked[0].tokens) for n, ranked in zip(numbers, hypotheses, strict=True)}
    return [best[n] for n in range(len(ids))]


def _continued_texts(
    subject: Subject,
    texts: Sequence[str],
    targets: Sequence[str] | None,
    search: SearchSettings | None,
) -> list[ModelInput]:
    tokenizer = subject.source
    model: Any = subject.model
    # A learned table of positions bounds the sequence, even where the specification names no bound.
    bounds = (model.spec.max_length, model.spec.embedding.positions.max_length)
    longest = min((bound for bound in bounds if bound is not None), default=None)
    prompts = [prompt_ids(tokenizer, text) for text in texts]
    continuations: list[Sequence[int]] = [() for _ in texts]
    if targets is not None:
        continuations = list(tokenizer.encode_batch(targets))
    elif search is not None:
        settings = GenerationSettings.parse(search.plain())
        for number, row in enumerate(prompts, start=1):
            _check_length(len(row), longest, f"text {number}")
        with _autocast(subject):
            generated = generate(
                model, prompts, tokenizer, ends=(tokenizer.eos,), settings=settings
            )
        continuations = [each.tokens for each in generated]
    readings = []
    for number, (text, row, more) in enumerate(zip(texts, prompts, continuations, strict=True), 1):
        ids = [*row, *more]
        _check_length(len(ids), longest, f"text {number}")
        # An empty continuation is a result; None means that no continuation was requested.
        after = None if targets is None and search is None else tokenizer.decode(more)
        readings.append(ModelInput(text=text, target=after, decoder=StackTokens.of(tokenizer, ids)))
    return readings


def _encoder_texts(
    subject: Subject, texts: Sequence[str], seconds: Sequence[str] | None
) -> list[ModelInput]:
    tokenizer = subject.source
    spec: Any = subject.model.spec
    readings = []
    for number, text in enumerate(texts):
        second = None if seconds is None else seconds[number]
        ids = _encode(tokenizer, text)
        where = f"text {number + 1}"
        _check_not_empty(ids, where)
        item = frame(tokenizer, ids, None if second is None else _encode(tokenizer, second))
        check_length(spec, item, where)
        _check_length(len(item.ids), None, where)
        both = text if second is None else f"{text}\t{second}"
        tokens = StackTokens.of(tokenizer, item.ids)
        readings.append(ModelInput(text=both, encoder=tokens, second=item.second))
    return readings


def _encode(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Return the ids of a text; `[MASK]` becomes the mask token where the tokenizer has one."""
    if tokenizer.mask is None or MASK not in text:
        return tokenizer.encode(text)
    return tokenizer.encode_masked(text, MASK)


def _autocast(subject: Subject) -> AbstractContextManager[object]:
    return subject.precision.autocast() if subject.precision else nullcontext()


def _line(text: str, where: str) -> str:
    """Return a text cleaned like a line of a translator's input."""
    line = clean(text).strip()
    if "\n" in line:
        raise DataError("The text has several lines", where=where, remedy="Give one line at a time")
    return line


def _check_not_empty(ids: Sequence[int], where: str) -> None:
    if not ids:
        raise DataError("The model's tokenizer knows nothing of this text", where=where)


def _check_length(length: int, longest: int | None, where: str) -> None:
    bound = min(longest or LONGEST, LONGEST)
    if length > bound:
        raise DataError(
            f"{length} tokens are more than the {bound} that fit into one pass",
            where=where,
            remedy="Give a shorter text",
        )
