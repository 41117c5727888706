"""Searches on fixed memory where the model is an engine that decodes so, else by definition."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.search.beam import beam_search
from heedful.search.beam_selection import BestContinuations, Selection
from heedful.search.constraints import Constraints
from heedful.search.fixed_beam import BeamJob
from heedful.search.fixed_rules import FixedRules
from heedful.search.fixed_run import FixedModel, FixedRun
from heedful.search.fixed_sampling import SamplingJob
from heedful.search.sampling import draws, sample
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials
from heedful.search.search_trace import SearchTrace
from heedful.search.step_model import State, StepModel


def search_beams(
    model: StepModel[State],
    state: State,
    settings: SearchSettings,
    specials: Specials,
    rules: Constraints,
    limits: Tensor,
    selection: Selection,
    trace: SearchTrace | None,
) -> list[list[Hypothesis]]:
    """Search as `beam_search` does with these arguments, on fixed memory where that serves.

    Other ways of choosing than the best continuations, and traces, need the host in every step.
    """
    known = FixedRules.of(rules)
    if trace is None and known is not None and isinstance(selection, BestContinuations):
        fixed = _fixed(model, state, settings.beam, limits)
        if fixed is not None:
            job = BeamJob(settings, known, limits)
            run = FixedRun(fixed, job, _first(fixed, specials, limits))
            for _ in run.reports():
                pass
            return job.hypotheses(run.parts)
    return beam_search(model, state, settings, specials, rules, limits, selection, trace)


def draw_samples(
    model: StepModel[State],
    state: State,
    settings: SearchSettings,
    specials: Specials,
    rules: Constraints,
    limits: Tensor,
    names: Tensor,
) -> list[list[Hypothesis]]:
    """Draw as `sample` does with these arguments, on fixed memory where that serves."""
    known = FixedRules.of(rules)
    fixed = None if known is None else _fixed(model, state, settings.n_best, limits)
    if fixed is None or known is None:
        return sample(model, state, settings, specials, rules, limits, names)
    job = SamplingJob(settings, specials, known, limits, names)
    run = FixedRun(fixed, job, _first(fixed, specials, limits))
    for _ in run.reports():
        pass
    return job.hypotheses(run.parts)


def draw_tokens(
    model: StepModel[State],
    state: State,
    settings: SearchSettings,
    specials: Specials,
    rules: Constraints,
    limits: Tensor,
    names: Tensor,
) -> Iterator[int]:
    """Draw one sample of one sentence as `draws` does; yield its tokens, the end token last.

    On fixed memory a token comes when the next is under way, so that the device is never idle.
    """
    known = FixedRules.of(rules)
    fixed = None if known is None else _fixed(model, state, 1, limits)
    if fixed is None or known is None:
        for step in draws(model, state, settings, specials, rules, limits, names):
            yield int(step.tokens)
        return
    with torch.inference_mode():
        job = SamplingJob(settings, specials, known, limits, names)
        run = FixedRun(fixed, job, _first(fixed, specials, limits), ahead=1)
    for report in _reports(run):
        yield report[-1]


@torch.inference_mode()
def _reports(run: FixedRun) -> Iterator[list[int]]:
    """Yield reports of one sentence in a graph of one row."""
    for _, report in run.reports():
        yield report


def _fixed(model: object, state: object, width: int, limits: Tensor) -> FixedModel | None:
    """The fixed memory of a model, for a search of that width and those limits."""
    fixed = FixedModel.of(model, state)
    if fixed is None:
        return None
    steps = int(limits.max()) + 1
    return None if fixed.steps.refusal(fixed.state, steps, width) else fixed


def _first(fixed: FixedModel, specials: Specials, limits: Tensor) -> Tensor:
    """The tokens to read first, [B, 1] int64."""
    if fixed.first is not None:
        return fixed.first
    return torch.full((len(limits), 1), specials.bos, dtype=torch.int64, device=limits.device)
