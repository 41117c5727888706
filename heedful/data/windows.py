"""Windows of a stream of texts as batches of a language model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.order import shuffle
from heedful.data.parts import rows_of
from heedful.data.stream import EncodedTexts

NO_TARGET = -1


@dataclass(frozen=True)
class WindowBatch:
    """Windows side by side; position t predicts target t.

    Args:
        ids: [B, L] int64.
        positions: [B, L] int64, counted anew at the begin of each text; −1 is padding.
        segments: [B, L] int64, the number of the text within the window.
        targets: [B, L] int64; −1 where nothing is to be predicted.
        indices: [B] int64, numbers of the windows' first tokens.
        target_tokens: how many targets there are.
    """

    ids: Tensor
    positions: Tensor
    segments: Tensor
    targets: Tensor
    indices: Tensor
    target_tokens: int

    def to(self, device: torch.device | str) -> WindowBatch:
        """The batch on a device."""
        return WindowBatch(
            self.ids.to(device),
            self.positions.to(device),
            self.segments.to(device),
            self.targets.to(device),
            self.indices,
            self.target_tokens,
        )

    def part(self, start: int, stop: int) -> WindowBatch:
        """The windows from `start` until `stop`."""
        real = int((self.targets[start:stop] >= 0).sum())
        return rows_of(self, start, stop, target_tokens=real)


def window_starts(tokens: int, length: int, shift: int) -> npt.NDArray[np.int64]:
    """The first tokens of windows that follow each other without overlap.

    Args:
        tokens: of the stream.
        length: of a window; the last one may be shorter, down to one prediction.
        shift: token the first window starts at.
    """
    return np.arange(shift, max(tokens - 1, shift + 1), length, dtype=np.int64)


def epoch_windows(tokens: int, length: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The windows of an epoch in the order of training; where the cuts fall differs by epoch."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
    room = max(1, min(length, tokens - 1))
    shift = int(bits.random_raw() % room) if epoch else 0
    return shuffle(window_starts(tokens, length, shift), bits)


def make_windows(texts: EncodedTexts, starts: npt.NDArray[np.int64], length: int) -> WindowBatch:
    """Put windows side by side.

    A window that begins within a text is read from the begin token on, in place of its first token,
    as a prompt will be: otherwise a model of few long texts would hardly ever see that token.

    Args:
        texts: the stream.
        starts: number of the first token of every window [B].
        length: of a window; one cut short by the end of the stream is padded.
    """
    tokens = starts[:, None] + np.arange(length + 1)  # [B, L + 1], by number
    real = tokens[:, 1:] < len(texts)
    tokens = np.minimum(tokens, len(texts) - 1)
    pieces, numbers = texts.ids_of(tokens), texts.text_numbers(tokens)
    begins = np.maximum(texts.begins_of(numbers[:, :-1]), starts[:, None])
    ids = np.where(real, pieces[:, :-1], 0)
    ids[:, 0] = texts.span(0, 1)
    positions = np.where(real, tokens[:, :-1] - begins, -1)
    segments = np.where(real, numbers[:, :-1] - numbers[:, :1], 0)
    # A text's end predicts nothing: what follows is another text.
    same = numbers[:, 1:] == numbers[:, :-1]
    targets = np.where(real & same, pieces[:, 1:], NO_TARGET)
    return WindowBatch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.from_numpy(segments),
        torch.from_numpy(targets),
        torch.from_numpy(starts),
        int((targets != NO_TARGET).sum()),
    )
