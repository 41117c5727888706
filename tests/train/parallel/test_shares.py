"""Who learns from what: every example of an update once, alike for any number of processes."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.batches import PairBatch
from heedful.errors import ConfigError
from heedful.events import Events
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train.parallel.dimensions import Dimensions
from heedful.train.parallel.shares import Share
from heedful.train.parallel.tensor_plan import check_matrices
from heedful.train.run_settings import ParallelSettings, RunSettings
from heedful.train.run_start import _with_parts
from heedful.train.splitting import stand_in

SETTINGS = {"data": {"train": [{"file": "pairs.tsv"}]}}


def batch(rows: int, first: int) -> PairBatch:
    ids = torch.arange(rows * 3).view(rows, 3)
    positions = torch.arange(3).expand(rows, 3)
    return PairBatch(
        ids, positions, ids, ids, positions, torch.arange(first, first + rows), 3 * rows
    )


@given(
    learners=st.integers(1, 8),
    rows=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    times=st.integers(1, 3),
)
def test_every_example_is_learned_from_once(learners: int, rows: list[int], times: int) -> None:
    parts = Dimensions(data=learners).parts_needed(len(rows)) * times
    batches = [batch(count, 100 * number) for number, count in enumerate(rows)]
    seen: Counter[int] = Counter()
    places: Counter[tuple[int, ...]] = Counter()
    for index in range(learners):
        share = Share(index, learners, parts)
        for micro in share.numbers(len(batches)):
            for part in share.cut(batches[micro], micro):
                seen.update(part.batch.indices.tolist())
                places[part.place] += 1
    assert seen == Counter(i for each in batches for i in each.indices.tolist())
    alone = Share(0, 1, parts)  # what one process would learn from, and with what randomness
    assert places == Counter(
        part.place for micro, each in enumerate(batches) for part in alone.cut(each, micro)
    )


@given(batches=st.integers(1, 12), learners=st.integers(1, 12))
def test_all_have_equally_many_parts(batches: int, learners: int) -> None:
    parts = Dimensions(data=learners).parts_needed(batches)
    whole = batch(24, 0)
    counts = {
        sum(len(Share(index, learners, parts).cut(whole, micro)) for micro in range(batches))
        for index in range(learners)
    }
    assert len(counts) == 1
    fewer = [n for n in range(1, parts) if n * batches % learners == 0]
    assert not fewer


def test_whole_batches_keep_their_place() -> None:
    (part,) = Share(1, 2, 1).cut(batch(4, 0), 3)
    assert part.place == (3,)
    assert part.batch.indices.tolist() == [0, 1, 2, 3]


def test_a_stand_in_counts_nothing() -> None:
    part = stand_in(batch(4, 0))
    assert part.tokens == 0
    assert part.examples == 1


@pytest.mark.parametrize(("memory", "parts"), [(None, None), (16, 2)])
def test_rows_that_go_on_stay_with_their_process(memory: int | None, parts: int | None) -> None:
    """A memory of earlier segments is that of the rows a process learned from before."""
    model = {"positions": "transformer_xl", "memory": memory} if memory else {}
    plain = {"task": "causal_lm", "model": model, "optimizer": {"accumulate": 2}}
    settings = RunSettings.parse({**plain, "data": {"train": [{"file": "texts"}]}})
    found = _with_parts(settings, Dimensions(data=2), Events([]), resume=False)
    assert found.parallel.parts == parts
    if memory:
        alike = [Share(1, 2, 2).cut(batch(4, 0), micro)[0].batch.indices for micro in (0, 1)]
        assert alike[0].tolist() == alike[1].tolist() == [2, 3]


def test_dimensions_take_what_is_left() -> None:
    assert Dimensions.fit(ParallelSettings(shard=2), 8) == Dimensions(4, 2, 1, 1)
    assert Dimensions.fit(ParallelSettings(), 1) == Dimensions()


@pytest.mark.parametrize(
    ("settings", "processes", "told"),
    [
        ({"shard": 2, "tensor": 2}, 6, "--processes 4"),
        ({"tensor": 4}, 2, "no multiple of tensor 4. Start 4"),
        ({"data": 2, "shard": 2}, 8, "--processes 4"),
        ({"data": 4}, 2, "leave out parallel.data"),
    ],
)
def test_a_product_that_does_not_fit(settings: dict[str, int], processes: int, told: str) -> None:
    with pytest.raises(ConfigError, match=f"{processes} processes are started") as caught:
        Dimensions.fit(ParallelSettings(**settings), processes)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lora.rank", {"lora": {"rank": 4}}),
        ("compile", {"compile": "on"}),
        ("precision", {"precision": "fp16"}),
    ],
)
def test_what_shards_cannot_do(name: str, values: dict[str, object]) -> None:
    settings = RunSettings.parse({**SETTINGS, **values}, where="test")
    Dimensions(data=2).check(settings)
    with pytest.raises(ConfigError, match=name):
        Dimensions(shard=2).check(settings)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ""),
        ({"num_kv_heads": 1}, "encoder.blocks.0.self_attention has 1 key/value heads"),
        ({"feedforward": 33}, "encoder.blocks.0.feedforward has 33 inner units"),
        ({"num_experts": 4}, "MixtureOfExperts.* cannot be split"),
    ],
)
def test_matrices_that_processes_cannot_share(options: dict[str, int], told: str) -> None:
    size = {"width": 32, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 4}
    spec = translator_spec(TranslatorShape(**{**size, "feedforward": 64, **options}), 20, 20)
    model = Translator(spec)
    check_matrices(model, 1)
    if not told:
        check_matrices(model, 2)
        return
    with pytest.raises(ConfigError, match=told):
        check_matrices(model, 2)
