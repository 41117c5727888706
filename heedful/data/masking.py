"""Tokens hidden from a masked language model, which it has to guess (Devlin 2019).

All of it is a function of the seed, the epoch and the row, and only the raw bits of a generator are
used: NumPy keeps those the same between versions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.batch_plan import uniform
from heedful.data.batches import NO_TARGET, RowBatch, source_tensors
from heedful.data.encoded_texts import EncodedTexts
from heedful.data.encoder_rows import Rows
from heedful.errors import ConfigError
from heedful.text.pretokenization import MARK
from heedful.text.text_tokenizer import TextTokenizer

Ids = npt.NDArray[np.int64]

HIDDEN = 0.8
"""Share of the chosen tokens that the mask token stands for."""
REPLACED = 0.1
"""Share of them that a random piece stands for; the others are shown."""


class Masking:
    """Chooses tokens and hides them.

    Args:
        tokenizer: whose mask token and pieces are used.
        share: of the tokens that are chosen.
        whole_words: choose all pieces of a word or none. A word is what stands between spaces.

    Raises:
        ConfigError: when the tokenizer has no mask token, or its pieces do not tell words apart.
    """

    def __init__(self, tokenizer: TextTokenizer, share: float, *, whole_words: bool) -> None:
        if tokenizer.mask is None:
            raise ConfigError(
                "The tokenizer has no mask token",
                where="init",
                remedy="Begin with a model that was trained with task = 'masked_lm', or leave out "
                "init",
            )
        self.mask = tokenizer.mask
        self.share = share
        special = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, tokenizer.mask}
        self.ordinary = np.array(sorted(set(range(tokenizer.size)) - special), np.int64)
        self.edges = word_edges(tokenizer) if whole_words else None

    def __call__(
        self, pieces: Ids, *, seed: int, epoch: int, start: int
    ) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Hide some pieces of a row.

        The number chosen is the share, rounded up or down at random so that it is right on the
        average, but at least one: of a row of one or two pieces that is more than the share.

        Args:
            pieces: [n] int64, without the frame.
            seed: of the run.
            epoch: counted from 0.
            start: number of the row's first piece in the stream.

        Returns:
            What is shown [n] int64, and which pieces were chosen [n] bool.
        """
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch, start]))
        units = self._units(pieces)
        total = int(units[-1]) + 1
        count = max(1, int(self.share * total + uniform(bits, 1)[0]))
        keys = np.atleast_1d(bits.random_raw(total))
        unit_chosen = np.zeros(total, np.bool_)
        unit_chosen[np.argsort(keys, kind="stable")[:count]] = True
        chosen: npt.NDArray[np.bool_] = unit_chosen[units]
        fate = uniform(bits, len(pieces))
        drawn = np.atleast_1d(bits.random_raw(len(pieces))) % np.uint64(len(self.ordinary))
        shown = np.where(chosen & (fate < HIDDEN), self.mask, pieces)
        replaced = chosen & (fate >= HIDDEN) & (fate < HIDDEN + REPLACED)
        shown = np.where(replaced, self.ordinary[drawn.astype(np.int64)], shown)
        return shown, chosen

    def _units(self, pieces: Ids) -> Ids:
        """For each piece the number of what is chosen as one: itself, or its word."""
        if self.edges is None:
            return np.arange(len(pieces))
        begins, ends = self.edges
        begun = begins[pieces]
        begun[1:] |= ends[pieces[:-1]]
        begun[0] = True
        return np.cumsum(begun) - 1


def word_edges(tokenizer: TextTokenizer) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the pieces that begin a word, and of those after which a word begins.

    Raises:
        ConfigError: when no piece begins with a space.
    """
    shown = tokenizer.pieces(range(tokenizer.size))
    spaced = np.array([piece.startswith(MARK) for piece in shown])
    if not spaced.any():
        raise ConfigError(
            "The pieces of this tokenizer do not show where words begin",
            where="objective.whole_words",
            remedy="Set it to false",
        )
    begins = spaced | np.array([piece[:1].isspace() for piece in shown])
    # The mark of a space belongs to the word that it comes before; a line's end to none.
    return begins, np.array([piece[-1:].isspace() for piece in shown])


def masked_batch(
    texts: EncodedTexts,
    rows: Rows,
    masking: Masking,
    tokenizer: TextTokenizer,
    *,
    seed: int,
    epoch: int,
) -> RowBatch:
    """Rows side by side with some of their pieces hidden, which are the targets.

    Args:
        texts: the stream.
        rows: of the stream, those of the batch.
        masking: hides pieces.
        tokenizer: gives the frame.
        seed: of the run.
        epoch: counted from 0.
    """
    starts, pieces = rows.starts, rows.pieces(texts)
    masked = [
        masking(row, seed=seed, epoch=epoch, start=start)
        for row, start in zip(pieces, starts.tolist(), strict=True)
    ]
    ids, positions = source_tensors([shown for shown, _ in masked], tokenizer)
    targets = np.full(ids.shape, NO_TARGET, np.int64)
    first = len(tokenizer.first)
    for number, (row, (_, chosen)) in enumerate(zip(pieces, masked, strict=True)):
        targets[number, first : first + len(row)] = np.where(chosen, row, NO_TARGET)
    return RowBatch(
        ids,
        positions,
        torch.from_numpy(targets),
        torch.from_numpy(starts),
        int((targets != NO_TARGET).sum()),
    )
