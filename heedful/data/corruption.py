"""Corruption of text for denoising: BERT's masking (Devlin 2019), T5's spans, BART's infilling.

A corruption is a function of the seed, the epoch and the row. Only the raw bits of a generator are
used, which NumPy keeps the same between versions.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.batch_plan import shuffle, uniform
from heedful.data.batches import NO_TARGET, PairBatch, RowBatch, pair_batch
from heedful.data.encoded_texts import EncodedTexts, TokenRows, frame_size
from heedful.data.padding import source_tensors
from heedful.errors import ConfigError
from heedful.text.pretokenization import MARK
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

Ids = npt.NDArray[np.int64]


class SpanCorruption:
    """Span corruption: sentinels replace dropped spans, which are the target (Raffel 2020).

    The target is the first sentinel, the first span, the second sentinel … and one sentinel more
    after the last span. The number of dropped tokens and the number of spans follow from the
    length alone: share and mean length, rounded. The spans are drawn uniformly from all choices
    that keep at least one token between two spans. Unlike in the original implementation, a row
    may also end with a kept token.

    Args:
        sentinels: ids of the sentinels, in the order of the gaps.
        share: share of the tokens that are dropped, at least one token.
        mean_span: mean length of a span in tokens.
    """

    def __init__(self, sentinels: tuple[int, ...], share: float, mean_span: float) -> None:
        self.sentinels = np.array(sentinels, np.int64)
        self.share = share
        self.mean_span = mean_span

    def __call__(self, tokens: Ids, *, seed: int, epoch: int, start: int) -> tuple[Ids, Ids]:
        """Corrupt a row.

        Args:
            tokens: token ids [n] int64, at least one, without special tokens around them.
            seed: seed of the run.
            epoch: number of the epoch, from 0.
            start: number of the row's first token in the stream.

        Returns:
            The source's and the target's ids, without special tokens around them.
        """
        # The place in the stream is part of the seed: a row's corruption does not depend on its
        # batch.
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch, start]))
        dropped, spans = (int(n) for n in span_counts(len(tokens), self.share, self.mean_span))
        assert spans < len(self.sentinels), "a sentinel for each span and one more"
        # Every span has one token for certain; only the rest is divided at random.
        lengths = _parts(dropped - spans, spans, bits) + 1
        kept = _kept(len(tokens) - dropped, spans, bits)
        source: list[Ids] = []
        target: list[Ids] = []
        here = 0
        for number, (before, length) in enumerate(
            zip(kept.tolist(), lengths.tolist(), strict=False)
        ):
            sentinel = self.sentinels[number : number + 1]
            source += [tokens[here : here + before], sentinel]
            target += [sentinel, tokens[here + before : here + before + length]]
            here += before + length
        source.append(tokens[here:])
        target.append(self.sentinels[spans : spans + 1])
        return np.concatenate(source), np.concatenate(target)

    def longest(self, counts: Ids) -> tuple[Ids, Ids]:
        """Return the upper bounds of the lengths of sources [N] and targets [N] of rows."""
        dropped, spans = span_counts(counts, self.share, self.mean_span)
        return counts - dropped + spans, dropped + spans + 1


def span_counts(
    counts: int | Ids, share: float, mean_span: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the number of dropped tokens and the number of spans of each row.

    At least one token is dropped and, in rows of two or more, at least one is kept. Spans are so
    few that a kept token fits between each two.

    Args:
        counts: tokens of each row.
        share: share of the tokens that are dropped.
        mean_span: mean length of a span in tokens.
    """
    lengths = np.asarray(counts, np.int64)
    # floor(x + 0.5), since NumPy's `round` goes to the even neighbour of halves.
    dropped = np.floor(share * lengths + 0.5).astype(np.int64)
    dropped = np.clip(dropped, 1, np.maximum(lengths - 1, 1))
    spans = np.floor(dropped / mean_span + 0.5).astype(np.int64)
    return dropped, np.clip(spans, 1, np.minimum(dropped, lengths - dropped + 1))


class Denoising:
    """BART's text infilling, with optional sentence permutation (Lewis 2020).

    The source is the row with gaps, the target is the row. The lengths of gaps are drawn from a
    Poisson distribution until they add up to the share of the tokens; the last one is cut to fit.
    Each gap becomes one mask, whatever its length; a gap of length zero inserts a mask. Two gaps
    have a token between them as long as there are enough tokens. A source is never longer than its
    row: surplus gaps of length zero are left out.

    Args:
        mask: id of the mask token.
        share: expected share of the tokens that are hidden, at least one token; the number is
            rounded up or down at random.
        mean_span: mean of the Poisson distribution, in tokens.
        sentences: detector of sentence ends, for a random order of sentences; None keeps the order.
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

    def __call__(self, tokens: Ids, *, seed: int, epoch: int, start: int) -> tuple[Ids, Ids]:
        """Corrupt a row; see `SpanCorruption`."""
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch, start]))
        # The target keeps the original order of sentences: the model is trained to restore it.
        sequence = tokens
        if self.sentences is not None:
            parts = self.sentences.cut(tokens)
            order = shuffle(np.arange(len(parts)), bits)
            sequence = np.concatenate([parts[number] for number in order])
        # Adding a uniform number before truncation makes the expected number exact.
        hidden = max(1, int(self.share * len(tokens) + uniform(bits, 1)[0]))
        lengths = self._lengths(hidden, bits)
        kept = _kept(len(tokens) - hidden, len(lengths), bits)
        source: list[Ids] = []
        here = 0
        # `kept` has one entry more, the tokens after the last gap, which is added below.
        for before, length in zip(kept.tolist(), lengths.tolist(), strict=False):
            source += [sequence[here : here + before], self.mask]
            here += before + length
        source.append(sequence[here:])
        return np.concatenate(source), np.concatenate([self.lead, tokens])

    def longest(self, counts: Ids) -> tuple[Ids, Ids]:
        """Return the upper bounds of the lengths of sources [N] and targets [N] of rows."""
        return counts, counts + len(self.lead)

    def _lengths(self, hidden: int, bits: np.random.PCG64) -> Ids:
        """Draw lengths of gaps that add up to `hidden`, at most `hidden` of them."""
        lengths = np.empty(0, np.int64)
        while lengths.sum() < hidden:
            # Inverse transform sampling of the Poisson distribution.
            drawn = np.searchsorted(self.cumulative, uniform(bits, hidden), side="right")
            lengths = np.concatenate([lengths, drawn])
        last = int(np.searchsorted(np.cumsum(lengths), hidden))
        lengths = lengths[: last + 1]
        lengths[-1] -= lengths.sum() - hidden
        # The source has one mask for each gap, so this keeps it no longer than the row.
        surplus = max(0, len(lengths) - hidden)
        return np.delete(lengths, np.flatnonzero(lengths == 0)[:surplus])


Corruption = SpanCorruption | Denoising
"""A function that makes a source and a target from a row of tokens."""


class SentenceEnds:
    """A detector of sentence ends among tokens.

    A sentence ends with a token that ends in a full stop, a question mark or an exclamation mark,
    if the next token begins a word. The marks of scripts without spaces always end a sentence.

    Args:
        tokenizer: tokenizer of the tokens.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        tokens = tokenizer.pieces(range(tokenizer.size))
        # Tables over the vocabulary, so that a row is cut by indexing alone.
        self.begins = np.array([token.startswith(MARK) or token[:1].isspace() for token in tokens])
        self.maybe = np.array([token.endswith((".", "!", "?", "…")) for token in tokens])
        self.surely = np.array([token.endswith(("。", "！", "？")) for token in tokens])

    def cut(self, tokens: Ids) -> list[Ids]:
        """Cut a row [n] into its sentences, at least one."""
        before, after = tokens[:-1], tokens[1:]
        ends = self.surely[before] | (self.maybe[before] & self.begins[after])
        return np.split(tokens, np.flatnonzero(ends) + 1)


class CorruptedRows:
    """Batches of corrupted rows as sources, with their targets.

    Args:
        corruption: function that makes source and target of a row.
        tokenizers: pair of tokenizers in which both sides are the same.
        most_tokens: maximum number of tokens of a row.
    """

    def __init__(self, corruption: Corruption, tokenizers: TokenizerPair, most_tokens: int) -> None:
        self.corruption = corruption
        self.tokenizers = tokenizers
        self.longest = int(self._sizes(np.array([most_tokens]))[0])

    def sizes(self, rows: TokenRows) -> Ids:
        """Return the upper bound of each row's longer side [N], special tokens counted."""
        return self._sizes(rows.counts)

    def batch(self, texts: EncodedTexts, rows: TokenRows, seed: int, epoch: int) -> PairBatch:
        """Corrupt rows of a stream and make a padded batch of them."""
        starts = rows.starts.tolist()
        pairs = [
            self.corruption(tokens, seed=seed, epoch=epoch, start=start)
            for tokens, start in zip(rows.token_ids(texts), starts, strict=True)
        ]
        sources, targets = zip(*pairs, strict=True)
        return pair_batch(sources, targets, rows.starts, self.tokenizers)

    def _sizes(self, counts: Ids) -> Ids:
        source, target = self.corruption.longest(counts)
        # The decoder reads a token before the target, and predicts one after it.
        return np.maximum(source + frame_size(self.tokenizers.source), target + 1)


def span_corruption(
    tokenizer: TextTokenizer, share: float, mean_span: float, most_tokens: int
) -> SpanCorruption:
    """Make a span corruption with the sentinels of a tokenizer.

    Args:
        tokenizer: tokenizer with sentinels.
        share: share of the tokens that are dropped.
        mean_span: mean length of a span in tokens.
        most_tokens: maximum number of tokens of a row.

    Raises:
        ConfigError: when the tokenizer has fewer sentinels than the longest row needs.
    """
    needed = sentinels_needed(share, mean_span, most_tokens)
    have = len(tokenizer.sentinels)
    if have < needed:
        raise ConfigError(
            f"Texts of {most_tokens} tokens need {needed} sentinels, and the tokenizer has {have}",
            where="data.max_length",
            remedy="Lower it, raise objective.mean_span, or begin with another model"
            if have
            else "Begin with a model that was trained with task = 'span_corruption', such as T5, "
            "or leave out init",
        )
    return SpanCorruption(tokenizer.sentinels, share, mean_span)


def sentinels_needed(share: float, mean_span: float, most_tokens: int) -> int:
    """Return the number of sentinels of the longest row: one for each span, and a last one."""
    return int(span_counts(most_tokens, share, mean_span)[1]) + 1


def denoising(
    tokenizer: TextTokenizer, share: float, mean_span: float, *, permute_sentences: bool
) -> Denoising:
    """Make a denoising corruption with the mask token of a tokenizer.

    Args:
        tokenizer: tokenizer with a mask token.
        share: expected share of the tokens that are hidden.
        mean_span: mean length of a gap in tokens.
        permute_sentences: flag that sentences are put in a random order.

    Raises:
        ConfigError: when the tokenizer has no mask token, or sentinels instead.
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
    """Return the tokens that stand for gaps: one mask for all, several sentinels, or none.

    A tokenizer's only sentinel is such a mask.
    """
    return tokenizer.sentinels if tokenizer.mask is None else (tokenizer.mask,)


def target_lead(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the tokens that begin every target of a decoder whose start token is not bos.

    BART's decoder reads </s> first and then predicts <s>, which begins its texts.
    """
    return () if tokenizer.first[:1] == (tokenizer.bos,) else tokenizer.first


def _kept(total: int, gaps: int, bits: np.random.PCG64) -> Ids:
    """Draw the numbers of kept tokens before, between and after gaps [gaps + 1].

    At least one token is between each two gaps if there are enough tokens.
    """
    between = int(total >= gaps - 1)
    kept = _parts(total - between * (gaps - 1), gaps + 1, bits)
    kept[1:-1] += between
    return kept


def _parts(total: int, count: int, bits: np.random.PCG64) -> Ids:
    """Draw `count` numbers, 0 or more, that add up to `total`, uniformly from all choices.

    Stars and bars: the places of `count` − 1 bars among `total` stars are drawn.
    """
    places = total + count - 1
    bars = np.sort(shuffle(np.arange(places), bits)[: count - 1])
    return np.diff(bars, prepend=-1, append=places) - 1


def _poisson(mean: float) -> npt.NDArray[np.float64]:
    """Return the cumulative distribution of a Poisson distribution, up to where it reaches 1."""
    probability, total, result = math.exp(-mean), 0.0, []
    while total < 1 - 1e-12:
        total += probability
        result.append(total)
        probability *= mean / len(result)
    return np.array(result)


HIDDEN = 0.8
"""Share of the chosen tokens that become the mask token (Devlin 2019, section 3.1)."""
REPLACED = 0.1
"""Share of the chosen tokens that become a random token; the others stay as they are."""


class Masking:
    """BERT's masking: choose tokens to predict, and hide most of them (Devlin 2019).

    Args:
        tokenizer: tokenizer with a mask token.
        share: share of the tokens that are chosen.
        whole_words: flag that all tokens of a word are chosen or none; spaces separate words.

    Raises:
        ConfigError: when the tokenizer has no mask token, or its tokens do not mark words.
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
        # Random replacements are ordinary tokens; a special one would give itself away.
        special = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, tokenizer.mask}
        self.ordinary = np.array(sorted(set(range(tokenizer.size)) - special), np.int64)
        self.edges = word_edges(tokenizer) if whole_words else None

    def __call__(
        self, tokens: Ids, *, seed: int, epoch: int, start: int
    ) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Choose and hide some tokens of a row.

        The number of chosen tokens is rounded up or down at random so that its expectation is the
        share, but it is at least one, which in very short rows is more than the share.

        Args:
            tokens: token ids [n] int64, without the special tokens around them.
            seed: seed of the run.
            epoch: number of the epoch, from 0.
            start: number of the row's first token in the stream.

        Returns:
            The ids to feed [n] int64, and a mask of the chosen tokens [n] bool.
        """
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch, start]))
        units = self._units(tokens)
        total = int(units[-1]) + 1
        count = max(1, int(self.share * total + uniform(bits, 1)[0]))
        # The `count` smallest of random keys are a uniform choice without replacement.
        keys = np.atleast_1d(bits.random_raw(total))
        unit_chosen = np.zeros(total, np.bool_)
        unit_chosen[np.argsort(keys, kind="stable")[:count]] = True
        chosen: npt.NDArray[np.bool_] = unit_chosen[units]
        roll = uniform(bits, len(tokens))
        drawn = np.atleast_1d(bits.random_raw(len(tokens))) % np.uint64(len(self.ordinary))
        inputs = np.where(chosen & (roll < HIDDEN), self.mask, tokens)
        replaced = chosen & (roll >= HIDDEN) & (roll < HIDDEN + REPLACED)
        inputs = np.where(replaced, self.ordinary[drawn.astype(np.int64)], inputs)
        return inputs, chosen

    def _units(self, tokens: Ids) -> Ids:
        """Return the index [n] of each token's unit, a token or word that is hidden as a whole."""
        if self.edges is None:
            return np.arange(len(tokens))
        begins, ends = self.edges
        # Indexing copies, so writing below leaves the table of the vocabulary alone.
        begun = begins[tokens]
        begun[1:] |= ends[tokens[:-1]]
        begun[0] = True
        return np.cumsum(begun) - 1


def word_edges(tokenizer: TextTokenizer) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return masks over the vocabulary: tokens that begin a word, and tokens before a word.

    Raises:
        ConfigError: when no token of the vocabulary begins with a space.
    """
    tokens = tokenizer.pieces(range(tokenizer.size))
    spaced = np.array([token.startswith(MARK) for token in tokens])
    if not spaced.any():
        raise ConfigError(
            "The tokens of this tokenizer do not show where words begin",
            where="objective.whole_words",
            remedy="Set it to false",
        )
    begins = spaced | np.array([token[:1].isspace() for token in tokens])
    # A space mark belongs to the word after it, white space at a token's end to no word.
    return begins, np.array([token[-1:].isspace() for token in tokens])


def masked_batch(
    texts: EncodedTexts,
    rows: TokenRows,
    masking: Masking,
    tokenizer: TextTokenizer,
    *,
    seed: int,
    epoch: int,
) -> RowBatch:
    """Make a padded batch of masked rows; the chosen tokens are the targets.

    Args:
        texts: stream of texts.
        rows: rows of the stream to put into the batch.
        masking: function that chooses and hides tokens.
        tokenizer: tokenizer that gives the special tokens around a row.
        seed: seed of the run.
        epoch: number of the epoch, from 0.
    """
    starts, tokens = rows.starts, rows.token_ids(texts)
    masked = [
        masking(row, seed=seed, epoch=epoch, start=start)
        for row, start in zip(tokens, starts.tolist(), strict=True)
    ]
    ids, positions = source_tensors([inputs for inputs, _ in masked], tokenizer)
    targets = np.full(ids.shape, NO_TARGET, np.int64)
    # Targets are shifted by the special tokens in front, which are never predicted.
    first = len(tokenizer.first)
    for number, (row, (_, chosen)) in enumerate(zip(tokens, masked, strict=True)):
        targets[number, first : first + len(row)] = np.where(chosen, row, NO_TARGET)
    return RowBatch(
        ids,
        positions,
        torch.from_numpy(targets),
        torch.from_numpy(starts),
        int((targets != NO_TARGET).sum()),
    )
