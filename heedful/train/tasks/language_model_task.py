"""Causal language modelling: a model that predicts the next token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.batch_source import FixedBatches, Source
from heedful.train.objective import CausalLMObjective, Objective, SegmentObjective
from heedful.train.task import Setup, Task
from heedful.train.tasks.conversation_files import are_conversations, chat_template, text_readers
from heedful.train.tasks.encoder_task import all_texts, encode_and_note
from heedful.train.tasks.streamed_corpora import (
    sampled_texts,
    stream_fingerprint,
    streamed_texts,
    text_stream,
)
from heedful.train.tasks.window_sources import (
    conversations,
    fixed_conversations,
    fixed_streams,
    fixed_windows,
    streams,
    windows,
)
from heedful.train.training_memory import likely_spec


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
    chats = are_conversations(setup, training, has_memory=has_memory)
    if chats:
        tokenizers = replace(tokenizers, chat=template.source)
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
        make_source = conversations if chats else streams if has_memory else windows
        fingerprint, source = texts.fingerprint, make_source(texts, length, rows, settings.seed)
    validation: FixedBatches[Any] | None = None
    if data.valid:
        held_out = text_readers(setup, "valid", template, chats=chats)
        valid = encode_and_note(setup, "validation", held_out, tokenizers.source)
        fixed = fixed_streams if has_memory else fixed_windows
        validation = (fixed_conversations if chats else fixed)(valid, length, rows)
    return Task(tokenizers, fingerprint, source, new_model, objective, validation)
