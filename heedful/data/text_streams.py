"""Texts as parallel streams: every batch continues where the one before it ended (Dai 2019).

The corpus is cut into as many streams as a batch has rows. Each batch takes the next segment of
every stream, so that a model can use its memory of the segments before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch

from heedful.data.batch_plan import Indices
from heedful.data.batches import NO_TARGET, SegmentBatch
from heedful.data.encoded_texts import EncodedTexts, epoch_shift, inputs_and_targets


@dataclass(frozen=True)
class Streams:
    """Consecutive parts of a corpus that are the rows of its batches.

    Args:
        starts: number of each stream's first token [B].
        stops: number of the token after each stream's last input [B], which is its last target.
        length: length of a segment in tokens.
    """

    starts: Indices
    stops: Indices
    length: int

    @classmethod
    def cut(cls, tokens: int, length: int, rows: int, shift: int) -> Self:
        """Cut a corpus evenly, into at most as many streams as it has segments.

        Args:
            tokens: number of tokens of the corpus.
            length: length of a segment in tokens.
            rows: largest number of streams.
            shift: first token of the first stream.
        """
        inputs = max(tokens - 1 - shift, 1)  # the last token is only a target
        rows = min(rows, -(-inputs // length))
        bounds = shift + inputs * np.arange(rows + 1, dtype=np.int64) // rows
        return cls(bounds[:-1], bounds[1:], length)

    @classmethod
    def of_epoch(cls, tokens: int, length: int, rows: int, *, seed: int, epoch: int) -> Self:
        """Return the streams of an epoch; every epoch cuts at other places."""
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
        return cls.cut(tokens, length, rows, epoch_shift(bits, tokens, length, epoch))

    def segments(self) -> list[StreamSegment]:
        """Return the segments in the order of training."""
        longest = int((self.stops - self.starts).max())
        return [StreamSegment(self, number) for number in range(-(-longest // self.length))]


class StreamSegment(NamedTuple):
    """A segment of each of several streams.

    Args:
        streams: streams of the segment.
        number: number of the segment in its streams, from 0.
    """

    streams: Streams
    number: int


def make_segments(texts: EncodedTexts, segment: StreamSegment) -> SegmentBatch:
    """Make a batch of one segment of each stream.

    The first token of a stream is replaced by bos, as that of a window is.

    Args:
        texts: corpus of texts.
        segment: segment to take.
    """
    streams, number = segment
    length = streams.length
    # Numbers of the tokens in the corpus, with one more for the last target [B, L + 1].
    tokens = streams.starts[:, None] + number * length + np.arange(length + 1)
    real = tokens[:, :-1] < streams.stops[:, None]
    indices = tokens[:, 0].copy()
    tokens = np.minimum(tokens, len(texts) - 1)
    ids, targets, numbers = inputs_and_targets(texts, tokens, real)
    if number == 0:
        ids[:, 0] = texts.span(0, 1)
    return SegmentBatch(
        torch.from_numpy(ids),
        torch.from_numpy(np.where(real, np.arange(length), -1)),
        torch.from_numpy(np.where(real, numbers[:, :-1], -1)),
        torch.from_numpy(targets),
        torch.from_numpy(indices),
        int((targets != NO_TARGET).sum()),
        begins=number == 0,
    )
