"""Causal language modelling: a model that predicts the next token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from heedful.data.batch_plan import Indices, shuffle
from heedful.data.chat_corpus import ChatReader, has_conversations
from heedful.data.encoded_texts import (
    EncodedTexts,
    epoch_windows,
    make_windows,
    whole_windows,
    window_starts,
)
from heedful.data.text_corpus import DocumentReader
from heedful.data.text_file import TextFile
from heedful.data.text_streams import Streams, StreamSegment, make_segments
from heedful.errors import ConfigError, DataError
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.chat_template import REMEDY, ChatTemplate
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.batch_source import EpochBatches, FixedBatches, Source
from heedful.train.objective import CausalLMObjective, Objective, SegmentObjective
from heedful.train.task import Setup, Task
from heedful.train.tasks.encoder_task import (
    all_texts,
    document_readers,
    encode_and_note,
)
from heedful.train.tasks.streamed_corpora import (
    sampled_texts,
    stream_fingerprint,
    streamed_texts,
    text_stream,
)
from heedful.train.training_memory import likely_spec
from heedful.train.warm_start import initial_text_model


def prepare(setup: Setup) -> Task:
    """Read, check and encode texts.

    Raises:
        DataError: when the texts are unusable.
    """
    settings, data = setup.settings, setup.settings.data
    # The memory is that of the probable spec, as the data is arranged before the model exists.
    has_memory = getattr(likely_spec(settings), "memory", None) is not None
    stream = text_stream(setup, has_memory=has_memory) if data.is_streamed else None
    template = chat_template(setup)
    training = [] if stream is not None else text_readers(setup, "train", template)

    def train_new() -> TokenizerPair:
        read = all_texts(setup, training) if stream is None else sampled_texts(setup, stream)
        tokenizer = train_tokenizer(settings.tokenizer, read, setup.events.warn)
        return TokenizerPair(tokenizer, tokenizer)

    tokenizers = setup.tokenizers(train_new)
    chats = bool(training) and isinstance(training[0], ChatReader)
    if chats:
        _check_chats(has_memory=has_memory)
        tokenizers = replace(tokenizers, chat=template.source)
    elif data.chat_template is not None:
        raise ConfigError(
            "The files are texts, which need no chat template",
            where="data.chat_template",
            remedy="Leave it out, or give lines of JSON with messages",
        )
    length = data.max_length

    def new_model() -> nn.Module:
        spec = causal_lm_spec(settings.model, tokenizers.source.size, length)
        return setup.new_model(spec, tokenizers)

    # All windows have `data.max_length` tokens, so the token budget is a number of rows.
    rows = data.budget // length
    smoothing = settings.objective.label_smoothing
    objective: Objective = (SegmentObjective if has_memory else CausalLMObjective)(smoothing)
    if stream is not None:
        fingerprint = stream_fingerprint(stream, tokenizers)
        source: Source = streamed_texts(setup, stream, tokenizers)
    else:
        texts = encode_and_note(setup, "training", training, tokenizers.source)
        make_source = _conversations if chats else _streams if has_memory else _windows
        fingerprint, source = texts.fingerprint, make_source(texts, length, rows, settings.seed)
    validation: FixedBatches[Any] | None = None
    if data.valid:
        held_out = text_readers(setup, "valid", template, chats=chats)
        valid = encode_and_note(setup, "validation", held_out, tokenizers.source)
        fixed = _fixed_streams if has_memory else _fixed_windows
        validation = (_fixed_conversations if chats else fixed)(valid, length, rows)
    return Task(tokenizers, fingerprint, source, new_model, objective, validation)


def _check_chats(*, has_memory: bool) -> None:
    """Refuse conversations for a model that reads one long text by segments."""
    if has_memory:
        raise ConfigError(
            "A conversation is read as a whole, so there is no earlier segment to remember",
            where="model.memory",
            remedy="Leave it out, and raise data.max_length for longer conversations",
        )


def chat_template(setup: Setup) -> ChatTemplate:
    """Return the template of a run's conversations: of the settings, the initial model, or ours.

    Raises:
        DataError: when the file cannot be read or is no template.
    """
    path = setup.settings.data.chat_template
    if setup.saved_tokenizers is not None:  # of a resumed run
        return setup.saved_tokenizers.chat_template
    if path is not None:
        return ChatTemplate("".join(f"{line}\n" for line in TextFile(Path(path))), path)
    if setup.settings.init is not None:
        return initial_text_model(setup.settings)[1].chat_template
    return ChatTemplate()


def text_readers(
    setup: Setup, role: Literal["train", "valid"], template: ChatTemplate, *, chats: bool = False
) -> list[DocumentReader | ChatReader]:
    """Open the training or validation files, of texts or of conversations.

    Args:
        setup: setup of the task.
        role: use of the files.
        template: template of conversations.
        chats: flag that the run learns from conversations.

    Raises:
        DataError: when some are conversations and others are texts.
    """
    found: list[DocumentReader | ChatReader] = []
    for reader in document_readers(setup, role):
        is_chat = has_conversations(reader.path)
        found.append(ChatReader(reader.path, template) if is_chat else reader)
        chats = chats or is_chat
    if odd := [each for each in found if isinstance(each, ChatReader) != chats]:
        raise DataError(
            "A run learns from conversations or from texts, and this file holds texts",
            where=str(odd[0].path),
            remedy=REMEDY,
        )
    return found


def _conversations(texts: EncodedTexts, length: int, rows: int, seed: int) -> EpochBatches[Indices]:
    """Make training batches of windows of whole conversations, in another order in each epoch."""
    starts, ends = whole_windows(texts, length)

    def plan(epoch: int) -> list[Indices]:
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
        return _chunks(shuffle(np.arange(len(starts)), bits), rows)

    return EpochBatches(
        plan, lambda n, _: make_windows(texts, starts[n], length, ends[n]), texts.line_of
    )


def _fixed_conversations(texts: EncodedTexts, length: int, rows: int) -> FixedBatches[Indices]:
    """Make batches of all validation conversations, in order."""
    starts, ends = whole_windows(texts, length)
    return FixedBatches(
        _chunks(np.arange(len(starts)), rows),
        lambda n: make_windows(texts, starts[n], length, ends[n]),
    )


def _windows(texts: EncodedTexts, length: int, rows: int, seed: int) -> EpochBatches[Indices]:
    """Make training batches of windows, in another order in each epoch."""

    def plan(epoch: int) -> list[Indices]:
        return _chunks(epoch_windows(len(texts), length, seed=seed, epoch=epoch), rows)

    return EpochBatches(plan, lambda starts, _: make_windows(texts, starts, length), texts.line_of)


def _streams(texts: EncodedTexts, length: int, rows: int, seed: int) -> EpochBatches[StreamSegment]:
    """Make training batches of segments; row i of a batch continues row i of the one before."""

    def plan(epoch: int) -> list[StreamSegment]:
        return Streams.of_epoch(len(texts), length, rows, seed=seed, epoch=epoch).segments()

    return EpochBatches(plan, lambda segment, _: make_segments(texts, segment), texts.line_of)


def _fixed_streams(texts: EncodedTexts, length: int, rows: int) -> FixedBatches[StreamSegment]:
    """Make batches of all segments of the validation texts, in order."""
    # No random shift, as in validation of windows.
    streams = Streams.cut(len(texts), length, rows, shift=0)
    return FixedBatches(streams.segments(), lambda segment: make_segments(texts, segment))


def _fixed_windows(texts: EncodedTexts, length: int, rows: int) -> FixedBatches[Indices]:
    """Make batches of all windows of the validation texts, in order."""
    # No random shift, so that the losses of different runs are comparable.
    starts = window_starts(len(texts), length, shift=0)
    return FixedBatches(_chunks(starts, rows), lambda starts: make_windows(texts, starts, length))


def _chunks(starts: Indices, rows: int) -> list[Indices]:
    """Divide windows into batches of `rows`; the last batch may have fewer."""
    return np.split(starts, range(rows, len(starts), rows))
