"""Text with something hidden: tokens behind a mask (Devlin 2019), T5's spans, BART's infilling.

All of it is a function of the seed, the epoch and the row, and only the raw bits of a generator are
used: NumPy keeps those the same between versions.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.batch_plan import shuffle, uniform
from heedful.data.batches import NO_TARGET, PairBatch, RowBatch, pair_batch, source_tensors
from heedful.data.encoded_texts import EncodedTexts, TokenRows, frame_size
from heedful.errors import ConfigError
from heedful.text.pretokenization import MARK
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

Ids = npt.NDArray[np.int64]


class Corruption(Protocol):
    """Makes a source and a target of a row of pieces."""

    def __call__(self, pieces: Ids, *, seed: int, epoch: int, start: int) -> tuple[Ids, Ids]:
        """Corrupt a row.

        Args:
            pieces: [n] int64, at least one, without special tokens around them.
            seed: of the run.
            epoch: counted from 0.
            start: number of the row's first piece in the stream.

        Returns:
            The source's and the target's ids, without special tokens around them.
        """
        ...

    def longest(self, counts: Ids) -> tuple[Ids, Ids]:
        """The most ids of sources and of targets [N] of rows of so many pieces [N]."""
        ...


class SpanCorruption:
    """Each span of a row that is dropped leaves a sentinel; the target lists them (Raffel 2020).

    The target is the first sentinel, the first span, the second sentinel … and one sentinel more
    after the last span. How many pieces are dropped, and in how many spans, follows from the
    length alone: the share and the mean length, rounded. Which spans is drawn from all choices
    that keep at least one piece between two, all equally likely. Unlike in the first
    implementation a row may also end with a piece that is kept.

    Args:
        sentinels: ids, in the order of the gaps.
        share: of the pieces that are dropped; one at least.
        mean_span: pieces of a span on the average.
    """

    def __init__(self, sentinels: tuple[int, ...], share: float, mean_span: float) -> None:
        self.sentinels = np.array(sentinels, np.int64)
        self.share = share
        self.mean_span = mean_span

    def __call__(self, pieces: Ids, *, seed: int, epoch: int, start: int) -> tuple[Ids, Ids]:
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch, start]))
        dropped, spans = (int(n) for n in span_counts(len(pieces), self.share, self.mean_span))
        assert spans < len(self.sentinels), "a sentinel for each span and one more"
        lengths = _parts(dropped - spans, spans, bits) + 1
        kept = _kept(len(pieces) - dropped, spans, bits)
        source: list[Ids] = []
        target: list[Ids] = []
        here = 0
        for number, (before, length) in enumerate(
            zip(kept.tolist(), lengths.tolist(), strict=False)
        ):
            sentinel = self.sentinels[number : number + 1]
            source += [pieces[here : here + before], sentinel]
            target += [sentinel, pieces[here + before : here + before + length]]
            here += before + length
        source.append(pieces[here:])
        target.append(self.sentinels[spans : spans + 1])
        return np.concatenate(source), np.concatenate(target)

    def longest(self, counts: Ids) -> tuple[Ids, Ids]:
        dropped, spans = span_counts(counts, self.share, self.mean_span)
        return counts - dropped + spans, dropped + spans + 1


def span_counts(
    counts: int | Ids, share: float, mean_span: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of pieces of rows that are dropped, and of spans.

    At least one piece is dropped and, of two or more, at least one is kept. There are never more
    spans than can have a kept piece between them.

    Args:
        counts: pieces of each row.
        share: of the pieces that are dropped.
        mean_span: pieces of a span on the average.
    """
    lengths = np.asarray(counts, np.int64)
    dropped = np.floor(share * lengths + 0.5).astype(np.int64)
    dropped = np.clip(dropped, 1, np.maximum(lengths - 1, 1))
    spans = np.floor(dropped / mean_span + 0.5).astype(np.int64)
    return dropped, np.clip(spans, 1, np.minimum(dropped, lengths - dropped + 1))


class Denoising:
    """A row with gaps, its sentences in any order if wished; the target is the row (Lewis 2020).

    The lengths of gaps are drawn from a Poisson distribution until they hold the share of the
    pieces, the last one cut to fit. Each gap is one mask, however long it is; one of no length is
    a mask where nothing is missing. Two gaps have a piece between them as long as there are enough
    pieces. A source is never longer than its row: where there would be more masks than pieces are
    hidden, those that hide nothing are left out.

    Args:
        mask: id that stands for a gap.
        share: of the pieces that are hidden, rounded up or down at random so that it is right on
            the average; one at least.
        mean_span: mean of the Poisson distribution.
        sentences: says where sentences end, to put them in a random order first; None keeps them.
        lead: ids before the row in the target; see `target_lead`.
    """

    def __init__(
        self,
        mask: int,
        share: float,
        mean_span: float,
        sentences: SentenceEnds | None = None,
        lead: tuple[int, ...] = (),
    ) -> None:
        self.mask = np.array([mask], np.int64)
        self.share = share
        self.cumulative = _poisson(mean_span)
        self.sentences = sentences
        self.lead = np.array(lead, np.int64)

    def __call__(self, pieces: Ids, *, seed: int, epoch: int, start: int) -> tuple[Ids, Ids]:
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch, start]))
        sequence = pieces
        if self.sentences is not None:
            parts = self.sentences.cut(pieces)
            order = shuffle(np.arange(len(parts)), bits)
            sequence = np.concatenate([parts[number] for number in order])
        hidden = max(1, int(self.share * len(pieces) + uniform(bits, 1)[0]))
        lengths = self._lengths(hidden, bits)
        kept = _kept(len(pieces) - hidden, len(lengths), bits)
        source: list[Ids] = []
        here = 0
        for before, length in zip(kept.tolist(), lengths.tolist(), strict=False):
            source += [sequence[here : here + before], self.mask]
            here += before + length
        source.append(sequence[here:])
        return np.concatenate(source), np.concatenate([self.lead, pieces])

    def longest(self, counts: Ids) -> tuple[Ids, Ids]:
        return counts, counts + len(self.lead)

    def _lengths(self, hidden: int, bits: np.random.PCG64) -> Ids:
        """Lengths of gaps that together hold so many pieces, at most as many as these."""
        lengths = np.empty(0, np.int64)
        while lengths.sum() < hidden:
            drawn = np.searchsorted(self.cumulative, uniform(bits, hidden), side="right")
            lengths = np.concatenate([lengths, drawn])
        last = int(np.searchsorted(np.cumsum(lengths), hidden))
        lengths = lengths[: last + 1]
        lengths[-1] -= lengths.sum() - hidden
        surplus = max(0, len(lengths) - hidden)
        return np.delete(lengths, np.flatnonzero(lengths == 0)[:surplus])


class SentenceEnds:
    """Finds the ends of sentences by their pieces.

    A sentence ends with a piece that ends in a full stop, a question or an exclamation mark, if
    the next piece begins a word, and in scripts without spaces wherever such a mark is.

    Args:
        tokenizer: whose pieces they are.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        pieces = tokenizer.pieces(range(tokenizer.size))
        self.begins = np.array([piece.startswith(MARK) or piece[:1].isspace() for piece in pieces])
        self.maybe = np.array([piece.endswith((".", "!", "?", "…")) for piece in pieces])
        self.surely = np.array([piece.endswith(("。", "！", "？")) for piece in pieces])

    def cut(self, pieces: Ids) -> list[Ids]:
        """The sentences of a row [n], in their order; one at least."""
        before, after = pieces[:-1], pieces[1:]
        ends = self.surely[before] | (self.maybe[before] & self.begins[after])
        return np.split(pieces, np.flatnonzero(ends) + 1)


class CorruptedRows:
    """Rows with gaps as sources, and what belongs there as targets.

    Args:
        corruption: makes the gaps.
        tokenizers: the same one twice.
        most_pieces: of a row.
    """

    def __init__(self, corruption: Corruption, tokenizers: TokenizerPair, most_pieces: int) -> None:
        self.corruption = corruption
        self.tokenizers = tokenizers
        self.longest = int(self._sizes(np.array([most_pieces]))[0])

    def sizes(self, rows: TokenRows) -> Ids:
        """The most tokens [N] of each row's source or target, special ones counted."""
        return self._sizes(rows.counts)

    def batch(self, texts: EncodedTexts, rows: TokenRows, seed: int, epoch: int) -> PairBatch:
        """Sources and targets of rows, a function of all arguments."""
        starts = rows.starts.tolist()
        pairs = [
            self.corruption(pieces, seed=seed, epoch=epoch, start=start)
            for pieces, start in zip(rows.pieces(texts), starts, strict=True)
        ]
        sources, targets = zip(*pairs, strict=True)
        return pair_batch(sources, targets, rows.starts, self.tokenizers)

    def _sizes(self, counts: Ids) -> Ids:
        source, target = self.corruption.longest(counts)
        # The decoder reads a token before the target, and predicts one after it.
        return np.maximum(source + frame_size(self.tokenizers.source), target + 1)


def span_corruption(
    tokenizer: TextTokenizer, share: float, mean_span: float, most_pieces: int
) -> SpanCorruption:
    """Span corruption with a tokenizer's sentinels.

    Args:
        tokenizer: which has them.
        share: see `SpanCorruption`.
        mean_span: see `SpanCorruption`.
        most_pieces: of a row.

    Raises:
        ConfigError: when it has fewer than the longest row needs.
    """
    needed = sentinels_needed(share, mean_span, most_pieces)
    have = len(tokenizer.sentinels)
    if have < needed:
        raise ConfigError(
            f"Texts of {most_pieces} tokens need {needed} sentinels, and the tokenizer has {have}",
            where="data.max_length",
            remedy="Lower it, raise objective.mean_span, or begin with another model"
            if have
            else "Begin with a model that was trained with task = 'span_corruption', such as T5, "
            "or leave out init",
        )
    return SpanCorruption(tokenizer.sentinels, share, mean_span)


def sentinels_needed(share: float, mean_span: float, most_pieces: int) -> int:
    """The sentinels that a row of so many pieces needs: one for each span, and the last."""
    return int(span_counts(most_pieces, share, mean_span)[1]) + 1


def denoising(
    tokenizer: TextTokenizer, share: float, mean_span: float, *, permute_sentences: bool
) -> Denoising:
    """Denoising with a tokenizer's mask.

    Args:
        tokenizer: which has one.
        share: see `Denoising`.
        mean_span: see `Denoising`.
        permute_sentences: also put sentences in a random order.

    Raises:
        ConfigError: when it has none, or a sentinel for each gap instead.
    """
    gaps = gap_tokens(tokenizer)
    if len(gaps) != 1:
        raise ConfigError(
            f"The tokenizer has {len(gaps)} sentinels, one for each gap, but no mask for them all"
            if gaps
            else "The tokenizer has no mask token",
            where="init",
            remedy="Begin with a model that was trained with task = 'denoising', such as BART, or "
            "leave out init" + (", or set task = 'span_corruption'" if gaps else ""),
        )
    ends = SentenceEnds(tokenizer) if permute_sentences else None
    return Denoising(gaps[0], share, mean_span, ends, target_lead(tokenizer))


def gap_tokens(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """The tokens that stand for gaps: one mask for all, several sentinels, or none.

    A tokenizer's only sentinel is such a mask.
    """
    return tokenizer.sentinels if tokenizer.mask is None else (tokenizer.mask,)


def target_lead(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """The tokens before a whole text in a decoder that starts from another token.

    BART's decoder reads </s> first and then predicts <s>, which begins its texts.
    """
    return () if tokenizer.first[:1] == (tokenizer.bos,) else tokenizer.first


def _kept(total: int, gaps: int, bits: np.random.PCG64) -> Ids:
    """The pieces kept before, between and after gaps; at least one between two, if enough are."""
    between = int(total >= gaps - 1)
    kept = _parts(total - between * (gaps - 1), gaps + 1, bits)
    kept[1:-1] += between
    return kept


def _parts(total: int, count: int, bits: np.random.PCG64) -> Ids:
    """Draw `count` numbers, 0 or more, with this sum; all choices are equally likely.

    Of `total` stars and `count` − 1 bars in a row, the bars are drawn.
    """
    places = total + count - 1
    bars = np.sort(shuffle(np.arange(places), bits)[: count - 1])
    return np.diff(bars, prepend=-1, append=places) - 1


def _poisson(mean: float) -> npt.NDArray[np.float64]:
    """The probabilities of at most 0, 1, 2 … of a Poisson distribution, until they are 1."""
    probability, total, result = math.exp(-mean), 0.0, []
    while total < 1 - 1e-12:
        total += probability
        result.append(total)
        probability *= mean / len(result)
    return np.array(result)


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
        inputs = np.where(chosen & (fate < HIDDEN), self.mask, pieces)
        replaced = chosen & (fate >= HIDDEN) & (fate < HIDDEN + REPLACED)
        inputs = np.where(replaced, self.ordinary[drawn.astype(np.int64)], inputs)
        return inputs, chosen

    def _units(self, pieces: Ids) -> Ids:
        """For each piece the number of its unit, chosen as a whole: itself, or its word."""
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
    pieces = tokenizer.pieces(range(tokenizer.size))
    spaced = np.array([piece.startswith(MARK) for piece in pieces])
    if not spaced.any():
        raise ConfigError(
            "The pieces of this tokenizer do not show where words begin",
            where="objective.whole_words",
            remedy="Set it to false",
        )
    begins = spaced | np.array([piece[:1].isspace() for piece in pieces])
    # The mark of a space belongs to the word that it comes before; a line's end to none.
    return begins, np.array([piece[-1:].isspace() for piece in pieces])


def masked_batch(
    texts: EncodedTexts,
    rows: TokenRows,
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
    ids, positions = source_tensors([inputs for inputs, _ in masked], tokenizer)
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
