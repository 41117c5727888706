"""Measures of each head's attention over a corpus, and a label for heads with a clear pattern.

The kinds are those of Clark (2019) and Voita (2019); the measures and the conditions of a label are
in the design page on inspection. Sums over rows are exact for any batch size.

Shapes: B sentences, H heads, C kinds of key, Lq queries, Lk keys.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.errors import DataError
from heedful.inspect.attention_maps import AttentionPart, attentions, rows_and_columns, usual_part
from heedful.inspect.readings import (
    BATCH_TOKENS,
    ModelInput,
    batches,
    pair_words,
    stack_positions,
    tensors,
)
from heedful.inspect.subject import Reduced, Result, Subject, run
from heedful.nn.positions import Positions


@dataclass(frozen=True)
class AttentionShare(Result):
    """Share of a head's attention on keys of one kind.

    Args:
        share: mean share over the queries that see such a key.
        baseline: share of uniform attention over all keys that those queries see.
        error: standard error of the share over the means of sentences; infinite for fewer than two
            sentences.
        rows: number of queries that see such a key.
        sentences: number of sentences with such queries.
    """

    share: float
    baseline: float
    error: float
    rows: int
    sentences: int

    @property
    def evidence(self) -> float:
        """Evidence minus two standard errors: 0 for uniform attention, 1 for all attention."""
        # Queries that see keys of this kind alone cannot attend elsewhere, so their share proves
        # nothing.
        if self.baseline >= 1.0 or not math.isfinite(self.error):
            return 0.0
        # Uniform attention in a sentence of two words gives half to the previous word; the baseline
        # corrects for that.
        return max(0.0, (self.share - 2 * self.error - self.baseline) / (1.0 - self.baseline))

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON data; an infinite error is null, since JSON has no infinity."""
        return {**super().plain(), "error": self.error if math.isfinite(self.error) else None}


@dataclass(frozen=True, eq=False)
class BatchRows:
    """Queries and keys of a batch, independent of the attention weights.

    Args:
        real: [B, Lq] bool mask of queries without padding.
        visible: [B, H or 1, Lq, Lk] bool mask of the keys that each query sees.
        offset: [B, Lq, Lk] float64 differences of key and query position; None for cross-attention.
        kinds: [B, C, Lq, Lk] bool mask of the keys of each kind.
    """

    real: Tensor
    visible: Tensor
    offset: Tensor | None
    kinds: Tensor


class Tally:
    """Running sums of one layer's heads.

    Args:
        num_heads: number of heads H.
        kinds: names of the C kinds of key.
    """

    def __init__(self, num_heads: int, kinds: Sequence[str]) -> None:
        self.kinds = tuple(kinds)
        double = torch.float64
        self.rows = 0
        self.sentences = 0
        # [5, H]: entropy, its largest value, distance, offset and largest weight of each head.
        self.sums = torch.zeros(5, num_heads, dtype=double)
        # [6, C, H]: shares, baselines and rows; then number, means and squares over sentences.
        self.shares = torch.zeros(6, len(self.kinds), num_heads, dtype=double)

    def add(self, weights: Tensor, rows: BatchRows) -> None:
        """Add the attention weights of a batch to the sums.

        Args:
            weights: [B, H, Lq, Lk] weights; queries without a visible key are not counted.
            rows: queries and keys of the same batch.
        """
        # Sums are in float64, so the split into batches does not change the measures.
        weights = weights.detach().double().cpu()
        visible = rows.visible.expand(weights.shape)
        visible_keys = visible.sum(-1)  # [B, H, Lq]
        counted = rows.real[:, None] & (visible_keys > 0)
        self.rows += int(counted[:, 0].sum())
        self.sentences += int(counted[:, 0].any(-1).sum())
        # `xlogy` is 0 at 0; w * log(w) would be NaN for hidden keys.
        entropy = -torch.special.xlogy(weights, weights).sum(-1)
        offset = torch.zeros_like(entropy)
        distance = offset
        if rows.offset is not None:
            offset = (weights * rows.offset[:, None]).sum(-1)
            distance = (weights * rows.offset[:, None].abs()).sum(-1)
        confidence = weights.amax(-1)
        # log n: the entropy of uniform attention to the n visible keys is the largest there is.
        largest = visible_keys.clamp(min=1).double().log()
        values = torch.stack([entropy, largest, distance, offset, confidence])
        self.sums += (values * counted).sum((1, 3))
        for number in range(len(self.kinds)):
            self._add_share(
                number, weights, visible & rows.kinds[:, number, None], visible_keys, counted
            )

    def _add_share(
        self, kind: int, weights: Tensor, keys: Tensor, visible_keys: Tensor, counted: Tensor
    ) -> None:
        # Queries without such a key (no token before the first one) would pull the mean down.
        present = counted & keys.any(-1)  # [B, H, Lq]
        share = (weights * keys).sum(-1) * present
        baseline = keys.sum(-1) / visible_keys.clamp(min=1) * present
        rows = present.sum(-1)  # [B, H]
        # Queries of one sentence are dependent, so the standard error is over sentences (a cluster
        # estimate).
        mean = share.sum(-1) / rows.clamp(min=1)
        sums = self.shares[:, kind]
        sums[0] += share.sum((0, 2))
        sums[1] += baseline.sum((0, 2))
        sums[2] += rows.sum(0)
        sums[3] += (rows > 0).sum(0)
        sums[4] += mean.sum(0)
        sums[5] += mean.square().sum(0)

    def means(self, head: int) -> tuple[float, float, float, float, float]:
        """Return means over queries: entropy, its maximum, distance, offset and confidence."""
        entropy, largest, distance, offset, confidence = (
            self.sums[:, head] / max(self.rows, 1)
        ).tolist()
        return entropy, largest, distance, offset, confidence

    def share(self, kind: str, head: int) -> AttentionShare | None:
        """Return the share of a kind of key; None where no query sees such a key."""
        total, base, rows, sentences, means, squares = self.shares[
            :, self.kinds.index(kind), head
        ].tolist()
        if not rows:
            return None
        error = math.inf
        if sentences > 1:
            # Rounding can leave a difference of squares just below 0.
            variance = max(0.0, squares - means**2 / sentences) / (sentences - 1)
            error = math.sqrt(variance / sentences)
        return AttentionShare(total / rows, base / rows, error, int(rows), int(sentences))


Links = Sequence[Collection[tuple[int, int]]]
"""Pairs of source and target word indices of each sentence, from 0."""

STRONG = 0.5
"""Least evidence for a label: Clark (2019) name heads with more than half of their attention."""
BROAD = 0.95
"""Least share of the largest possible entropy for the label `broad`."""
FEWEST_ROWS, FEWEST_SENTENCES = 100, 10
"""Least numbers of queries and sentences for a label."""
# Entropy of uniform attention to 4 keys; over fewer, nearly every head looks broad.
_SPREAD = math.log(4)

# Source and target have no positions in common, so no token is the previous, next or same one.
_CROSS = ("first", "separator", "rare")
_SELF = ("previous", "next", "first", "same", "repeated", "separator", "rare")

MEANING: Mapping[str, str] = {
    "previous": "on the token before",
    "next": "on the token after",
    "first": "on the first token",
    "same": "on the token itself",
    "repeated": "on the same token elsewhere",
    "separator": "on special tokens after the first",
    "rare": "on the rarest token of the sentence",
    "aligned": "on tokens of the aligned words",
    "broad": "spread evenly",
}
"""Meaning of the kinds, to follow "0.92 of attention is …"."""


@dataclass(frozen=True)
class HeadLabel(Result):
    """A name for the pattern of a head.

    Args:
        kind: kind of key, one of `MEANING`.
        evidence: evidence from 0 for uniform attention to 1 for all attention; for `broad`, the
            share of the largest possible entropy.
        why: explanation in words.
    """

    kind: str
    evidence: float
    why: str


@dataclass(frozen=True)
class HeadMeasures(Result):
    """Measures of one head over a corpus.

    Args:
        layer: index of the layer.
        head: index of the head.
        entropy: mean entropy of a query's attention, in nats.
        largest_entropy: mean natural logarithm of the number of keys that a query sees.
        confidence: mean of a query's largest weight.
        distance: mean distance from query to key, in tokens; None for cross-attention.
        offset: mean signed distance, below 0 for keys before the query; None for cross-attention.
        shares: shares of attention by kind of key; kinds that no query sees are absent.
        label: label of the head; None without strong evidence.
    """

    layer: int
    head: int
    entropy: float
    largest_entropy: float
    confidence: float
    distance: float | None
    offset: float | None
    shares: Mapping[str, AttentionShare]
    label: HeadLabel | None


@dataclass(frozen=True)
class Measures(Result):
    """Measures of all heads of one kind of attention over a corpus.

    Args:
        part: kind of attention.
        sentences: number of sentences.
        rows: number of queries.
        heads: measures of the heads that were not pruned, by layer, then by head.
    """

    part: AttentionPart
    sentences: int
    rows: int
    heads: tuple[HeadMeasures, ...]

    def head(self, layer: int, head: int) -> HeadMeasures:
        """Return the measures of one head."""
        return next(h for h in self.heads if (h.layer, h.head) == (layer, head))


def measure(
    subject: Subject,
    readings: Sequence[ModelInput],
    part: AttentionPart | None = None,
    *,
    links: Links | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Measures:
    """Measure every head of one kind of attention.

    Args:
        subject: the model.
        readings: inputs of the corpus, from `read_all`.
        part: kind of attention; None for the default of `attention`.
        links: aligned words of each sentence for cross-attention, from `align_words` or from
            annotators; without them there is no `aligned` share.
        batch_tokens: positions per batch; changes no result.

    Raises:
        ModelError: when the model has no such attention.
        DataError: when the corpus is empty, or the links do not fit the sentences.
    """
    part = part or usual_part(subject.model)
    layers = attentions(subject.model, part)
    if not readings:
        raise DataError("There is no text to measure heads on")
    if links is not None and (len(links) != len(readings) or part != "cross"):
        raise DataError(f"Links of {len(links)} sentences for {len(readings)} of {part} attention")
    kinds = _SELF if part != "cross" else _CROSS if links is None else ("aligned", *_CROSS)
    # Frequencies in this corpus: the tokenizer does not keep those of its training data.
    counts = Counter(
        id
        for _, tokens in (rows_and_columns(reading, part) for reading in readings)
        for id, special in zip(tokens.ids, tokens.special, strict=True)
        if not special
    )
    tallies = {
        f"{address}.weights": Tally(layer.module.num_heads, kinds)
        for address, layer in layers.items()
    }
    for numbers in batches(readings, batch_tokens):
        batch = [readings[number] for number in numbers]
        linked = None if links is None else [links[number] for number in numbers]
        inputs = tensors(subject, batch)
        rows = _rows(subject, batch, inputs, part, (kinds, counts, linked))
        # Summed during the pass: weights of a whole corpus would not fit into memory.
        run(subject.model, inputs, Reduced(tallies, functools.partial(_add, tallies, rows)))
    by_layer = list(tallies.values())
    heads = tuple(
        _measures_of_head(layer, head, by_layer[layer], part)
        for layer, sublayer in enumerate(layers.values())
        for head in sublayer.heads
    )
    return Measures(part, len(readings), by_layer[0].rows, heads)


def label_of(
    entropy: float, largest: float, shares: Mapping[str, AttentionShare]
) -> HeadLabel | None:
    """Return the label of a head by its entropy and shares; None without strong evidence."""
    enough = {
        kind: share
        for kind, share in shares.items()
        if share.rows >= FEWEST_ROWS and share.sentences >= FEWEST_SENTENCES
    }
    best = max(enough, key=lambda kind: enough[kind].evidence, default=None)
    if best is not None and enough[best].evidence >= STRONG:
        share = enough[best]
        why = (
            f"{share.share:.2f} of attention is {MEANING[best]}, where even attention would give "
            f"{share.baseline:.2f} ({share.rows:,} rows of {share.sentences:,} sentences)"
        )
        return HeadLabel(best, share.evidence, why)
    # A head can be broad and still have a pattern; the pattern says more, so it comes first.
    if enough and largest >= _SPREAD and entropy >= BROAD * largest:
        why = f"entropy of {entropy:.2f} nats, where even attention would have {largest:.2f}"
        return HeadLabel("broad", entropy / largest, why)
    return None


def _add(
    tallies: Mapping[str, Tally], rows: Mapping[str, BatchRows], address: str, weights: Tensor
) -> None:
    tallies[address].add(weights, rows[address])


def _measures_of_head(layer: int, head: int, tally: Tally, part: AttentionPart) -> HeadMeasures:
    entropy, largest, distance, offset, confidence = tally.means(head)
    by_kind = {kind: tally.share(kind, head) for kind in tally.kinds}
    shares = {kind: share for kind, share in by_kind.items() if share is not None}
    across = part == "cross"
    return HeadMeasures(
        layer,
        head,
        entropy,
        largest,
        confidence,
        None if across else distance,
        None if across else offset,
        shares,
        label_of(entropy, largest, shares),
    )


def _rows(
    subject: Subject,
    readings: Sequence[ModelInput],
    inputs: Sequence[Tensor],
    part: AttentionPart,
    corpus: tuple[Sequence[str], Counter[int], Links | None],
) -> dict[str, BatchRows]:
    """Return masks and distances of a batch by the address of the attention weights."""
    kinds, counts, links = corpus
    stack, keys_of = ("decoder", "encoder") if part == "cross" else (part, part)
    positions = Positions(
        query=stack_positions(readings, inputs, stack).cpu(),
        key=stack_positions(readings, inputs, keys_of).cpu(),
    )
    query, key = positions.query[:, :, None], positions.key[:, None, :]  # [B, Lq, 1], [B, 1, Lk]
    # Positions of padding are −1.
    real = key >= 0
    columns = [rows_and_columns(reading, part)[1] for reading in readings]
    size = key.shape[-1]
    special = _padded([side.special for side in columns], size).bool()[:, None]
    ids = _padded([side.ids for side in columns], size, -1)
    frequency = _padded([[counts[id] for id in side.ids] for side in columns], size)[:, None]
    # Special tokens are not in the counts, and would be the rarest of all.
    frequency = frequency.masked_fill(special | ~real, torch.iinfo(torch.int64).max)
    rarest = frequency == frequency.amin(-1, keepdim=True)
    # Functions, so that only the masks of the kinds asked for are built.
    masks_by_kind = {
        "previous": lambda: key == query - 1,
        "next": lambda: key == query + 1,
        "first": lambda: key == 0,
        "same": lambda: key == query,
        "repeated": lambda: (ids[:, None] == ids[:, :, None]) & (key != query) & ~special,
        "separator": lambda: special & (key > 0),
        "rare": lambda: rarest & ~special,
        "aligned": lambda: _linked(subject, readings, links or [], (query.shape[1], size)),
    }
    shape = (len(readings), query.shape[1], size)
    masks = torch.stack([(masks_by_kind[kind]() & real).expand(shape) for kind in kinds], dim=1)
    offset = None if part == "cross" else (key - query).double()
    return {
        f"{address}.weights": BatchRows(
            positions.query >= 0, positions.visible(layer.mask), offset, masks
        )
        for address, layer in attentions(subject.model, part).items()
    }


def _padded(rows: Sequence[Sequence[int]], size: int, filler: int = 0) -> Tensor:
    return torch.tensor([[*row, *[filler] * (size - len(row))] for row in rows])


def _linked(
    subject: Subject, readings: Sequence[ModelInput], links: Links, shape: tuple[int, int]
) -> Tensor:
    """Return a mask [B, Lq, Lk] of token pairs that belong to aligned words."""
    aligned = torch.zeros(len(readings), *shape, dtype=torch.bool)
    before = len(subject.source.first)
    for reading, pairs, matrix in zip(readings, links, aligned, strict=True):
        (_, source_words), (_, target_words) = pair_words(subject, reading)
        linked = set(pairs)
        for row, target_word in enumerate(target_words):
            for column, source_word in enumerate(source_words):
                matrix[row, before + column] = (source_word, target_word) in linked
    return aligned
