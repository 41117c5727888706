"""Ring attention in several processes beside the definition in one, outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.nn.attention.attend import attend, attention_weights, make_request, plan
from heedful.nn.attention.kernels.chunked import RunningSoftmax, attend_more
from heedful.nn.attention.masks import Causal, Everything, Mask, Prefix, SameSegment, Window
from heedful.nn.attention.relative_positions import (
    Alibi,
    Bias,
    Kerple,
    RelativeKeys,
    T5Bias,
    TransformerXL,
)
from heedful.nn.attention.relative_values import RelativeValues
from heedful.nn.attention.sparse_masks import Dilated, GlobalTokens, Strided
from heedful.nn.positions import Positions, context_parallel
from tests.reference_parts import ExplicitBias

BATCH, HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 2, 4, 2, 8, 6


@dataclass(frozen=True)
class Case:
    """An attention of whole sequences."""

    mask: Mask = field(default_factory=Causal)
    biases: Callable[[], list[Bias]] = list
    options: dict[str, Any] = field(default_factory=dict)
    relative_values: bool = False
    queries: int = 48
    keys: int | None = None
    segments: bool = False
    dtype: torch.dtype = torch.float64


CASES = {
    "causal": Case(),
    "everything": Case(Everything()),
    "another memory": Case(Everything(), keys=32),
    "window": Case(Causal() & Window(7)),
    "prefix": Case(Causal() | Prefix(9)),
    "strided": Case(Causal() & Strided(4)),
    "dilated": Case(Dilated(12, 3) | GlobalTokens(2)),
    "segments": Case(Causal() & SameSegment(), segments=True),
    "soft cap": Case(options={"softcap": 2.0, "scale": 0.9}),
    "alibi": Case(biases=lambda: [Alibi(HEADS)]),
    "t5": Case(Everything(), biases=lambda: [with_noise(T5Bias(HEADS, 8, 20))]),
    "kerple": Case(biases=lambda: [Kerple(HEADS)]),
    "relative keys": Case(biases=lambda: [RelativeKeys(WIDTH, 5)]),
    "relative keys and values": Case(biases=lambda: [RelativeKeys(WIDTH, 5)], relative_values=True),
    "transformer xl": Case(biases=lambda: [with_noise(TransformerXL(HEADS, WIDTH, 12, 0.4))]),
    "two learned biases": Case(
        biases=lambda: [
            with_noise(T5Bias(HEADS, 8, 20)),
            ExplicitBias(nn.Parameter(torch.randn(1, HEADS, 48, 48))),
        ]
    ),
    "several blocks": Case(Causal() & Window(900), queries=1536, dtype=torch.float32),
}


def with_noise(bias: Bias) -> Bias:
    for parameter in bias.parameters():
        nn.init.normal_(parameter)
    return bias


@dataclass
class Whole:
    """The tensors of a case, the same in every process."""

    q: Tensor
    k: Tensor
    v: Tensor
    gradient: Tensor
    positions: Positions
    biases: list[Bias]
    values: RelativeValues | None

    @classmethod
    def of(cls, case: Case) -> Whole:
        torch.manual_seed(5)
        lengths = case.queries, case.keys or case.queries
        q = torch.randn(BATCH, HEADS, lengths[0], WIDTH, dtype=case.dtype)
        k = torch.randn(BATCH, KV_HEADS, lengths[1], WIDTH, dtype=case.dtype)
        v = torch.randn(BATCH, KV_HEADS, lengths[1], VALUE_WIDTH, dtype=case.dtype)
        gradient = torch.randn(BATCH, HEADS, lengths[0], VALUE_WIDTH, dtype=case.dtype)
        at = [torch.arange(length).repeat(BATCH, 1) for length in lengths]
        for each in at:
            each[1, -each.shape[1] // 3 :] = -1  # padding
        segments = [each // 11 if case.segments else None for each in at]
        biases = case.biases()
        values = RelativeValues(VALUE_WIDTH, 4) if case.relative_values else None
        return cls(q, k, v, gradient, Positions(*at, *segments), biases, values)

    @property
    def learned(self) -> list[nn.Parameter]:
        modules = [*self.biases, *([] if self.values is None else [self.values])]
        return [each for module in modules for each in module.parameters()]

    def attend(
        self, case: Case, rows: slice | Tensor, columns: slice | Tensor, kernel: str | None = None
    ) -> list[Tensor]:
        """Output and gradients, of some queries and keys of all."""
        q, k, v = (
            each[:, :, places].clone().requires_grad_()
            for each, places in ((self.q, rows), (self.k, columns), (self.v, columns))
        )
        at = self.positions.at_queries(rows).at_keys(columns)
        options = dict(case.options, relative_values=self.values, kernel=kernel)
        output = attend(q, k, v, at, case.mask, self.biases, **options)
        inputs = [q, k, v, *self.learned]
        return [output, *torch.autograd.grad(output, inputs, self.gradient[:, :, rows])]


def divide(length: int, size: int) -> list[Tensor]:
    """Any division of the tokens will do, since attention knows positions only."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(length))
    return list(order.view(size, -1))


def attend_share(group: Any, name: str) -> list[Tensor]:
    """What a process makes of its share."""
    case = CASES[name]
    whole = Whole.of(case)
    size, rank = group.size(), group.rank()
    rows = divide(case.queries, size)[rank]
    columns = divide(case.keys or case.queries, size)[rank]
    with context_parallel(group):
        result = whole.attend(case, rows, columns)
    return [each.detach() for each in result]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_shares_equal_the_definition(processes: Any, name: str, size: int) -> None:
    case = CASES[name]
    whole = Whole.of(case)
    expected = whole.attend(case, slice(None), slice(None), "reference")
    found = processes.run(attend_share, size, name)
    rows = divide(case.queries, size)
    columns = divide(case.keys or case.queries, size)
    tolerance = {"rtol": 0.0, "atol": 1e-9 if case.dtype == torch.float64 else 1e-5}
    if whole.learned and case.dtype == torch.float64:
        tolerance["atol"] = 2e-5  # the biases are float32
    for number, places in enumerate((rows, rows, columns, columns)):
        for rank in range(size):
            there = expected[number][:, :, places[rank]]
            torch.testing.assert_close(found[rank][number], there, **tolerance)
    for number in range(4, len(expected)):  # of learned tensors, summed by whoever divides
        total = sum(each[number] for each in found)
        torch.testing.assert_close(total, expected[number], **tolerance)


@given(st.data())
def test_parts_of_keys_merge_in_any_order(data: st.DataObject) -> None:
    """The softmax over parts of the keys, one after the other, is that over all of them."""
    whole = Whole.of(CASES["causal"])
    order = data.draw(st.permutations(range(48)))
    cuts = sorted(data.draw(st.sets(st.integers(0, 48), max_size=5)))
    size = 10.0 ** data.draw(st.integers(-3, 2))  # exp of scores of 10,000 would overflow
    q, k, v, at = whole.q * size, whole.k * size, whole.v, whole.positions
    running = RunningSoftmax.start(q, VALUE_WIDTH, q.dtype)
    for part in torch.tensor(order).tensor_split(cuts):
        request = make_request(q, k[:, :, part], v[:, :, part], at.at_keys(part), Causal())
        if len(part):
            attend_more(request, 0, running)
    output, _ = running.finish()
    expected = attend(q, k, v, at, Causal(), kernel="reference")
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)


def drop(group: Any, seed: int) -> tuple[Tensor, ...]:
    """Outputs with dropout for values that are all 1, and two sums that linearity makes equal."""
    whole = Whole.of(Case(Everything(), queries=256))
    rows = divide(256, group.size())[group.rank()]
    torch.manual_seed(seed)
    with context_parallel(group):
        q, k, v, gradient = (
            each[:, :, rows] for each in (whole.q, whole.k, whole.v, whole.gradient)
        )
        v = v.requires_grad_()
        at = Positions.of_self(torch.arange(256).repeat(BATCH, 1)[:, rows])
        output = attend(q, k, v, at, dropout=0.25)
        (to_v,) = torch.autograd.grad(output, v, gradient)
        ones = attend(q, k, torch.ones_like(v), at, dropout=0.25)
    return ones, (output * gradient).sum().detach(), (to_v * v).sum().detach()


def test_dropout_is_drawn_for_each_pair_of_processes_and_again_for_gradients(
    processes: Any,
) -> None:
    found = processes.run(drop, 4, 7)
    outputs = torch.stack([each[0][..., 0] for each in found])
    # 4 · 2 · 4 · 64 rows, whose weights sum to 1 on average.
    assert abs(float(outputs.mean()) - 1.0) < 0.02
    assert float(outputs.std()) > 0.02
    # With the same seed in every process, rows would lose the same keys of each.
    correlation = torch.corrcoef(outputs.flatten(1))
    assert float((correlation - torch.eye(4)).abs().max()) < 0.2
    forward, backward = (sum(float(each[number]) for each in found) for number in (1, 2))
    assert forward == pytest.approx(backward, abs=1e-9)


def attend_in_bfloat16(group: Any) -> list[Tensor]:
    case = Case(dtype=torch.bfloat16)
    rows = divide(48, group.size())[group.rank()]
    with context_parallel(group):
        return [each.detach() for each in Whole.of(case).attend(case, rows, rows)]


def test_bfloat16_is_added_in_float32(processes: Any) -> None:
    """Outputs and gradients are rounded once: they differ from float32's by half a last place."""
    whole = Whole.of(Case(dtype=torch.bfloat16))
    for name in ("q", "k", "v", "gradient"):
        setattr(whole, name, getattr(whole, name).float())
    expected = whole.attend(Case(), slice(None), slice(None), "reference")
    found = processes.run(attend_in_bfloat16, 4)
    for number in range(4):
        for rank, rows in enumerate(divide(48, 4)):
            there = expected[number][:, :, rows]
            assert found[rank][number].dtype == torch.bfloat16
            torch.testing.assert_close(found[rank][number].float(), there, rtol=8e-3, atol=4e-3)


def attend_twice_and_go_back_later(group: Any) -> list[Tensor]:
    case = CASES["causal"]
    whole, rows = Whole.of(case), divide(48, group.size())[group.rank()]
    q, k, v = (each[:, :, rows].requires_grad_() for each in (whole.q, whole.k, whole.v))
    places = torch.arange(48).repeat(BATCH, 1)[:, rows]
    with context_parallel(group):
        at = Positions.of_self(places)

    def layers(q: Tensor, at: Positions) -> Tensor:
        first = attend(q, k, v, at, Causal())
        return attend(q + torch.nn.functional.pad(first, (0, 2)), k, v, at, Causal())

    # Outside of the context, as a pass that is repeated in another thread would be.
    repeated = torch.utils.checkpoint.checkpoint(layers, q, at, use_reentrant=False)
    with context_parallel(group):
        plain = layers(q, Positions.of_self(places))
    gradient = whole.gradient[:, :, rows]
    again = torch.autograd.grad(repeated, (q, k, v), gradient)
    return [(repeated - plain).detach(), *again, *torch.autograd.grad(plain, (q, k, v), gradient)]


def test_a_pass_can_be_repeated_for_its_gradients(processes: Any) -> None:
    for difference, *gradients in processes.run(attend_twice_and_go_back_later, 2):
        assert float(difference.abs().max()) == 0
        for again, plain in zip(gradients[:3], gradients[3:], strict=True):
            assert torch.equal(again, plain)


def ask(group: Any) -> dict[str, Any]:
    """What the plan says in a process, and what it refuses."""
    q = torch.zeros(1, HEADS, 4, WIDTH)
    messages = []
    with context_parallel(group):
        request = make_request(q, q, q, Positions.of_self(torch.arange(4)[None]))
        lineage = Positions(*[torch.arange(4)[None]] * 2, lineage=torch.ones(1, 4, 4).bool())
        for refused in (
            lambda: attend(q, q, q, request.positions, kernel="matmul"),
            lambda: attend(q, q, q, lineage),
            lambda: attention_weights(request),
        ):
            with pytest.raises(ModelError) as caught:
                refused()
            messages.append(str(caught.value))
    found = plan(request)
    return {"kernel": found.kernel, "rejected": found.rejected, "messages": messages}


def test_the_plan_says_so(processes: Any) -> None:
    (found,) = processes.run(ask, 1)
    assert found["kernel"] == "ring"
    assert set(found["rejected"].values()) == {"sees only the keys of this process"}
    named, beams, weights = found["messages"]
    assert "'matmul' cannot serve this attention: sees only the keys of this process" in named
    assert "beams share rows of a cache" in beams
    assert "outside of context parallelism" in weights


def test_a_ring_needs_processes() -> None:
    q = torch.zeros(1, HEADS, 4, WIDTH)
    with pytest.raises(ModelError, match=r"'ring' cannot serve .* not divided among processes"):
        attend(q, q, q, Positions.of_self(torch.arange(4)[None]), kernel="ring")
