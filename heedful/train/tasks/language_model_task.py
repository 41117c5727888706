"""Causal language modelling: a model that predicts the next token."""

from __future__ import annotations

import numpy as np
from torch import nn

from heedful.data.batch_plan import Indices
from heedful.data.encoded_texts import (
    EncodedTexts,
    epoch_windows,
    make_windows,
    window_starts,
)
from heedful.data.text_streams import Streams, StreamSegment, make_segments
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.batch_source import EpochBatches, FixedBatches, Source
from heedful.train.objective import CausalLMObjective, Objective, SegmentObjective
from heedful.train.task import Setup, Task
from heedful.train.tasks.encoder_task import (
    all_texts,
    document_readers,
    encode_and_note,
    encode_valid,
)
from heedful.train.tasks.streamed_corpora import (
    sampled_texts,
    stream_fingerprint,
    streamed_texts,
    text_stream,
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
    training = [] if stream is not None else document_readers(setup, "train")

    def train_new() -> TokenizerPair:
        read = all_texts(setup, training) if stream is None else sampled_texts(setup, stream)
        tokenizer = train_tokenizer(settings.tokenizer, read, setup.events.warn)
        return TokenizerPair(tokenizer, tokenizer)

    tokenizers = setup.tokenizers(train_new)
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
        make_source = _streams if has_memory else _windows
        fingerprint, source = texts.fingerprint, make_source(texts, length, rows, settings.seed)
    valid, validation = encode_valid(setup, tokenizers.source), None
    if valid is not None:
        validation = (_fixed_streams if has_memory else _fixed_windows)(valid, length, rows)
    return Task(tokenizers, fingerprint, source, new_model, objective, validation)


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
