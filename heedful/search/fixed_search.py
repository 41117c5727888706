"""Searches on fixed memory where the model's engine supports it, else by definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.search.beam import BestContinuations, beam_search
from heedful.search.fixed_beam import BeamJob
from heedful.search.fixed_rules import FixedRules
from heedful.search.fixed_run import FixedModel, FixedRun
from heedful.search.fixed_sampling import SamplingJob
from heedful.search.sampling import draws, sample
from heedful.search.search_settings import Hypothesis
from heedful.search.step_model import SearchTask, Selection, State

if TYPE_CHECKING:
    from heedful.search.search_trace import SearchTrace


def search_beams(
    task: SearchTask[State], selection: Selection, trace: SearchTrace | None
) -> list[list[Hypothesis]]:
    """Search like `beam_search` with the same arguments, on fixed memory where possible.

    Diverse groups, required phrases and traces need the host in every step.
    """
    if trace is None and isinstance(selection, BestContinuations):
        fixed = _fixed(task, task.settings.beam)
        if fixed is not None:
            model, rules = fixed
            job = BeamJob(task.settings, rules, task.limits)
            return job.hypotheses(_parts(FixedRun(model, job, _first(model, task))))
    return beam_search(task, selection, trace)


def draw_samples(task: SearchTask[State], names: Tensor) -> list[list[Hypothesis]]:
    """Draw like `sample` with the same arguments, on fixed memory where possible."""
    fixed = _fixed(task, task.settings.n_best)
    if fixed is None:
        return sample(task, names)
    model, rules = fixed
    job = SamplingJob(task.settings, task.specials, rules, task.limits, names)
    return job.hypotheses(_parts(FixedRun(model, job, _first(model, task))))


def draw_tokens(task: SearchTask[State], names: Tensor) -> Iterator[int]:
    """Draw one sample of one sentence like `draws`; yield its tokens, the end token last.

    On fixed memory a token is yielded while the next is computed, so that the device is never idle.
    """
    fixed = _fixed(task, 1)
    if fixed is None:
        for step in draws(task, names):
            yield int(step.tokens)
        return
    # The mode is entered for each step: around the loop, a generator would leave it on in its
    # caller.
    with torch.inference_mode():
        model, rules = fixed
        job = SamplingJob(task.settings, task.specials, rules, task.limits, names)
        # One step ahead keeps the device busy, without delaying a reader by a second one.
        run = FixedRun(model, job, _first(model, task), ahead=1)
    for report in _reports(run):
        yield report[-1]  # the graph has one row, so the last value is its token


@torch.inference_mode()
def _reports(run: FixedRun) -> Iterator[list[int]]:
    """Yield reports of one sentence in a graph of one row."""
    for _, report in run.reports():
        yield report


def _parts(run: FixedRun) -> Sequence[tuple[list[int], int, Any]]:
    # Reports move the search on; their values are for readers of a stream of text.
    for _ in run.reports():
        pass
    return run.parts


def _fixed(task: SearchTask[State], width: int) -> tuple[FixedModel, FixedRules] | None:
    """Return the fixed memory of a model and the rules; None where a graph cannot hold them."""
    model, rules = FixedModel.of(task.model, task.state), FixedRules.of(task.rules)
    if model is None or rules is None:
        return None
    # The end token takes one step more than the longest text.
    steps = int(task.limits.max()) + 1
    return None if model.steps.refusal(model.state, steps, width) else (model, rules)


def _first(fixed: FixedModel, task: SearchTask[State]) -> Tensor:
    """Return the first tokens of a search, [B, 1] int64."""
    if fixed.first is not None:
        return fixed.first
    shape, device = (len(task.limits), 1), task.limits.device
    return torch.full(shape, task.specials.bos, dtype=torch.int64, device=device)
