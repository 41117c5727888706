"""Batches of token sequences: each record is a row of its own, or one for each of two sides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from heedful.data.batch_plan import Indices, plan_files, plan_once
from heedful.data.batches import NO_TARGET, PairBatch, WindowBatch, pair_batch
from heedful.data.corpus_spec import DataSpec
from heedful.data.encoded_texts import EncodedTexts
from heedful.errors import DataError
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.tokenizer_pair import TokenizerPair


@dataclass(frozen=True)
class RecordRows:
    """Encoded records, each the sequence of its begin token, its fields and its end token.

    Args:
        texts: stream of the records.
        tokenizer: fields of the records.
        longest: most tokens that a model reads at once, the begin token counted.
    """

    texts: EncodedTexts
    tokenizer: FieldTokenizer
    longest: int

    @property
    def sizes(self) -> Indices:
        """Positions of each record in a batch [N]: all tokens but the end token."""
        return self.texts.text_spans[1] + 1

    def plan(self, data: DataSpec, *, seed: int, epoch: int) -> list[Indices]:
        """Cut an epoch into batches of records of similar length; see `plan_files`."""
        # The number of the first record of every file, and the number of all records.
        bounds = np.searchsorted(self.texts.bounds[:-1], self.texts.starts)
        return plan_files(self.sizes, bounds, data, seed=seed, epoch=epoch)

    def once(self, data: DataSpec) -> list[Indices]:
        """Cut all records into batches in a fixed order, for validation."""
        return plan_once(self.sizes, data)

    def check(self) -> None:
        """Refuse records that are too long.

        Raises:
            DataError: naming the first one and its length.
        """
        sizes = self.sizes
        if (long := int(sizes.argmax())) >= 0 and sizes[long] > self.longest:
            raise DataError(
                f"The sequence has {sizes[long]:,} tokens with its beginning, more than "
                f"{self.longest:,}",
                where=self.texts.line_of(int(self.texts.bounds[long])),
                remedy=f"Set data.max_length to {sizes[long]}, or cut the sequence",
            )

    def line_of(self, number: int) -> str:
        """Return the location of a record, given the number of its first token."""
        return self.texts.line_of(number)

    def batch(self, numbers: Indices) -> WindowBatch | PairBatch:
        """Make a padded batch of records.

        Given fields, and an end that follows from the fields, are read and have no target.

        Args:
            numbers: numbers of the records [B].
        """
        starts, sizes = self.texts.bounds[numbers], self.sizes[numbers]
        places = np.arange(int(sizes.max()) + 1)
        real = places[None, :-1] < sizes[:, None]
        # Past the end of a record its last token is repeated, and left out below.
        ids = self.texts.ids_of(starts[:, None] + np.minimum(places, sizes[:, None]))
        targets = np.where(real & self.tokenizer.learned[ids[:, 1:]], ids[:, 1:], NO_TARGET)
        positions = np.where(real, places[None, :-1], -1)
        return WindowBatch(
            torch.from_numpy(np.where(real, ids[:, :-1], 0)),
            torch.from_numpy(positions),
            torch.zeros(positions.shape, dtype=torch.int64),
            torch.from_numpy(targets),
            torch.from_numpy(starts),
            int((targets != NO_TARGET).sum()),
            packed=False,
            counted=bool(real.all()),
        )


@dataclass(frozen=True)
class RecordPairs(RecordRows):
    """Encoded records, of which an encoder reads some fields and a decoder writes the others.

    Args:
        texts, tokenizer, longest: arguments of `RecordRows`, of the fields that are written.
        source: stream of the fields that are read, of the same records.
        source_tokenizer: fields that are read.
    """

    source: EncodedTexts
    source_tokenizer: FieldTokenizer

    @property
    def sizes(self) -> Indices:
        """Positions of each record's longer side in a batch [N], its begin or end counted."""
        return np.maximum(super().sizes, self.source.text_spans[1] + 1)

    def check_alignments(self, row_size: int) -> None:
        """Refuse records whose answers have more tokens than CTC can align.

        Two equal tokens after each other need a position without a token between them.

        Args:
            row_size: tokens that the encoder reads at a position.

        Raises:
            DataError: naming the first one.
        """
        # The end of either side counts: the encoder reads it, and it is a label.
        frames = -(-(self.source.text_spans[1] + 1) // row_size)
        starts, counts = self.texts.text_spans
        # Answers of less than half as many tokens fit, whatever is repeated in them.
        for number in np.flatnonzero(2 * counts + 1 > frames):
            ids = self.texts.span(starts[number], starts[number] + counts[number])
            needed = len(ids) + 1 + int(np.count_nonzero(ids[1:] == ids[:-1]))
            if needed > frames[number]:
                raise DataError(
                    f"The answer needs {needed} positions for its {len(ids)} tokens, its repeats "
                    f"and its end, and the encoder reads {frames[number]}",
                    where=self.texts.line_of(int(self.texts.bounds[number])),
                    remedy="Leave it out, or make tokens of more text by a larger "
                    "tokenizer.vocabulary_size",
                )

    def batch(self, numbers: Indices) -> PairBatch:
        """Make a padded batch of both sides; see `RecordRows.batch`."""
        read, written = (
            [
                texts.span(start, start + size)
                for start, size in zip(*(each[numbers] for each in texts.text_spans), strict=True)
            ]
            for texts in (self.source, self.texts)
        )
        pair = TokenizerPair(self.source_tokenizer, self.tokenizer)
        batch = pair_batch(read, written, self.texts.bounds[numbers], pair)
        learned = torch.from_numpy(self.tokenizer.learned)[batch.target_output]
        batch = replace(batch, target_output=batch.target_output.where(learned, NO_TARGET))
        return replace(batch, target_tokens=int((batch.targets != NO_TARGET).sum()))
