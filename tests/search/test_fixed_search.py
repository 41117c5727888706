"""Searches on fixed memory: the results of the definition, whatever comes and goes."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.engines.class_exchange import copy_model
from heedful.engines.inference import fixed_decoder
from heedful.engines.inference.cuda_graphs import Shape
from heedful.engines.inference.gpu_model import use_graphs
from heedful.errors import ModelError
from heedful.search import fixed_run
from heedful.search.constraints import Moment, build_constraints
from heedful.search.dispatch import search, stream_tokens
from heedful.search.fixed_beam import BeamJob
from heedful.search.fixed_rules import FixedRules, RuleRows
from heedful.search.required_phrases import Requirements
from heedful.search.sampling import random_numbers, random_numbers_on
from heedful.search.search_settings import GenerationSettings, SearchSettings
from heedful.search.step_model import Continuation

from .fixed_models import (
    KINDS,
    PIECES,
    SEARCHES,
    SPECIALS,
    alike,
    batch,
    language_model,
    translator,
)


class NoLooking(TorchDispatchMode):
    """Refuses operations whose course or shape depends on numbers, and tensors of the host's.

    A GPU would be waited for, or the graph not be made.
    """

    REFUSED = frozenset(
        f"aten::{name}"
        for name in (
            *("item", "_local_scalar_dense", "is_nonzero", "equal", "allclose"),
            *("nonzero", "nonzero_static", "nonzero_numpy", "argwhere"),
            *("masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"),
            *("lift_fresh", "scalar_tensor", "_pin_memory"),
        )
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func._schema.name not in self.REFUSED, func
        assert (func._schema.name, "Scalar" in func._overloadname) != ("aten::where", True), func
        if func._schema.name in ("aten::index", "aten::index_put_", "aten::_index_put_impl_"):
            assert all(each is None or each.dtype == torch.int64 for each in args[1]), func
        return func(*args, **(kwargs or {}))


class Recorder:
    """Instead of a graph: counts what is recorded and replayed, and records nothing as it runs."""

    def __init__(self, *, watches: bool = False) -> None:
        self.made: list[Counter] = []
        self.watches = watches

    def __call__(self, compute):
        count = Counter()
        self.made.append(count)

        def replay():
            count["replays"] += 1
            with NoLooking() if self.watches else nullcontext():
                return compute()

        return replay

    @property
    def replays(self) -> int:
        return sum(each["replays"] for each in self.made)


def graphed(model, recorder=None):
    engine = copy_model(model)
    recorder = Recorder() if recorder is None else recorder
    use_graphs(engine, lambda compute: compute, recorder)
    return engine, recorder


BATCHES = [[9, 4, 1, 7, 12, 3, 3, 8, 2, 6, 5, 11], [5], [20, 17, 3]]


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_gives_what_the_definition_gives(name) -> None:
    settings, model = SearchSettings(**SEARCHES[name]), translator()
    engine, recorder = graphed(model)
    lengths = set()
    for seed, sizes in enumerate(BATCHES * 2):
        given = (*batch(sizes, seed), settings)
        wanted = search(model, *given, specials=SPECIALS)
        alike(search(engine, *given, specials=SPECIALS), wanted)
        lengths |= {len(h.tokens) for hypotheses in wanted for h in hypotheses}
    assert recorder.replays > 20
    assert len(lengths) > 3


@pytest.mark.parametrize("name", KINDS)
def test_any_decoder_of_attention_is_served(name) -> None:
    model = translator(**KINDS[name])
    engine, recorder = graphed(model)
    for changes in ({"beam": 4, "n_best": 4, "min_length": 6}, {"beam": 1, "min_length": 6}):
        given = (*batch([9, 4, 1, 7, 20], 3), SearchSettings(**changes))
        alike(search(engine, *given, specials=SPECIALS), search(model, *given, specials=SPECIALS))
    assert recorder.replays > 5


@pytest.mark.parametrize("name", SEARCHES)
def test_a_step_looks_at_no_number(name) -> None:
    model = translator(positions="learned")
    engine, recorder = graphed(model, Recorder(watches=True))
    asked = {"specials": SPECIALS, "prefixes": [[7, 8], [], [11]]}
    given = (*batch([5, 3, 8], 4), SearchSettings(**SEARCHES[name]))
    alike(search(engine, *given, **asked), search(model, *given, **asked))
    assert recorder.replays > 0


def test_a_step_of_a_prompt_looks_at_no_number() -> None:
    engine, recorder = graphed(language_model(), Recorder(watches=True))
    for settings in (GenerationSettings(beam=2), GenerationSettings(sampling=True)):
        continuation = Continuation(engine, vocabulary=PIECES, ends=[3], limit=20)
        search(continuation, *batch([4, 2], 6), settings, specials=continuation.specials)
    assert recorder.replays > 0


@pytest.mark.parametrize(
    "changes", [{"beam": 3, "min_length": 24}, {"sampling": True, "n_best": 3}]
)
def test_sentences_that_are_done_leave(changes, monkeypatch) -> None:
    moves = []
    take = fixed_decoder.FixedDecoder.take

    def counted(self, other, rows, used):
        moves.append((other.shape, self.shape))
        return take(self, other, rows, used)

    monkeypatch.setattr(fixed_decoder.FixedDecoder, "take", counted)
    model = translator()
    engine, _ = graphed(model)
    given = (*batch([*range(1, 41)], 5), SearchSettings(**changes))
    alike(search(engine, *given, specials=SPECIALS), search(model, *given, specials=SPECIALS))
    assert any(new.rows < old.rows and new.slots == old.slots for old, new in moves)
    assert any(new.slots > old.slots for old, new in moves)


def test_a_copy_of_an_engine_has_no_fixed_memory() -> None:
    engine, recorder = graphed(translator())
    copy = copy_model(engine)
    copy.output_bias = torch.nn.Parameter(torch.eye(PIECES)[7] * 99.0)
    given = (*batch([3, 2], 1), SearchSettings(beam=2, max_length=5))
    found = search(copy, *given, specials=SPECIALS)
    assert [h[0].tokens for h in found] == [(7,) * 5] * 2
    assert recorder.made == []


def test_wide_beams_are_left_to_the_definition() -> None:
    model = translator()
    engine, recorder = graphed(model)
    given = (*batch([3, 2], 1), SearchSettings(beam=17, max_length=5))
    alike(search(engine, *given, specials=SPECIALS), search(model, *given, specials=SPECIALS))
    assert recorder.made == []


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_steps_past_the_end_change_nothing(ahead, monkeypatch) -> None:
    monkeypatch.setattr(fixed_run.FixedRun.__init__, "__defaults__", (ahead,))
    model = translator()
    engine, _ = graphed(model)
    for changes in ({"beam": 4, "n_best": 4}, {"sampling": True, "n_best": 3}):
        given = (*batch([9, 4, 1, 7, 20], 3), SearchSettings(**changes))
        alike(search(engine, *given, specials=SPECIALS), search(model, *given, specials=SPECIALS))


def test_sentences_that_are_done_stay_as_they_are() -> None:
    """Even where a hypothesis that ends later would be ranked first."""
    rules = FixedRules(SPECIALS.eos, (), 0, 0, None, None)
    job = BeamJob(SearchSettings(beam=2, n_best=2), rules, torch.tensor([9, 9]))
    board = job.board(Shape(4, 2, 64, 0, torch.float32))
    job.begin(board, torch.full((2, 1), SPECIALS.bos))
    board.running[1] = False
    logits = torch.zeros(4, 2, PIECES)
    logits[..., SPECIALS.eos] = 9.0
    board.update(logits)
    assert board.best.rank[0, 0] > -1.0
    assert (board.best.rank[1] == -torch.inf).all()


@pytest.mark.parametrize("changes", [{"beam": 3}, {"beam": 1}, {"sampling": True, "n_best": 2}])
def test_prefixes_and_forbidden_tokens(changes) -> None:
    model = translator()
    engine, recorder = graphed(model)
    asked = {
        "specials": SPECIALS,
        "prefixes": [[7, 8, 9], [], [11]],
        "required": Requirements([[], [], []], None, tuple(range(20, 45)))
        if "sampling" not in changes
        else None,
    }
    given = (*batch([5, 3, 8], 4), SearchSettings(**changes))
    wanted = search(model, *given, **asked)
    alike(search(engine, *given, **asked), wanted)
    assert wanted[0][0].tokens[:3] == (7, 8, 9)
    assert recorder.made


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize(
    "changes", [{}, {"beam": 3, "n_best": 2}, {"sampling": True, "n_best": 2, "top_k": 5}]
)
def test_a_prompt_is_continued(cache, changes) -> None:
    model = language_model()
    engine, recorder = graphed(model)
    settings = GenerationSettings(max_length=40, **changes)
    for lengths in ([7, 3, 1], [2], [7, 3, 1]):
        found = []
        for each in (engine, model):
            continuation = Continuation(
                each.with_cache(cache, 60), vocabulary=PIECES, ends=[3, 8], limit=40
            )
            specials = continuation.specials
            found.append(search(continuation, *batch(lengths, 6), settings, specials=specials))
        alike(*found)
    assert recorder.replays > 20


def test_a_text_that_never_ends_is_cut() -> None:
    model = language_model(positions="learned")
    engine, _ = graphed(model)
    found = []
    for each in (engine, model):
        continuation = Continuation(each, vocabulary=PIECES, ends=[], limit=90)
        given = (continuation, *batch([4, 2], 6), GenerationSettings(max_length=90))
        found.append(search(*given, specials=continuation.specials))
    alike(*found)
    assert {len(h.tokens) for hypotheses in found[0] for h in hypotheses} == {90}


@pytest.mark.parametrize("changes", [{}, {"sampling": True}])
def test_a_stream_of_tokens(changes) -> None:
    model = language_model()
    engine, recorder = graphed(model)
    settings = GenerationSettings(max_length=30, **changes)
    for _ in range(2):
        found = []
        for each in (engine, model):
            continuation = Continuation(each, vocabulary=PIECES, ends=[3], limit=30)
            given = (continuation, *batch([4], 6), settings)
            asked = {"specials": continuation.specials, "name": 3, "limit": 30}
            found.append(list(stream_tokens(*given, **asked)))
        assert found[0] == found[1]
        assert len(found[0]) > 2
    assert len(recorder.made) == 1
    abandoned = stream_tokens(*given, **asked)
    next(abandoned)
    abandoned.close()


def test_two_searches_at_once() -> None:
    model = language_model()
    engine, recorder = graphed(model)
    settings = GenerationSettings(max_length=30, sampling=True)
    streams, wanted = [], []
    for seed in (1, 2):
        for each, into in ((engine, streams), (model, wanted)):
            continuation = Continuation(each, vocabulary=PIECES, ends=[3], limit=30)
            asked = {"specials": continuation.specials, "name": seed, "limit": 30}
            into.append(stream_tokens(continuation, *batch([4], seed), settings, **asked))
    found = [[], []]
    for _ in range(31):
        for tokens, stream in zip(found, streams, strict=True):
            tokens += [next(stream, None)]
    assert [[t for t in tokens if t is not None] for tokens in found] == list(map(list, wanted))
    assert len(recorder.made) == 2


def test_what_cannot_be_recorded_runs_all_the_same() -> None:
    asked = Counter()

    def refuse(compute):
        asked["times"] += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    model = translator()
    engine, _ = graphed(model, refuse)
    given = (*batch([9, 4, 1], 3), SearchSettings(beam=4))
    for _ in range(3):
        alike(search(engine, *given, specials=SPECIALS), search(model, *given, specials=SPECIALS))
    assert asked["times"] == 1


@pytest.mark.parametrize("changes", [{"beam": 4, "alternatives": 2, "n_best": 2}])
def test_what_a_graph_cannot_hold_is_left_to_the_definition(changes) -> None:
    model = translator()
    engine, _ = graphed(model)
    given = (*batch([9, 4, 1], 3), SearchSettings(**changes))
    alike(search(engine, *given, specials=SPECIALS), search(model, *given, specials=SPECIALS))
    assert not engine.fixed_steps._kept


@pytest.mark.parametrize("changes", [{"beam": 3}, {"sampling": True}])
def test_a_model_that_gives_no_numbers(changes) -> None:
    model = copy_model(translator())
    model.output_projection.weight = torch.nn.Parameter(model.output_weight * torch.nan)
    engine, _ = graphed(model)
    with pytest.raises(ModelError, match="not"):
        search(engine, *batch([5, 3], 4), SearchSettings(**changes), specials=SPECIALS)


def test_programs_are_few(monkeypatch) -> None:
    monkeypatch.setattr(fixed_decoder, "MOST_KEPT", 3)
    engine, _ = graphed(translator())
    for rows in (1, 2, 4, 8, 16, 24):
        given = (*batch([3] * rows, rows), SearchSettings(beam=2, max_length=5))
        search(engine, *given, specials=SPECIALS)
    assert sum(map(len, engine.fixed_steps._kept.values())) == 3


def test_programs_have_little_memory(monkeypatch) -> None:
    engine, _ = graphed(translator())
    monkeypatch.setattr(engine.fixed_steps, "_kept_limit", 200_000)
    for rows in (1, 8, 16, 24):
        given = (*batch([3] * rows, rows), SearchSettings(beam=2, max_length=5))
        search(engine, *given, specials=SPECIALS)
        kept = [each.bytes for programs in engine.fixed_steps._kept.values() for each in programs]
        assert len(kept) == 1 or sum(kept) <= 200_000
    assert kept[-1] > 200_000  # the latest is kept in any case


def test_memory_that_ran_out_is_taken_from_programs_kept(monkeypatch) -> None:
    model = translator()
    engine, _ = graphed(model)
    given = (*batch([3, 2], 1), SearchSettings(beam=2, max_length=5))
    wanted = search(model, *given, specials=SPECIALS)
    search(engine, *given, specials=SPECIALS)
    made = fixed_decoder.FixedDecoder.__init__
    full = Counter()

    def once(self, *args):
        full["times"] += 1
        if full["times"] == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        made(self, *args)

    monkeypatch.setattr(fixed_decoder.FixedDecoder, "__init__", once)
    more = (*batch([3] * 9, 1), SearchSettings(beam=2, max_length=5))
    alike(search(engine, *more, specials=SPECIALS), search(model, *more, specials=SPECIALS))
    assert full["times"] > 1
    alike(search(engine, *given, specials=SPECIALS), wanted)


@pytest.mark.parametrize("step", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("small", [False, True])
def test_constraints_are_those_of_the_host(step, small) -> None:
    settings = SearchSettings(min_length=2, no_repeat_ngram=0 if small else 2)
    vocabulary = 6 if small else 30
    limits = torch.tensor([4, 9, 4])
    forbidden = [[1, 4, 5], [4], [1, 5]] if small else [[7, 8], [9], []]
    prefixes = [[4, 5], [], [5, 5, 5]]
    rules = build_constraints(settings, SPECIALS, limits, prefixes, forbidden)
    seeded = torch.Generator().manual_seed(step)
    scores = torch.randn(3, 2, vocabulary, generator=seeded)
    history = torch.randint(3, vocabulary, (3, 2, step), generator=seeded)
    moment = Moment(step, torch.arange(3), history)
    found = [scores.clone() for _ in range(3)]
    rules.apply(found[0], moment)
    demanded = rules._demanded(moment)
    if demanded is not None:
        rules._apply_on_device(found[1], moment, demanded)
        assert torch.equal(found[1], found[0])
    fixed = FixedRules.of(rules)
    rows = RuleRows(fixed, (4, 2, 8), limits.device)
    rows.load(fixed, limits, torch.arange(3))
    for past in range(step):
        tokens = torch.cat([history[..., past], torch.zeros(1, 2, dtype=torch.int64)])
        rows.remember(tokens, None, torch.tensor([past]))
    padded = torch.cat([scores, torch.zeros(1, 2, vocabulary)])
    rows.apply(padded, torch.tensor([step]))
    assert torch.equal(padded[:3], found[0])


def test_random_numbers_are_those_of_the_host() -> None:
    names = torch.tensor([0, 5, 2**40, 12345])
    for seed, step in ((0, 0), (7, 3), (2**62 + 9, 1000)):
        wanted = random_numbers(seed, names, 4, step)
        found = random_numbers_on(torch.tensor([seed]), names, 4, torch.tensor([step]))
        assert torch.equal(found, wanted)


def test_copies_come_some_steps_later() -> None:
    ahead, number = fixed_run.Lookahead(2), torch.zeros(1, dtype=torch.int64)
    seen = []
    for step in range(5):
        number.fill_(step)
        ahead.send(f"step {step}", number)
        seen.append(list(ahead.arrived()))
    assert seen == [[], [], [("step 0", [0])], [("step 1", [1])], [("step 2", [2])]]
    assert [values for _, values in ahead.arrived(all_of_them=True)] == [[3], [4]]
