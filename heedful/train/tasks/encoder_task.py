"""Shared parts of tasks on text: encoding files, cutting rows, and encoders with one head."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

from torch import nn

from heedful.data.batch_plan import Indices, plan_files, plan_once
from heedful.data.encoded_texts import (
    EncodedTexts,
    FramedRows,
    TextReader,
    TokenRows,
    cut_texts,
    encode_texts,
)
from heedful.data.text_corpus import DocumentReader, document_reader
from heedful.models.encoder_spec import HeadSpec
from heedful.models.shape_to_spec import encoder_spec
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.batch_source import Batch, EpochBatches, FixedBatches
from heedful.train.objective import LabelObjective, Objective, Scorer
from heedful.train.task import Setup, Task, plural
from heedful.train.validation import Measure


def encoder_tokenizers(setup: Setup, texts: list[str]) -> TokenizerPair:
    """Train an encoder's tokenizer, mask token included, and return it twice."""
    spec = setup.settings.tokenizer
    # One place is left for the mask token, so that the size is the one of the settings.
    smaller = spec.model_copy(update={"vocabulary_size": spec.vocabulary_size - 1})
    tokenizer = train_tokenizer(smaller, texts, setup.events.warn).for_encoder()
    return TokenizerPair(tokenizer, tokenizer)


def new_encoder(setup: Setup, tokenizers: TokenizerPair, head: HeadSpec) -> Callable[[], nn.Module]:
    """Return a function that builds the encoder with its initial weights."""
    settings = setup.settings

    def new_model() -> nn.Module:
        size, length = tokenizers.source.size, settings.data.max_length
        return setup.new_model(encoder_spec(settings.model, size, length, (head,)), tokenizers)

    return new_model


def framed_task(
    setup: Setup,
    tokenizers: TokenizerPair,
    head: HeadSpec,
    scorer: Scorer,
    training: FramedRows,
    valid: FramedRows | None,
    measure: Measure | None,
) -> Task:
    """Make the task of an encoder with one head, trained on rows in memory.

    Args:
        setup: setup of the task.
        tokenizers: pair of the same tokenizer twice.
        head: prediction head.
        scorer: function that runs the model; returns scores for `FramedBatch.targets`.
        training: training rows.
        valid: rows for the validation loss, or None.
        measure: metrics of the validation examples, or None.
    """
    settings, data = setup.settings, setup.settings.data
    weights = [corpus.weight for corpus in data.train]
    # The head's labels and the weights of files also decide what an update computes.
    content = f"{tokenizers.fingerprint} {training.fingerprint} {weights} {head.plain()}"

    def plan(epoch: int) -> list[Indices]:
        bounds = training.starts.tolist()
        return plan_files(training.lengths, bounds, data, seed=settings.seed, epoch=epoch)

    return Task(
        tokenizers,
        hashlib.sha256(content.encode()).hexdigest(),
        EpochBatches(plan, lambda indices, _: training.batch(indices), training.where.__getitem__),
        new_encoder(setup, tokenizers, head),
        LabelObjective(scorer, settings.objective.label_smoothing),
        None if valid is None else FixedBatches(plan_once(valid.lengths, data), valid.batch),
        measure,
    )


MakeRows = Callable[[EncodedTexts, TokenRows, int, int], "Batch"]
"""Function from texts, rows, seed of the run and epoch to a batch."""


def document_readers(setup: Setup, role: Literal["train", "valid"]) -> list[DocumentReader]:
    """Open the training or validation files of texts."""
    data = setup.settings.data
    return [document_reader(corpus, data.documents) for corpus in getattr(data, role)]


def all_texts(setup: Setup, readers: Sequence[TextReader]) -> list[str]:
    """Return the texts of files, to train a tokenizer on."""
    without = setup.long_words.without
    return [
        without(document.text, f"{reader.path}:{document.line}")
        for reader in readers
        for document in reader
    ]


def encode_valid(setup: Setup, tokenizer: TextTokenizer) -> EncodedTexts | None:
    """Encode the validation texts, where the settings name some."""
    valid = document_readers(setup, "valid")
    return encode_and_note(setup, "validation", valid, tokenizer) if valid else None


def encode_and_note(
    setup: Setup,
    name: str,
    readers: Sequence[TextReader],
    tokenizer: TextTokenizer,
    noun: str = "text",
) -> EncodedTexts:
    """Encode texts and report their number.

    Args:
        setup: setup of the task.
        name: name of the texts in the message.
        readers: readers of the files.
        tokenizer: tokenizer of the run.
        noun: noun for one of them in the message.
    """
    texts = encode_texts(readers, tokenizer, setup.cache, notice=setup.events.warn)
    # A tokenizer of another language or script shows first in this share.
    unknown = sum(int((ids == tokenizer.unk).sum()) for ids in texts.ids) / len(texts)
    share = "" if tokenizer.unk == tokenizer.pad else f", {unknown:.2%} of them unknown"
    setup.events.note(f"{name}: {plural(texts.texts, noun)}, {len(texts):,} tokens{share}")
    return texts


def weighted_fingerprint(setup: Setup, texts: EncodedTexts) -> str:
    """Hash the training texts, the tokenizer and the weights of the files."""
    weights = " ".join(str(corpus.weight) for corpus in setup.settings.data.train)
    return hashlib.sha256(f"{texts.fingerprint} {weights}".encode()).hexdigest()


def row_task(
    setup: Setup,
    tokenizers: TokenizerPair,
    readers: Sequence[TextReader],
    sizes: Callable[[TokenRows], Indices],
    make: MakeRows,
    new_model: Callable[[], nn.Module],
    objective: Objective,
) -> Task:
    """Make a task on rows of tokens; long training texts are cut at other tokens in each epoch.

    Args:
        setup: setup with row length, token budget, seed and weights of the files.
        tokenizers: pair of the same tokenizer twice.
        readers: readers of the training files.
        sizes: function from rows to the number of tokens [N] that each takes in a batch.
        make: maker of batches.
        new_model: maker of the model with its initial weights.
        objective: loss of the task.
    """
    data, seed, tokenizer = setup.settings.data, setup.settings.seed, tokenizers.source
    texts = encode_and_note(setup, "training", readers, tokenizer)

    def plan(epoch: int) -> list[TokenRows]:
        rows = cut_texts(texts, tokenizer, data.max_length, seed=seed, epoch=epoch)
        batches = plan_files(sizes(rows), rows.bounds(texts), data, seed=seed, epoch=epoch)
        # Rows of this epoch only: a batch is made from its own rows, whatever was planned later.
        return [rows.take(indices) for indices in batches]

    source = EpochBatches(plan, lambda rows, epoch: make(texts, rows, seed, epoch), texts.line_of)
    valid, validation = encode_valid(setup, tokenizer), None
    if valid is not None:
        # The seed is fixed: all runs are validated on the same masked rows, so that their losses
        # are comparable.
        rows = cut_texts(valid, tokenizer, data.max_length, seed=0, epoch=0)
        fixed = [rows.take(indices) for indices in plan_once(sizes(rows), data)]
        validation = FixedBatches(fixed, lambda rows: make(valid, rows, 0, 0))
    fingerprint = weighted_fingerprint(setup, texts)
    return Task(tokenizers, fingerprint, source, new_model, objective, validation)
