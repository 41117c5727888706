"""The entry to all search: settings decide between beam search, greedy search and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from heedful.decode.beam import BeamSearch, Cohort
from heedful.decode.constraints import build_constraints
from heedful.decode.narrow import narrow
from heedful.decode.protocol import AttentiveModel, Hypothesis, Specials, State, StepModel
from heedful.decode.sampling import sample
from heedful.decode.scoring import rank_by_coverage
from heedful.decode.settings import SearchSettings
from heedful.decode.shortlist import Lists
from heedful.decode.trace import SearchTrace
from heedful.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Sources(Generic[State]):
    """Sentences whose search begins together.

    Args:
        ids: [B, S] int64.
        positions: [B, S] int64, −1 for padding, on any side.
        prefixes: ids each sentence's hypotheses begin with. A prefix wins over every other rule
            and over the longest length.
        names: a number for each sentence that its random draws depend on; its row number if unset.
        begun: what the model's `start` gave for these sources, where it has read them already.
        lists: what each sentence may be made of; anything if unset. Probabilities are those of
            tokens on a sentence's list among each other. A translator or an ensemble of some.
    """

    ids: Tensor
    positions: Tensor
    prefixes: Sequence[Sequence[int]] | None = None
    names: Sequence[int] | None = None
    begun: State | None = None
    lists: Lists | None = None


Searched = tuple[Sources[State], list[list[Hypothesis]]]
"""Sources and the hypotheses of each sentence."""


class Search(Generic[State]):
    """A search that sentences can be added to while others are searched.

    For example, as a server does it:

        searching = Search(model, settings, specials)
        while True:
            for sources in arrived():
                searching.add(sources)
            for sources, found in searching.step():
                answer(sources, found)

    Samples are drawn at once when their sentences are added. A search over lists takes further
    sentences when those before them are done: a batch has lists of its own.

    Args:
        model: known only by start, step and reorder, and by join if some are to join others.
        settings: of the search.
        specials: the model's special ids.
        longest: most tokens the model can generate, if its positions end somewhere.
        trace: watches a search that nobody joins; it changes nothing.

    Raises:
        ConfigError: when a trace of samples is asked for, which nothing searches for.
    """

    def __init__(
        self,
        model: StepModel[State],
        settings: SearchSettings,
        specials: Specials,
        longest: int | None = None,
        trace: SearchTrace | None = None,
    ) -> None:
        if settings.sampling and trace is not None:
            raise ConfigError(
                "Samples are drawn one by one: there is no search to trace", where="sampling = true"
            )
        self.model = model
        self.settings = settings
        self.specials = specials
        self.longest = longest
        self.trace = trace
        self._beams: BeamSearch[Any] | None = None
        self._going: dict[Cohort, Sources[State]] = {}
        self._ready: list[Searched[State]] = []

    @property
    def alive(self) -> int:
        """Sentences that are searched at present."""
        return 0 if self._beams is None else self._beams.alive

    @torch.inference_mode()
    def add(self, sources: Sources[State]) -> None:
        """Begin to search for more sentences, at least one."""
        limits = self._limits(sources)
        limit_of = torch.tensor(limits, device=sources.ids.device)
        model: StepModel[Any] = self.model
        begun, known, prefixes = sources.begun, self.specials, sources.prefixes
        if (lists := sources.lists) is not None:
            assert self.trace is None, "a trace would tell of places in lists"
            model, begun = narrow(model, lists, begun), None
            known = lists.specials(known)
            prefixes = None if prefixes is None else lists.places(prefixes)
        rules = build_constraints(self.settings, known, limit_of, prefixes)
        read = (sources.ids, sources.positions)
        if self.settings.sampling:
            reader = model if begun is None else _Begun(model, begun)
            names = range(len(limits)) if sources.names is None else sources.names
            name_of = torch.tensor(names, device=limit_of.device)
            found = sample(reader, *read, self.settings, known, rules, limit_of, name_of)
            self._ready.append((sources, self._ranked(sources, found)))
            return
        if self._beams is None or lists is not None:
            assert not self.alive, "sentences with lists join nobody"
            self._beams = BeamSearch(model, self.settings, known, self.trace)
        self._going[self._beams.add(*read, rules, limits, begun)] = sources

    @torch.inference_mode()
    def step(self) -> list[Searched[State]]:
        """One more token of every hypothesis.

        Returns:
            The sources all of whose sentences are done now, with up to `n_best` hypotheses of each
            sentence, best first. They are distinct unless they were sampled.

        Raises:
            ConfigError: when a coverage penalty is asked of a model without attention.
        """
        if self._beams is not None:
            for cohort in self._beams.step():
                sources = self._going.pop(cohort)
                self._ready.append((sources, self._ranked(sources, cohort.hypotheses())))
        ready, self._ready = self._ready, []
        return ready

    def _limits(self, sources: Sources[State]) -> list[int]:
        """The most tokens of each sentence."""
        limits = []
        for row, length in enumerate((sources.positions >= 0).sum(1).tolist()):
            limit = self.settings.longest(length)
            if self.longest is not None:
                limit = min(limit, self.longest)
            prefixes = sources.prefixes
            limits.append(limit if prefixes is None else max(limit, len(prefixes[row])))
        return limits

    def _ranked(
        self, sources: Sources[State], found: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        if sources.lists is not None:
            found = sources.lists.restored(found)
        strength = self.settings.coverage_penalty
        if strength:
            if not isinstance(self.model, AttentiveModel):
                raise ConfigError(
                    "The coverage penalty needs a model with attention", where="coverage_penalty"
                )
            found = rank_by_coverage(
                self.model, sources.ids, sources.positions, found, self.specials, strength
            )
        return [hypotheses[: self.settings.n_best] for hypotheses in found]


def search(
    model: StepModel[State],
    source: Tensor,
    source_positions: Tensor,
    settings: SearchSettings,
    *,
    specials: Specials,
    prefixes: Sequence[Sequence[int]] | None = None,
    names: Sequence[int] | None = None,
    longest: int | None = None,
    trace: SearchTrace | None = None,
    begun: State | None = None,
    lists: Lists | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence of one batch, best first, or samples of it.

    Args:
        model, settings, specials, longest, trace: as for `Search`.
        source: [B, S] int64.
        source_positions: [B, S] int64, −1 for padding, on any side.
        prefixes, names, begun, lists: as for `Sources`.

    Returns:
        Up to `n_best` hypotheses of each sentence. They are distinct unless they were sampled.

    Raises:
        ConfigError: when a coverage penalty is asked of a model without attention, or a trace of
            samples, which nothing searches for.
    """
    searching = Search(model, settings, specials, longest, trace)
    if source.shape[0] == 0:
        return []
    searching.add(Sources(source, source_positions, prefixes, names, begun, lists))
    while not (done := searching.step()):
        pass
    return done[0][1]


@dataclass(frozen=True)
class _Begun(Generic[State]):
    """A `StepModel` that has read its sources."""

    model: StepModel[State]
    state: State

    def start(self, source: Tensor, source_positions: Tensor) -> State:
        return self.state

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        return self.model.step(state, tokens)

    def reorder(self, state: State, rows: Tensor) -> State:
        return self.model.reorder(state, rows)
