"""Texts read as streams: every batch goes on where the one before it ended (Dai 2019).

The corpus is cut into as many stretches as a batch has rows. Batch after batch takes the next
segment of each, so that a model may remember what came before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch

from heedful.data.batch_plan import Indices
from heedful.data.batches import NO_TARGET, SegmentBatch
from heedful.data.encoded_texts import EncodedTexts, epoch_shift


@dataclass(frozen=True)
class Streams:
    """Stretches of a corpus that are read side by side.

    Args:
        starts: number of the first token of each [B].
        stops: number of the token after the last that is read of each [B]; it is predicted still.
        length: tokens of a segment.
    """

    starts: Indices
    stops: Indices
    length: int

    @classmethod
    def cut(cls, tokens: int, length: int, rows: int, shift: int) -> Self:
        """Cut a corpus evenly, into no more streams than it has segments.

        Args:
            tokens: of the corpus.
            length: of a segment.
            rows: most streams.
            shift: token that the first one starts at.
        """
        inputs = max(tokens - 1 - shift, 1)
        rows = min(rows, -(-inputs // length))
        bounds = shift + inputs * np.arange(rows + 1, dtype=np.int64) // rows
        return cls(bounds[:-1], bounds[1:], length)

    @classmethod
    def of_epoch(cls, tokens: int, length: int, rows: int, *, seed: int, epoch: int) -> Self:
        """Return the streams of an epoch; where they begin differs by epoch."""
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
        return cls.cut(tokens, length, rows, epoch_shift(bits, tokens, length, epoch))

    def segments(self) -> list[StreamSegment]:
        """Return the segments of all streams, in the order of reading."""
        longest = int((self.stops - self.starts).max())
        return [StreamSegment(self, number) for number in range(-(-longest // self.length))]


class StreamSegment(NamedTuple):
    """A segment of each of several streams.

    Args:
        streams: that it is of.
        number: counted from 0.
    """

    streams: Streams
    number: int


def make_segments(texts: EncodedTexts, segment: StreamSegment) -> SegmentBatch:
    """Put a segment of each stream side by side.

    A stream that begins within a text is read from the begin token on, in place of its first token,
    as a window is.

    Args:
        texts: the corpus.
        segment: of its streams.
    """
    streams, number = segment
    length = streams.length
    tokens = streams.starts[:, None] + number * length + np.arange(length + 1)  # by number
    real = tokens[:, :-1] < streams.stops[:, None]
    indices = tokens[:, 0].copy()
    tokens = np.minimum(tokens, len(texts) - 1)
    pieces, numbers = texts.ids_of(tokens), texts.text_numbers(tokens)
    ids = np.where(real, pieces[:, :-1], 0)
    if number == 0:
        ids[:, 0] = texts.span(0, 1)
    # A text's end predicts nothing: what follows is another text.
    same = numbers[:, 1:] == numbers[:, :-1]
    targets = np.where(real & same, pieces[:, 1:], NO_TARGET)
    return SegmentBatch(
        torch.from_numpy(ids),
        torch.from_numpy(np.where(real, np.arange(length), -1)),
        torch.from_numpy(np.where(real, numbers[:, :-1], -1)),
        torch.from_numpy(targets),
        torch.from_numpy(indices),
        int((targets != NO_TARGET).sum()),
        begins=number == 0,
    )
