"""Inference on a CUDA GPU: the processor's choices, by graphs that are waited for only at the end.

Run with `pytest -m cuda` on a machine that has one.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from heedful.engines.class_exchange import copy_model
from heedful.engines.inference.fixed_decoder import FixedSteps
from heedful.engines.inference.prepare import prepare
from heedful.errors import ConfigError, ModelError
from heedful.search.dispatch import search, stream_tokens
from heedful.search.fixed_run import FixedRun
from heedful.search.search_settings import GenerationSettings, SearchSettings
from heedful.search.step_model import Continuation
from tests.gpu_waits import no_waiting

from ...search.fixed_models import (
    KINDS,
    PIECES,
    SEARCHES,
    SPECIALS,
    alike,
    batch,
    language_model,
    translator,
)
from . import searches

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU"),
]

BATCHES = [[9, 4, 1, 7, 12, 3, 3, 8, 2, 6, 5, 11], [5], [20, 17, 3]]


def on_gpu(model, precision: str = "fp32"):
    return prepare(model, precision, torch.device("cuda"))


def there(*tensors):
    return [each.to("cuda") for each in tensors]


@pytest.fixture
def records(monkeypatch):
    """Count the graphs that are recorded, and the steps that none could be made of."""
    counts, recorded = Counter(), FixedSteps.recorded

    def counted(self, compute):
        replay = recorded(self, compute)
        counts["left as it is" if replay is compute else "graphs"] += 1
        return replay

    monkeypatch.setattr(FixedSteps, "recorded", counted)
    return counts


@pytest.fixture
def without_waiting(monkeypatch):
    """From now on make it an error to wait for the GPU while a search is under way."""

    def begin() -> None:
        reports = FixedRun.reports

        def watched(self):
            with no_waiting():
                yield from reports(self)

        monkeypatch.setattr(FixedRun, "reports", watched)

    return begin


@torch.inference_mode()
def logits_of(model, source, positions) -> torch.Tensor:
    state, found = model.start(source, positions), []
    for step in range(12):
        tokens = searches.ids(len(source), 1, seed=step).to(source.device)
        logits, state = model.step(state, tokens)
        found.append(logits.cpu())
    return torch.stack(found)


@pytest.mark.parametrize("name", KINDS)
def test_steps_give_the_logits_of_the_definition(name) -> None:
    model = translator(**KINDS[name])
    engine, given = on_gpu(model), batch([9, 4, 1, 7], 5)
    found = logits_of(engine, *there(*given))
    torch.testing.assert_close(found, logits_of(model, *given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_makes_the_choices_of_the_processor(name, records) -> None:
    settings, model = SearchSettings(**SEARCHES[name]), translator()
    engine = on_gpu(model)
    for seed, lengths in enumerate(BATCHES * 2):
        given = batch(lengths, seed)
        wanted = search(model, *given, settings, specials=SPECIALS)
        alike(search(engine, *there(*given), settings, specials=SPECIALS), wanted)
    assert records["graphs"] > 0
    assert records["left as it is"] == 0


@pytest.mark.parametrize("name", KINDS)
def test_any_decoder_of_attention_is_one_graph(name, records) -> None:
    model = translator(**KINDS[name])
    engine = on_gpu(model)
    for changes in ({"beam": 4, "n_best": 4, "min_length": 6}, {"beam": 1, "min_length": 6}):
        given, settings = batch([9, 4, 1, 7, 20], 3), SearchSettings(**changes)
        wanted = search(model, *given, settings, specials=SPECIALS)
        alike(search(engine, *there(*given), settings, specials=SPECIALS), wanted)
    assert records["graphs"] > 0
    assert records["left as it is"] == 0


@pytest.mark.parametrize(
    "changes", [{"beam": 5}, {"beam": 1}, {"sampling": True, "n_best": 2, "top_k": 9}]
)
def test_steady_steps_wait_for_nothing(changes, records, without_waiting) -> None:
    engine, settings = on_gpu(translator()), SearchSettings(**changes)
    given = there(*batch([*range(1, 41)], 5))
    found = [search(engine, *given, settings, specials=SPECIALS) for _ in range(2)]
    recorded = records["graphs"]
    without_waiting()
    found.append(search(engine, *given, settings, specials=SPECIALS))
    assert found[2] == found[1]
    assert records["graphs"] == recorded  # all of them serve again


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("changes", [{}, {"beam": 3}, {"sampling": True, "n_best": 2}])
def test_a_prompt_is_continued_as_on_the_processor(cache, changes, records) -> None:
    model = language_model()
    engine = on_gpu(model)
    settings = GenerationSettings(max_length=60, **changes)
    for lengths in ([7, 3, 1], [2], [7, 3, 1]):
        found = []
        for each, move in ((engine, lambda pair: there(*pair)), (model, list)):
            continuation = Continuation(
                each.with_cache(cache, 80), vocabulary=PIECES, ends=[3, 8], limit=60
            )
            given = move(batch(lengths, 6))
            found.append(search(continuation, *given, settings, specials=continuation.specials))
        alike(*found)
    assert records["graphs"] > 0
    assert records["left as it is"] == 0


def test_a_stream_is_that_of_the_processor(without_waiting) -> None:
    model = language_model()
    engine = on_gpu(model)
    found = []
    for each, times in ((model, 1), (engine, 3)):
        for time in range(times):
            if time == 2:
                without_waiting()
            continuation = Continuation(each, vocabulary=PIECES, ends=[3], limit=30)
            given = batch([4], 6) if each is model else there(*batch([4], 6))
            asked = {"specials": continuation.specials, "name": 3, "limit": 30}
            tokens = stream_tokens(continuation, *given, GenerationSettings(max_length=30), **asked)
            found.append(list(tokens))
    assert all(each == found[0] for each in found)
    assert len(found[0]) > 2


def test_searches_in_bfloat16(records) -> None:
    """Choices may differ from those in float32; the scores of the same tokens hardly do."""
    model = translator()
    engine, settings = on_gpu(model, "bf16"), SearchSettings(beam=4)
    given = batch([9, 4, 1, 7], 3)
    wanted = search(model, *given, settings, specials=SPECIALS)
    found = search(engine, *there(*given), settings, specials=SPECIALS)
    for (ours, *_), (theirs, *_) in zip(found, wanted, strict=True):
        assert ours.normalized_score == pytest.approx(theirs.normalized_score, rel=0.05)
    assert records["left as it is"] == 0


@pytest.mark.parametrize("changes", [{"beam": 3}, {"sampling": True}])
def test_a_model_that_gives_no_numbers_stops_no_gpu(changes) -> None:
    broken = copy_model(translator())
    broken.output_bias = torch.nn.Parameter(torch.full((PIECES,), torch.nan))
    engine, settings = on_gpu(broken), SearchSettings(**changes)
    given = there(*batch([5, 3], 4))
    with pytest.raises(ModelError):
        search(engine, *given, settings, specials=SPECIALS)
    torch.cuda.synchronize()
    assert search(on_gpu(translator()), *given, settings, specials=SPECIALS)


def test_8_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="int8 is not supported on cuda"):
        on_gpu(translator(), "int8")
