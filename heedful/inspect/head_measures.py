"""Measures of each head's attention over a corpus, and a label for heads with a clear pattern.

The kinds are those of Clark (2019) and Voita (2019); the measures and the conditions of a label are
in the design page on inspection. Sums over rows are exact for any batch size.

Shapes: B sentences, H heads, C kinds of key, Lq queries, Lk keys.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.errors import DataError
from heedful.inspect.attention_maps import AttentionPart, attentions, rows_and_columns, usual_part
from heedful.inspect.readings import BATCH_TOKENS, ModelInput, batches, stack_positions, tensors
from heedful.inspect.subject import Result, Subject, run
from heedful.nn.capture import Capture
from heedful.nn.positions import Positions
from heedful.search.alignment import token_words


@dataclass(frozen=True)
class AttentionShare(Result):
    """The share of a head's attention on keys of some kind.

    Args:
        share: mean over the rows in which such a key can be visible_keys.
        baseline: the share of attention spread evenly over the keys that those rows see.
        error: standard error of the share, from its means in each sentence; infinite for fewer than
            two sentences.
        rows: number of these rows.
        sentences: number of sentences with such rows.
    """

    share: float
    baseline: float
    error: float
    rows: int
    sentences: int

    @property
    def evidence(self) -> float:
        """Evidence from 0 for even attention to 1 for all of it, less two standard errors."""
        if self.baseline >= 1.0 or not math.isfinite(self.error):
            return 0.0
        return max(0.0, (self.share - 2 * self.error - self.baseline) / (1.0 - self.baseline))

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON data; an error that is not known is null."""
        return {**super().plain(), "error": self.error if math.isfinite(self.error) else None}


@dataclass(frozen=True, eq=False)
class BatchRows:
    """The rows of a batch, before any attention is known.

    Args:
        real: [B, Lq] bool, queries that are no padding.
        visible: [B, H or 1, Lq, Lk] bool, the keys each query sees.
        offset: [B, Lq, Lk] float64, key position minus query position; None across sequences.
        kinds: [B, C, Lq, Lk] bool, for each kind of key.
    """

    real: Tensor
    visible: Tensor
    offset: Tensor | None
    kinds: Tensor


class Tally:
    """Running sums of one layer's heads.

    Args:
        num_heads: H.
        kinds: names of the kinds of key.
    """

    def __init__(self, num_heads: int, kinds: Sequence[str]) -> None:
        self.kinds = tuple(kinds)
        double = torch.float64
        self.rows = 0
        self.sentences = 0
        # Of each head: entropy, its largest value, distance, offset, largest weight.
        self.sums = torch.zeros(5, num_heads, dtype=double)
        # Of each kind and head: shares, baselines, rows, and over sentences: number, means, squares
        self.shares = torch.zeros(6, len(self.kinds), num_heads, dtype=double)

    def add(self, weights: Tensor, rows: BatchRows) -> None:
        """Count a batch.

        Args:
            weights: [B, H, Lq, Lk]; rows that see nothing are not counted.
            rows: of the same batch.
        """
        weights = weights.detach().double().cpu()
        visible = rows.visible.expand(weights.shape)
        visible_keys = visible.sum(-1)  # [B, H, Lq]
        counted = rows.real[:, None] & (visible_keys > 0)
        self.rows += int(counted[:, 0].sum())
        self.sentences += int(counted[:, 0].any(-1).sum())
        entropy = -torch.special.xlogy(weights, weights).sum(-1)
        offset = torch.zeros_like(entropy)
        distance = offset
        if rows.offset is not None:
            offset = (weights * rows.offset[:, None]).sum(-1)
            distance = (weights * rows.offset[:, None].abs()).sum(-1)
        confidence = weights.amax(-1)
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
        present = counted & keys.any(-1)  # [B, H, Lq]
        share = (weights * keys).sum(-1) * present
        baseline = keys.sum(-1) / visible_keys.clamp(min=1) * present
        rows = present.sum(-1)  # [B, H]
        mean = share.sum(-1) / rows.clamp(min=1)
        sums = self.shares[:, kind]
        sums[0] += share.sum((0, 2))
        sums[1] += baseline.sum((0, 2))
        sums[2] += rows.sum(0)
        sums[3] += (rows > 0).sum(0)
        sums[4] += mean.sum(0)
        sums[5] += mean.square().sum(0)

    def means(self, head: int) -> tuple[float, float, float, float, float]:
        """Return means over rows: entropy, the largest it can be, distance, offset, confidence."""
        entropy, largest, distance, offset, confidence = (
            self.sums[:, head] / max(self.rows, 1)
        ).tolist()
        return entropy, largest, distance, offset, confidence

    def share(self, kind: str, head: int) -> AttentionShare | None:
        """Return the share of a kind; None where no row sees a key of it."""
        total, base, rows, sentences, means, squares = self.shares[
            :, self.kinds.index(kind), head
        ].tolist()
        if not rows:
            return None
        error = math.inf
        if sentences > 1:
            variance = max(0.0, squares - means**2 / sentences) / (sentences - 1)
            error = math.sqrt(variance / sentences)
        return AttentionShare(total / rows, base / rows, error, int(rows), int(sentences))


Links = Sequence[Collection[tuple[int, int]]]
"""For each sentence pairs of a source word and a target word, counted from 0."""

STRONG = 0.5
"""Evidence from which a head is labelled."""
BROAD = 0.95
"""Share of the largest entropy from which a head is broad."""
FEWEST_ROWS, FEWEST_SENTENCES = 100, 10
"""A head is not labelled on less."""
_SPREAD = math.log(4)

_SELF = ("previous", "next", "first", "same", "repeated", "separator", "rare")
_CROSS = ("first", "separator", "rare")

MEANING: Mapping[str, str] = {
    "previous": "on the token before",
    "next": "on the token after",
    "first": "on the first token",
    "same": "on the token itself",
    "repeated": "on the same piece elsewhere",
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
        kind: a key of `MEANING`.
        evidence: 0 for even attention, 1 for all of it; for `broad`, share of the largest entropy.
        why: a sentence for people.
    """

    kind: str
    evidence: float
    why: str


@dataclass(frozen=True)
class HeadMeasures(Result):
    """One head over a corpus.

    Args:
        layer: from 0.
        head: from 0.
        entropy: mean of a row's, in nats.
        largest_entropy: mean of the natural logarithm of the number of keys a row sees.
        confidence: mean of a row's largest weight.
        distance: mean distance from query to key, in tokens; None across sequences.
        offset: the same with a sign, below 0 for keys before the query.
        shares: by kind of key; kinds that no row sees are left out.
        label: None where no evidence is strong.
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
    """All heads of a part over a corpus.

    Args:
        part: encoder, decoder or cross.
        sentences: number of sentences.
        rows: number of rows of attention.
        heads: by layer, then by head, without those that were pruned.
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
    """Measure every head of a part.

    Args:
        subject: the model.
        readings: the corpus, from `read_all`.
        part: as for `attention`.
        links: for cross-attention, the aligned words of each sentence, from `align_words` or from
            people; without them there is no `aligned` share.
        batch_tokens: positions that go through the model together; changes no result.

    Raises:
        ModelError: when the model has no such attention.
        DataError: when there is nothing to measure on, or links do not fit.
    """
    part = part or usual_part(subject.model)
    layers = attentions(subject.model, part)
    if not readings:
        raise DataError("There is no text to measure heads on")
    if links is not None and (len(links) != len(readings) or part != "cross"):
        raise DataError(f"Links of {len(links)} sentences for {len(readings)} of {part} attention")
    kinds = _SELF if part != "cross" else _CROSS if links is None else ("aligned", *_CROSS)
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
        run(subject.model, inputs, _Tallies(tallies, rows))
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
    """Return the label of a head, if the evidence is strong.

    Args:
        entropy: mean entropy of its rows.
        largest: mean of the largest entropy they could have.
        shares: of its attention.
    """
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
    if enough and largest >= _SPREAD and entropy >= BROAD * largest:
        why = f"entropy of {entropy:.2f} nats, where even attention would have {largest:.2f}"
        return HeadLabel("broad", entropy / largest, why)
    return None


class _Tallies(Capture):
    """Adds the weights of each layer to its tally as they come, and keeps none."""

    def __init__(self, tallies: Mapping[str, Tally], rows: Mapping[str, BatchRows]) -> None:
        super().__init__(tallies)
        self.tallies = tallies
        self.rows = rows

    def keep(self, address: str, value: Tensor) -> None:
        self.tallies[address].add(value, self.rows[address])


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
    """Return visible keys, distances and kinds of keys of a batch by the address of the weights.

    Args:
        corpus: kinds of key, how often each id occurs, links of the batch.
    """
    kinds, counts, links = corpus
    stack, keys_of = ("decoder", "encoder") if part == "cross" else (part, part)
    at = Positions(
        query=stack_positions(readings, inputs, stack).cpu(),
        key=stack_positions(readings, inputs, keys_of).cpu(),
    )
    query, key = at.query[:, :, None], at.key[:, None, :]
    real = key >= 0
    columns = [rows_and_columns(reading, part)[1] for reading in readings]
    size = key.shape[-1]
    special = _padded([side.special for side in columns], size).bool()[:, None]
    ids = _padded([side.ids for side in columns], size, -1)
    number_of = _padded([[counts[id] for id in side.ids] for side in columns], size)[:, None]
    # No special token is rare, whatever its count.
    number_of = number_of.masked_fill(special | ~real, torch.iinfo(torch.int64).max)
    rarest = number_of == number_of.amin(-1, keepdim=True)
    tests = {
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
    masks = torch.stack([(tests[kind]() & real).expand(shape) for kind in kinds], dim=1)
    offset = None if part == "cross" else (key - query).double()
    return {
        f"{address}.weights": BatchRows(at.query >= 0, at.visible(layer.mask), offset, masks)
        for address, layer in attentions(subject.model, part).items()
    }


def _padded(rows: Sequence[Sequence[int]], size: int, filler: int = 0) -> Tensor:
    return torch.tensor([[*row, *[filler] * (size - len(row))] for row in rows])


def _linked(
    subject: Subject, readings: Sequence[ModelInput], links: Links, shape: tuple[int, int]
) -> Tensor:
    """Mark pairs of tokens that belong to aligned words [B, Lq, Lk]."""
    aligned = torch.zeros(len(readings), *shape, dtype=torch.bool)
    before = len(subject.source.first)
    for reading, pairs, matrix in zip(readings, links, aligned, strict=True):
        assert reading.predicted is not None
        source = _inner(reading.tokens("encoder").ids, before, len(subject.source.last))
        target = _inner(reading.predicted.ids, 0, 1)
        source_words = token_words(subject.source, source, reading.text)[1]
        target_words = token_words(subject.target, target, reading.target or "")[1]
        linked = set(pairs)
        for row, target_word in enumerate(target_words):
            for column, source_word in enumerate(source_words):
                matrix[row, before + column] = (source_word, target_word) in linked
    return aligned


def _inner(ids: Sequence[int], before: int, after: int) -> Sequence[int]:
    return ids[before : len(ids) - after]
