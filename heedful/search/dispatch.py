"""The entry to all search: settings decide between beam search, greedy search and sampling."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.errors import ConfigError
from heedful.search.beam import BestContinuations, beam_search
from heedful.search.constraints import build_constraints
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials
from heedful.search.step_model import SearchTask, Selection, State, StepModel

# Samples, diverse groups, phrases, shortlists, coverage and searches on fixed memory are imported
# by the branches that run them: a plain beam search reads a third as many modules.
if TYPE_CHECKING:
    from heedful.search.required_phrases import Requirements
    from heedful.search.restricted_vocabulary import RestrictedVocabulary
    from heedful.search.search_trace import SearchTrace


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
    vocabulary: RestrictedVocabulary | None = None,
    required: Requirements | None = None,
) -> list[list[Hypothesis]]:
    """Search for the best hypotheses of each sentence of a batch, or draw samples of it.

    Args:
        model: translator, language model with a prompt, or ensemble.
        source: ids [B, S] int64.
        source_positions: positions [B, S] int64; −1 is padding, on any side.
        settings: settings of the search.
        specials: special ids of the model.
        prefixes: ids that each sentence's hypotheses begin with. A prefix wins over every other
            rule and over the longest length.
        names: key of each sentence in the generator of random numbers; its row number if None.
        longest: most tokens the model can generate; None without a table of positions.
        trace: record of the steps of a beam search; it changes nothing.
        begun: result of the model's `start` for these sources, if any.
        vocabulary: allowed tokens of each sentence, for translators; all if None. Probabilities
            are then normalised over a sentence's own tokens.
        required: phrases that each sentence's hypotheses must contain. A hypothesis may lack some
            if its beam or its longest length was too small; these are its `missing` phrases.

    Returns:
        Up to `n_best` hypotheses of each sentence, best first. They are distinct unless they were
        sampled.

    Raises:
        ConfigError: when a coverage penalty meets a model without attention, or phrases or a trace
            are requested of samples.
    """
    _refuse_contradictions(settings, required, trace)
    if source.shape[0] == 0:  # kernels and `max` refuse empty tensors
        return []
    stepping: StepModel[Any] = model
    known, state = specials, begun
    if vocabulary is not None:
        assert trace is None, "a trace would name tokens by their index in a list"
        from heedful.search.restricted_vocabulary import restrict

        stepping, state = restrict(model, vocabulary, begun), None
        known = vocabulary.specials(specials)
        prefixes = None if prefixes is None else vocabulary.indices(prefixes)
        required = None if required is None else required.restricted(vocabulary)
    # Each alternative is a group with a beam of its own, and is searched like a sentence.
    groups = max(1, settings.alternatives)
    limits = _limits(source_positions, settings, prefixes, longest)
    # With a restricted vocabulary no list holds reserved tokens.
    forbidden = [] if required is None or vocabulary is not None else required.forbidden()
    if groups > 1:
        limits = limits.repeat_interleave(groups)
        prefixes = None if prefixes is None else [p for p in prefixes for _ in range(groups)]
        forbidden = [row for row in forbidden for _ in range(groups)]
    rules = build_constraints(settings, known, limits, prefixes, forbidden)
    if state is None:
        state = stepping.start(source, source_positions)
    if settings.sampling:
        from heedful.search.fixed_search import draw_samples

        name_of = torch.tensor(names or range(len(limits)), device=source.device)
        task = SearchTask(stepping, state, settings, known, rules, limits)
        results = draw_samples(task, name_of)
    else:
        selection = _selection(settings, known, required, source.device)
        each = settings
        if groups > 1:
            rows = torch.arange(len(source), device=source.device).repeat_interleave(groups)
            state = stepping.reorder(state, rows[:, None])
            each = settings.model_copy(update={"n_best": settings.beam})
        task = SearchTask(stepping, state, each, known, rules, limits)
        if _has_fixed_steps(stepping):
            from heedful.search.fixed_search import search_beams

            results = search_beams(task, selection, trace)
        else:
            results = beam_search(task, selection, trace)
        if groups > 1:
            from heedful.search.diverse_beam import merged_groups

            results = merged_groups(results, groups)
        if required is not None and required.any_phrases:
            results = required.checked(results, settings.length_penalty)
    if vocabulary is not None:
        results = vocabulary.with_ids(results)
    # Coverage comes last, as it needs token ids, and attention of whole hypotheses.
    if penalty := settings.coverage_penalty:
        from heedful.search.scoring import rank_by_coverage

        results = rank_by_coverage(model, source, source_positions, results, specials, penalty)
    return [hypotheses[: settings.n_best] for hypotheses in results]


def stream_tokens(
    model: StepModel[State],
    source: Tensor,
    source_positions: Tensor,
    settings: SearchSettings,
    *,
    specials: Specials,
    name: int,
    limit: int,
) -> Generator[int, None, None]:
    """Sample one sequence, or take the best token at every step; yield each token as it is known.

    Args:
        model: language model with a prompt.
        source: ids [1, S] int64.
        source_positions: positions [1, S] int64.
        settings: settings of the search; greedy unless it samples.
        specials: special ids of the model.
        name: key in the generator of random numbers.
        limit: most tokens.

    Yields:
        Token ids, without the end token.
    """
    from heedful.search.fixed_search import draw_tokens

    limits = torch.tensor([limit], device=source.device)
    rules = build_constraints(settings, specials, limits, None)
    # Greedy decoding is sampling from the single most probable token.
    drawn = settings if settings.sampling else settings.model_copy(update={"top_k": 1})
    names = torch.tensor([name], device=source.device)
    with torch.inference_mode():
        state = model.start(source, source_positions)
    task = SearchTask(model, state, drawn, specials, rules, limits)
    for token in draw_tokens(task, names):
        if token == specials.eos:
            return
        yield token


def _refuse_contradictions(
    settings: SearchSettings, required: Requirements | None, trace: SearchTrace | None
) -> None:
    sampling = "sampling = true"
    if settings.sampling and trace is not None:
        what = "Samples are drawn one by one: there is no search to trace"
        raise ConfigError(what, where=sampling)
    if required is None or not required.any_phrases:
        return
    if settings.sampling:
        raise ConfigError(
            "Required phrases need a beam search; samples are drawn token by token",
            where=sampling,
            remedy="Search instead, or protect no parts of the text and give no glossary",
        )
    if settings.alternatives > 1:
        raise ConfigError(
            "Alternatives that differ cannot be searched for with required phrases",
            where=f"alternatives = {settings.alternatives}",
            remedy="Ask for n_best, or protect no parts of the text and give no glossary",
        )


def _selection(
    settings: SearchSettings,
    specials: Specials,
    required: Requirements | None,
    device: torch.device,
) -> Selection:
    """Return the selection of a beam search."""
    if settings.alternatives > 1:
        from heedful.search.diverse_beam import DiverseGroups

        return DiverseGroups(settings.beam, specials.eos, settings.alternatives, settings.diversity)
    if required is None or not required.any_phrases:
        return BestContinuations(settings.beam, specials.eos)
    from heedful.search.required_phrases import PhraseSelection

    return PhraseSelection.of(required, settings.beam, specials.eos, device)


def _has_fixed_steps(model: object) -> bool:
    """Return True for an engine that can decode on fixed memory, or a `Continuation` of it."""
    while model is not None:
        if getattr(model, "fixed_steps", None) is not None:
            return True
        # A `Continuation` wraps the model, or a cached model that wraps it again.
        model = getattr(model, "model", None)
    return False


def _limits(
    source_positions: Tensor,
    settings: SearchSettings,
    prefixes: Sequence[Sequence[int]] | None,
    longest: int | None,
) -> Tensor:
    """Return the most tokens of each sentence [B] int64, the end token not counted."""
    limits = []
    for row, length in enumerate((source_positions >= 0).sum(1).tolist()):
        limit = settings.longest(length)
        if longest is not None:
            limit = min(limit, longest)
        limits.append(limit if prefixes is None else max(limit, len(prefixes[row])))
    return torch.tensor(limits, device=source_positions.device)
