"""An update of one layout: sums by hand, and what must hold for every layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.planning.cluster import Cluster
from heedful.apps.planning.estimates import Checkpointing, UpdateBatch, estimate
from heedful.apps.planning.layouts import Layout
from heedful.nn.work import Work

from .devices_for_tests import costs, device

BATCH = UpdateBatch(positions=1 << 20, length=1024, precision="bf16")
NODE = Cluster(device=device(), per_host=8, hosts=8)

powers = st.integers(0, 3).map(lambda n: 2**n)


def test_products_by_hand() -> None:
    model = costs()
    plan = estimate(model, NODE, BATCH, Layout(data=64))
    operations = 3 * model.forward.total / 1024 * (BATCH.positions / 64)
    assert plan.compute.products == pytest.approx(operations / 50e12)
    assert plan.seconds == pytest.approx(plan.compute.seconds + plan.shown)
    able = 64 * 100e12 * plan.seconds
    assert plan.utilization == pytest.approx(64 * operations / able)
    assert plan.positions_per_second == pytest.approx(BATCH.positions / plan.seconds)


def test_memory_by_hand() -> None:
    model = costs()
    memory = estimate(model, NODE, BATCH, Layout(data=1, shard=64)).memory
    assert memory.weights == memory.gradients == pytest.approx(4 * model.parameters / 64)
    assert memory.optimizer == pytest.approx(8 * model.parameters / 64)
    block, beside = model.largest.parameters, 32_000_000
    assert memory.gathered == pytest.approx(2 * (2 * block + beside) + 4 * block)
    kept = 10 * 36_000 + 24_000
    assert memory.activations == pytest.approx(BATCH.positions / 64 * kept)
    assert memory.casts == 0
    assert memory.needed == pytest.approx(sum(memory.parts.values()))


def test_messages_by_hand() -> None:
    model = costs()
    positions, p = BATCH.positions / 8, model.parameters
    sent = {m.kind: m.sent for m in estimate(model, NODE, BATCH, Layout(8, 1, 8)).messages}
    held = p - model.blocks.divisible * 7 / 8
    assert sent["gradients, summed over copies"] == pytest.approx(2 * 7 / 8 * 4 * held)
    # Two sums forward and two backward in each of ten blocks, of 1,000 numbers of two bytes.
    of_activations = 2 * 7 / 8 * 10 * 4 * 2000 * positions
    assert sent["activations, summed over parts of matrices"] == pytest.approx(of_activations)
    plan = estimate(model, NODE, BATCH, Layout(1, 64), accumulate=4)
    sent = {m.kind: m.sent for m in plan.messages}
    assert sent["weights, gathered from shards"] == pytest.approx(4 * 2 * 63 / 64 * 2 * p)
    assert sent["gradients, scattered to shards"] == pytest.approx(4 * 63 / 64 * 4 * p)
    sent = {m.kind: m.sent for m in estimate(model, NODE, BATCH, Layout(16, 1, 1, 4)).messages}
    passed = 3 * 3 * 10 * 4000 * BATCH.positions / 64
    assert sent["keys and values, passed round"] == pytest.approx(passed)
    assert sent["gradients, summed over copies"] == pytest.approx(2 * 63 / 64 * 4 * p)


def test_accumulated_batches_sum_gradients_once_and_need_less_memory() -> None:
    one = estimate(costs(), NODE, BATCH, Layout(data=64))
    four = estimate(costs(), NODE, BATCH, Layout(data=64), accumulate=4)
    assert four.messages[0].sent == one.messages[0].sent
    assert four.memory.activations == pytest.approx(one.memory.activations / 4)
    assert four.compute.products == pytest.approx(one.compute.products)


@given(shards=st.integers(1, 5), data=powers)
def test_more_shards_never_need_more_memory(shards: int, data: int) -> None:
    few, many = Layout(data, 2**shards), Layout(data, 2 ** (shards + 1))
    held = [
        estimate(costs(), replace(NODE, hosts=layout.devices), BATCH, layout).memory
        for layout in (few, many)
    ]
    assert held[1].needed <= held[0].needed
    for name in ("weights", "gradients", "optimizer"):
        assert held[1].parts[name] == pytest.approx(held[0].parts[name] / 2, abs=1)


@given(
    sizes=st.tuples(powers, powers, powers, powers),
    dimension=st.sampled_from(["data", "shard", "tensor", "context"]),
)
def test_more_devices_never_need_more_than_what_moves_over_their_links(
    sizes: tuple[int, int, int, int], dimension: str
) -> None:
    few = Layout(*sizes)
    many = few._replace(**{dimension: 2 * getattr(few, dimension)})
    first, second = (
        estimate(costs(), replace(NODE, hosts=64), BATCH, layout) for layout in (few, many)
    )
    passing = second.memory.gathered - first.memory.gathered
    casts = second.memory.casts - first.memory.casts
    allowed = 1.1 * max(0.0, passing + casts) + 2
    assert second.memory.needed <= first.memory.needed + allowed
    assert second.compute.products <= first.compute.products
    assert second.compute.passes <= first.compute.passes


@given(sizes=st.tuples(powers, powers, powers, powers), factor=st.floats(1, 10))
def test_faster_parts_never_take_longer(sizes: tuple[int, int, int, int], factor: float) -> None:
    layout = Layout(*sizes)
    slow = replace(NODE, hosts=64)
    usual = estimate(costs(), slow, BATCH, layout)
    for name in ("link", "network", "bandwidth"):
        faster = replace(NODE.device, **{name: factor * getattr(NODE.device, name)})
        found = estimate(costs(), replace(slow, device=faster), BATCH, layout)
        if name == "bandwidth":
            assert found.compute.seconds <= usual.compute.seconds
        else:
            assert found.seconds <= usual.seconds
    assert 0 < usual.utilization <= 0.5
    assert usual.shown <= sum(each.seconds for each in usual.messages)


@given(sizes=st.tuples(powers, powers, powers, powers), accumulate=powers)
def test_checkpointing_trades_memory_for_time(
    sizes: tuple[int, int, int, int], accumulate: int
) -> None:
    kinds: tuple[Checkpointing, ...] = ("none", "selective", "full")
    plans = [
        estimate(
            costs(),
            NODE,
            BATCH,
            Layout(*sizes),
            checkpointing=kind,
            accumulate=accumulate,
        )
        for kind in kinds
    ]
    memory = [plan.memory.activations for plan in plans]
    again = [plan.compute.again for plan in plans]
    assert memory == sorted(memory, reverse=True)
    assert again == sorted(again)
    assert again[0] == 0
    assert len({plan.compute.products for plan in plans}) == 1


def test_what_is_computed_again_by_hand() -> None:
    model, layout = costs(), Layout(data=64)
    none = estimate(model, NODE, BATCH, layout)
    full = estimate(model, NODE, BATCH, layout, checkpointing="full")
    positions = BATCH.positions / 64
    # The blocks' forward pass: its products, and a third of the passes over their activations.
    operations = (model.forward.weights + model.forward.attention) / 1024 * positions
    passes = 13 * positions * 10 * 36_000 / 1e12
    assert none.compute.passes == pytest.approx(passes + 13 * positions * 64_000 / 1e12)
    assert full.compute.again == pytest.approx(operations / 50e12 + passes / 3)


def test_a_short_batch_still_reads_all_weights() -> None:
    tiny = UpdateBatch(positions=1024, length=1, precision="bf16")
    model = costs(length=1, forward=Work(weights=2 * costs().blocks.divisible))
    plan = estimate(model, NODE, tiny, Layout(data=1024))
    assert plan.compute.products == pytest.approx(3 * 2 * costs().parameters / 1e12)
