"""What each head looks at, measured over a corpus, and a name for those of clear habits.

The kinds are those of Clark (2019) and Voita (2019); what is measured and when a head gets a label
is in the design page on inspection.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.decode.alignment import token_words
from heedful.errors import DataError
from heedful.inspect.captures import run
from heedful.inspect.maps import Part, heads_of, module_of, parts_of, sides, weight_addresses
from heedful.inspect.reading import BATCH_TOKENS, Reading, batches, tensors
from heedful.inspect.subject import Subject
from heedful.inspect.tally import Rows, Share, Tally
from heedful.nn.capture import Capture
from heedful.nn.positions import Positions

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
"""What the kinds mean, to follow "0.92 of attention is …"."""


@dataclass(frozen=True)
class Label:
    """A name for what a head does.

    Args:
        kind: a key of `MEANING`.
        evidence: 0 for even attention, 1 for all of it; for `broad`, share of the largest entropy.
        why: a sentence for people.
    """

    kind: str
    evidence: float
    why: str


@dataclass(frozen=True)
class HeadMeasures:
    """One head over a corpus.

    Args:
        layer: from 0.
        head: from 0.
        entropy: mean of a row's, in nats.
        largest_entropy: mean of the natural logarithm of the number of keys a row sees.
        confidence: mean of a row's largest weight.
        distance: mean distance of what is looked at, in tokens; None across sequences.
        offset: the same with a sign, below 0 for what came before.
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
    shares: Mapping[str, Share]
    label: Label | None

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            **self.__dict__,
            "shares": {kind: share.plain() for kind, share in self.shares.items()},
            "label": None if self.label is None else dict(self.label.__dict__),
        }


@dataclass(frozen=True)
class Measures:
    """All heads of a part over a corpus.

    Args:
        part: whose attention.
        sentences: how many were read.
        rows: how many rows of attention.
        heads: by layer, then by head, without those that were pruned.
    """

    part: Part
    sentences: int
    rows: int
    heads: tuple[HeadMeasures, ...]

    def head(self, layer: int, head: int) -> HeadMeasures:
        """One of them."""
        return next(h for h in self.heads if (h.layer, h.head) == (layer, head))

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {**self.__dict__, "heads": [head.plain() for head in self.heads]}


def measure(
    subject: Subject,
    readings: Sequence[Reading],
    part: Part | None = None,
    *,
    links: Links | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Measures:
    """Measure every head of a part.

    Args:
        subject: the model.
        readings: the corpus, from `read_all`.
        part: as for `attention`.
        links: for cross-attention, which words are aligned, such as `align_words` finds them or
            people annotated them; without them there is no `aligned` share.
        batch_tokens: positions that go through the model together; changes no result.

    Raises:
        ModelError: when the model has no such attention.
        DataError: when there is nothing to measure on, or links do not fit.
    """
    part = part or parts_of(subject.model)[-1]
    addresses = weight_addresses(subject.model, part)
    if not readings:
        raise DataError("There is no text to measure heads on")
    if links is not None and (len(links) != len(readings) or part != "cross"):
        raise DataError(f"Links of {len(links)} sentences for {len(readings)} of {part} attention")
    kinds = _SELF if part != "cross" else _CROSS if links is None else ("aligned", *_CROSS)
    counts = Counter(
        id
        for _, tokens in (sides(reading, part) for reading in readings)
        for id, special in zip(tokens.ids, tokens.special, strict=True)
        if not special
    )
    num_heads = heads_of(subject.model, part)
    tallies = {address: Tally(num_heads, kinds) for address in addresses}
    for numbers in batches(readings, batch_tokens):
        chosen = [readings[number] for number in numbers]
        linked = None if links is None else [links[number] for number in numbers]
        inputs = tensors(subject, chosen)
        rows = _rows(subject, chosen, inputs, part, (kinds, counts, linked))
        run(subject.model, inputs, _Fold(tallies, rows))
    heads = tuple(
        _head(layer, head, tallies[address], part)
        for layer, address in enumerate(addresses)
        for head in module_of(subject.model, part, layer).kept.heads
    )
    return Measures(part, len(readings), tallies[addresses[0]].rows, heads)


def label_of(entropy: float, largest: float, shares: Mapping[str, Share]) -> Label | None:
    """The name of what a head does, if the evidence is strong.

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
        return Label(best, share.evidence, why)
    if enough and largest >= _SPREAD and entropy >= BROAD * largest:
        why = f"entropy of {entropy:.2f} nats, where even attention would have {largest:.2f}"
        return Label("broad", entropy / largest, why)
    return None


class _Fold(Capture):
    """Adds the weights of each layer to its tally as they come, and keeps none."""

    def __init__(self, tallies: Mapping[str, Tally], rows: Rows) -> None:
        super().__init__(tallies)
        self.tallies = tallies
        self.rows = rows

    def keep(self, address: str, value: Tensor) -> None:
        self.tallies[address].add(value, self.rows)


def _head(layer: int, head: int, tally: Tally, part: Part) -> HeadMeasures:
    entropy, largest, distance, offset, most = tally.means(head)
    found = {kind: tally.share(kind, head) for kind in tally.kinds}
    shares = {kind: share for kind, share in found.items() if share is not None}
    across = part == "cross"
    return HeadMeasures(
        layer,
        head,
        entropy,
        largest,
        most,
        None if across else distance,
        None if across else offset,
        shares,
        label_of(entropy, largest, shares),
    )


def _rows(
    subject: Subject,
    readings: Sequence[Reading],
    inputs: Sequence[Tensor],
    part: Part,
    asked: tuple[Sequence[str], Counter[int], Links | None],
) -> Rows:
    """What can be said of a batch without a pass."""
    kinds, counts, links = asked
    at = _positions(readings, inputs, part)
    visible = at.visible(module_of(subject.model, part).mask)
    query, key = at.query[:, :, None], at.key[:, None, :]
    real = key >= 0
    columns = [sides(reading, part)[1] for reading in readings]
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
    return Rows(at.query >= 0, visible, offset, masks)


def _positions(readings: Sequence[Reading], inputs: Sequence[Tensor], part: Part) -> Positions:
    if readings[0].image is not None:
        places = torch.arange(readings[0].length).expand(len(readings), -1)
        return Positions.of_self(places)
    if part == "cross":
        return Positions(query=inputs[3].cpu(), key=inputs[1].cpu())
    # A translator's decoder comes after its encoder.
    return Positions.of_self(inputs[3 if len(inputs) > 3 and part == "decoder" else 1].cpu())


def _padded(rows: Sequence[Sequence[int]], size: int, filler: int = 0) -> Tensor:
    return torch.tensor([[*row, *[filler] * (size - len(row))] for row in rows])


def _linked(
    subject: Subject, readings: Sequence[Reading], links: Links, shape: tuple[int, int]
) -> Tensor:
    """[B, Lq, Lk]: whether tokens are of aligned words."""
    found = torch.zeros(len(readings), *shape, dtype=torch.bool)
    before = len(subject.source.first)
    for reading, pairs, matrix in zip(readings, links, found, strict=True):
        assert reading.encoder is not None and reading.predicted is not None
        source = _inner(reading.encoder.ids, before, len(subject.source.last))
        target = _inner(reading.predicted.ids, 0, 1)
        source_words = token_words(subject.source, source, reading.text)[1]
        target_words = token_words(subject.target, target, reading.target or "")[1]
        wanted = set(pairs)
        for row, target_word in enumerate(target_words):
            for column, source_word in enumerate(source_words):
                matrix[row, before + column] = (source_word, target_word) in wanted
    return found


def _inner(ids: Sequence[int], before: int, after: int) -> Sequence[int]:
    return ids[before : len(ids) - after]
