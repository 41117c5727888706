"""Translations of segments, found while others begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.data.batches import source_tensors
from heedful.decode.aligned import Alignment
from heedful.decode.alignment import align, attention_of
from heedful.decode.assembly import Found, distinct
from heedful.decode.protocol import Hypothesis, Specials, StepModel
from heedful.decode.search import Search, Sources
from heedful.decode.segments import Segment
from heedful.decode.settings import SearchSettings
from heedful.decode.shortlist import Shortlist
from heedful.text.pair import TokenizerPair


@dataclass(frozen=True)
class Work:
    """A segment with what its search needs besides the settings."""

    segment: Segment
    name: int
    prefix: Sequence[int]


@dataclass(frozen=True)
class Asked:
    """What is to be found for segments.

    Args:
        model: the translator, or an ensemble of some.
        tokenizers: of source and target.
        work: the segments.
        settings: of the search.
        longest: most tokens the model can generate, if its positions end somewhere.
        aligned: whether alignments are asked for.
        shortlist: of what translations are made; of anything if unset.
    """

    model: StepModel[Any]
    tokenizers: TokenizerPair
    work: Sequence[Work]
    settings: SearchSettings
    longest: int | None
    aligned: bool
    shortlist: Shortlist | None


class Translating:
    """A `Decoder` of segments, by their numbers.

    Args:
        asked: what is to be found.
        device: where the model is.
    """

    def __init__(self, asked: Asked, device: torch.device) -> None:
        self.asked = asked
        self.device = device
        target = asked.tokenizers.target
        self.specials = Specials(pad=target.pad, bos=target.bos, eos=target.eos)
        settings = asked.settings
        self.several = settings.n_best > 1 and not settings.sampling
        if self.several:
            # Different tokens may spell the same text, so a list of texts needs some in reserve.
            settings = settings.model_copy(update={"n_best": settings.beam})
        self._search = Search(asked.model, settings, self.specials, asked.longest)
        self._numbers: dict[Sources[Any], list[int]] = {}

    @property
    def alive(self) -> int:
        """See `Decoder`."""
        return self._search.alive

    def add(self, numbers: list[int]) -> None:
        """See `Decoder`."""
        asked = self.asked
        work = [asked.work[number] for number in numbers]
        ids = [each.segment.ids for each in work]
        source, positions = (
            t.to(self.device) for t in source_tensors(ids, asked.tokenizers.source)
        )
        prefixes = [each.prefix for each in work]
        lists = None
        if asked.shortlist is not None:
            lists = asked.shortlist.lists(ids, prefixes, self.specials, self.device)
        sources = Sources(
            source,
            positions,
            prefixes=prefixes,
            names=[each.name for each in work],
            # Alignments look at the same sources once more.
            begun=asked.model.start(source, positions) if asked.aligned else None,
            lists=lists,
        )
        self._numbers[sources] = numbers
        self._search.add(sources)

    def step(self) -> list[tuple[list[int], list[Found]]]:
        """See `Decoder`."""
        return [
            (numbers, self._found([self.asked.work[i] for i in numbers], sources.begun, found))
            for sources, found in self._search.step()
            for numbers in [self._numbers.pop(sources)]
        ]

    def _found(
        self, work: Sequence[Work], begun: Any, found: list[list[Hypothesis]]
    ) -> list[Found]:
        if self.several:
            most = self.asked.settings.n_best
            written = self.asked.tokenizers.target
            found = [distinct(hypotheses, written)[:most] for hypotheses in found]
        if not self.asked.aligned:
            return [Found(hypotheses, None) for hypotheses in found]
        model = self.asked.model
        alignments: list[list[Alignment]] = [[] for _ in work]
        for rank in range(max(map(len, found))):
            rows = [i for i, hypotheses in enumerate(found) if rank < len(hypotheses)]
            targets = [found[i][rank].tokens for i in rows]
            state = model.reorder(begun, torch.tensor(rows, device=self.device)[:, None])
            weights = attention_of(model, state, targets, self.specials).double().cpu()
            for i, target, each in zip(rows, targets, weights, strict=True):
                alignments[i].append(self._align(each, work[i].segment, target))
        return [Found(*pair) for pair in zip(found, alignments, strict=True)]

    def _align(self, weights: Tensor, segment: Segment, target: Sequence[int]) -> Alignment:
        tokenizers = self.asked.tokenizers
        source_side = (tokenizers.source, segment.ids, segment.text)
        text = tokenizers.target.decode(target)
        return align(weights, source_side, (tokenizers.target, target, text))
