"""The one entry to search: settings decide between beam search, greedy search and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from heedful.decode.beam import beam_search
from heedful.decode.constraints import build_constraints
from heedful.decode.narrow import narrow
from heedful.decode.protocol import AttentiveModel, Hypothesis, Specials, State, StepModel
from heedful.decode.sampling import sample
from heedful.decode.scoring import rank_by_coverage
from heedful.decode.settings import SearchSettings
from heedful.decode.shortlist import Lists
from heedful.decode.trace import SearchTrace
from heedful.errors import ConfigError


@torch.inference_mode()
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
    """The best hypotheses of each sentence, best first, or samples of it.

    Args:
        model: known only by start, step and reorder.
        source: [B, S] int64.
        source_positions: [B, S] int64, −1 for padding, on any side.
        settings: of the search.
        specials: the model's special ids.
        prefixes: ids each sentence's hypotheses begin with. A prefix wins over every other rule
            and over the longest length.
        names: a number for each sentence that its random draws depend on; its row number if unset.
        longest: most tokens the model can generate, if its positions end somewhere.
        trace: watches the search; it changes nothing and costs nothing where there is none.
        begun: what the model's `start` gave for these sources, where it has read them already.
        lists: what each sentence may be made of; anything if unset. Probabilities are those of
            tokens on a sentence's list among each other. A translator or an ensemble of some.

    Returns:
        Up to `n_best` hypotheses of each sentence. They are distinct unless they were sampled.

    Raises:
        ConfigError: when a coverage penalty is asked of a model without attention, or a trace of
            samples, which nothing searches for.
    """
    if settings.sampling and trace is not None:
        raise ConfigError(
            "Samples are drawn one by one: there is no search to trace", where="sampling = true"
        )
    count = source.shape[0]
    if count == 0:
        return []
    limits = []
    for row, length in enumerate((source_positions >= 0).sum(1).tolist()):
        limit = settings.longest(length)
        if longest is not None:
            limit = min(limit, longest)
        limits.append(limit if prefixes is None else max(limit, len(prefixes[row])))
    limit_of = torch.tensor(limits, device=source.device)
    reader: StepModel[Any] = model if begun is None else _Begun(model, begun)
    known = specials
    if lists is not None:
        assert trace is None, "a trace would tell of places in lists"
        reader, known = narrow(model, lists, begun), lists.specials(specials)
        prefixes = None if prefixes is None else lists.places(prefixes)
    rules = build_constraints(settings, known, limit_of, prefixes)
    if settings.sampling:
        name_of = torch.tensor(range(count) if names is None else names, device=source.device)
        found = sample(reader, source, source_positions, settings, known, rules, limit_of, name_of)
    else:
        found = beam_search(
            reader, source, source_positions, settings, known, rules, limit_of, trace
        )
    if lists is not None:
        found = lists.restored(found)
    if settings.coverage_penalty:
        if not isinstance(model, AttentiveModel):
            raise ConfigError(
                "The coverage penalty needs a model with attention", where="coverage_penalty"
            )
        strength = settings.coverage_penalty
        found = rank_by_coverage(model, source, source_positions, found, specials, strength)
    return [hypotheses[: settings.n_best] for hypotheses in found]


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
