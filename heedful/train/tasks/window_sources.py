"""Batches of a language model: windows of texts, of whole conversations, or segments of streams."""

from __future__ import annotations

import numpy as np

from heedful.data.batch_plan import Indices, shuffle
from heedful.data.chat_windows import whole_windows
from heedful.data.encoded_texts import (
    EncodedTexts,
    epoch_windows,
    make_windows,
    window_starts,
)
from heedful.data.text_streams import Streams, StreamSegment, make_segments
from heedful.train.batch_source import EpochBatches, FixedBatches


def conversations(texts: EncodedTexts, length: int, rows: int, seed: int) -> EpochBatches[Indices]:
    """Make training batches of windows of whole conversations, in another order in each epoch."""
    starts, ends = whole_windows(texts, length)

    def plan(epoch: int) -> list[Indices]:
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
        return _chunks(shuffle(np.arange(len(starts)), bits), rows)

    return EpochBatches(
        plan, lambda n, _: make_windows(texts, starts[n], length, ends[n]), texts.line_of
    )


def fixed_conversations(texts: EncodedTexts, length: int, rows: int) -> FixedBatches[Indices]:
    """Make batches of all validation conversations, in order."""
    starts, ends = whole_windows(texts, length)
    return FixedBatches(
        _chunks(np.arange(len(starts)), rows),
        lambda n: make_windows(texts, starts[n], length, ends[n]),
    )


def windows(texts: EncodedTexts, length: int, rows: int, seed: int) -> EpochBatches[Indices]:
    """Make training batches of windows, in another order in each epoch."""

    def plan(epoch: int) -> list[Indices]:
        return _chunks(epoch_windows(len(texts), length, seed=seed, epoch=epoch), rows)

    return EpochBatches(plan, lambda starts, _: make_windows(texts, starts, length), texts.line_of)


def streams(texts: EncodedTexts, length: int, rows: int, seed: int) -> EpochBatches[StreamSegment]:
    """Make training batches of segments; row i of a batch continues row i of the one before."""

    def plan(epoch: int) -> list[StreamSegment]:
        return Streams.of_epoch(len(texts), length, rows, seed=seed, epoch=epoch).segments()

    return EpochBatches(plan, lambda segment, _: make_segments(texts, segment), texts.line_of)


def fixed_streams(texts: EncodedTexts, length: int, rows: int) -> FixedBatches[StreamSegment]:
    """Make batches of all segments of the validation texts, in order."""
    # No random shift, as in validation of windows.
    streams = Streams.cut(len(texts), length, rows, shift=0)
    return FixedBatches(streams.segments(), lambda segment: make_segments(texts, segment))


def fixed_windows(texts: EncodedTexts, length: int, rows: int) -> FixedBatches[Indices]:
    """Make batches of all windows of the validation texts, in order."""
    # No random shift, so that the losses of different runs are comparable.
    starts = window_starts(len(texts), length, shift=0)
    return FixedBatches(_chunks(starts, rows), lambda starts: make_windows(texts, starts, length))


def _chunks(starts: Indices, rows: int) -> list[Indices]:
    """Divide windows into batches of `rows`; the last batch may have fewer."""
    return np.split(starts, range(rows, len(starts), rows))
