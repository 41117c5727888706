"""Sub-layers in one call: beside float64, and beside the same steps one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heedful.device import Precision
from heedful.engines import unpadding
from heedful.engines.training import fused_sublayer as fused_module
from heedful.engines.training import processor, processor_attention, products
from heedful.engines.training.fused_sublayer import (
    Heads,
    LearnedKeyValues,
    Parameters,
    ProjectedMemory,
    fused_sublayer,
)
from heedful.engines.training.residual_norm import ResidualNorm, residual_norm
from heedful.engines.unpadding import (
    PackedContext,
    PackedMemory,
    RealRows,
    real_rows,
    rows_in_front,
)
from heedful.kernels import library
from heedful.models.block import Block
from heedful.models.stack import Stack
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.cache import KeyValues
from heedful.nn.attention.masks import AnyOf, Causal, Everything, Window
from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
from heedful.nn.capture import Capture
from heedful.nn.feedforward import FeedForward
from heedful.nn.low_rank import LowRank
from heedful.nn.mixer import Context, Memory, Reordering, build_bias
from heedful.nn.norms import RMSNorm
from heedful.nn.positions import Positions
from heedful.nn.spec import (
    AlibiSpec,
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    NormSpec,
    RotarySpec,
)
from tests.reference_parts import GrowingCache

from ...examples import slow_examples
from ...on_processor import on_processor

HALF = torch.bfloat16
KINDS = [torch.float32, HALF]
WIDTH = 64
BEYOND = 100_000

pytestmark = [
    pytest.mark.skipif(not library.has_gemm("float32", 1024), reason="no products in C here"),
    pytest.mark.usefixtures("any_size"),
]


@pytest.fixture
def any_size(monkeypatch):
    """Matrices are multiplied by kernels in C however small they are, and many rows repeat."""
    monkeypatch.setattr(library, "min_gemm_width", lambda kind: 2)
    monkeypatch.setattr(library, "_MIN_FUSED_WIDTH", 2)
    monkeypatch.setattr(products, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(unpadding, "_STEPS", 4)


def at_levels(test):
    """With each set of instructions that there is."""
    levels = pytest.mark.parametrize("level", ["best", "avx512", "avx2"], indirect=True)
    return levels(pytest.mark.usefixtures("level")(test))


def needs(dtype: torch.dtype) -> None:
    if not library.has_gemm(str(dtype).removeprefix("torch."), 1024):
        pytest.skip(f"no products of {dtype} here")


def autocast(dtype: torch.dtype) -> torch.autocast:
    return torch.autocast("cpu", HALF, enabled=dtype == HALF)


class Layout(NamedTuple):
    """Where sequences stand among rows: positions, shape, and rows and places of each sequence."""

    positions: Tensor
    rows: RealRows | None
    shape: torch.Size
    sequences: list[tuple[Tensor, Tensor]]


LAYOUTS = ["full", "right", "left", "exact", "repeats"]


def laid(lengths: Sequence[int], how: str) -> Layout:
    """Sequences without padding, padded on a side, or as rows of which some may repeat."""
    if how == "full":
        lengths = [max(lengths)] * len(lengths)
    size = max(lengths) + 2 * (how in ("left", "right"))
    size = 2 * size + 8 if how in ("exact", "repeats") else size
    positions = torch.full((len(lengths), size), -1)
    for row, length in zip(positions, lengths, strict=True):
        first = size - length if how == "left" else 0
        row[first : first + length] = torch.arange(length)
    if how in ("full", "left", "right"):
        slots = torch.arange(positions.numel()).view_as(positions)
        return Layout(positions, None, positions.shape, list(zip(slots, positions, strict=True)))
    rows = real_rows(positions) if how == "repeats" else rows_in_front(positions)
    assert rows is not None
    starts = itertools.accumulate([0, *lengths[:-1]])
    places = [torch.arange(length) for length in lengths]
    sequences = [(start + each, each) for start, each in zip(starts, places, strict=True)]
    return Layout(positions, rows, rows.index[None].shape, sequences)


MASKS = {"all": Everything(), "causal": Causal(), "window": Window(3), "none": AnyOf(())}
SEES = {
    "all": lambda query, key: query == query + 0 * key,
    "causal": lambda query, key: key <= query,
    "window": lambda query, key: (key - query).abs() <= 2,
    "none": lambda query, key: key != key + 0 * query,
}


def mixed_by_definition(
    between: Tensor, memory: Tensor | None, heads: Heads, queries: Layout, keys: Layout, mask: str
) -> Tensor:
    """What heads find, sequence by sequence; rows that are in none, or see nothing, find zeros."""
    rows = between.flatten(0, 1)
    source = rows if memory is None else memory.flatten(0, 1)
    group = heads.num_heads // heads.num_kv_heads
    of_all = heads.num_heads + (2 * heads.num_kv_heads if memory is None else 0)
    found = rows.new_zeros(len(rows), rows.shape[1] // of_all * heads.num_heads)
    for (at, place), (key_at, key_place) in zip(queries.sequences, keys.sequences, strict=True):
        q = rows[at].unflatten(1, (of_all, -1))[:, : heads.num_heads]
        both = source[key_at].unflatten(1, (-1, q.shape[2]))[:, -2 * heads.num_kv_heads :]
        k, v = (t.repeat_interleave(group, 1) for t in both.split(heads.num_kv_heads, 1))
        seen = SEES[mask](place[:, None], key_place[None])
        seen = seen & (place >= 0)[:, None] & (key_place >= 0)[None]
        scores = torch.einsum("ihe,jhe->hij", q, k) * heads.scale
        weights = torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen
        mixed = torch.einsum("hij,jhe->ihe", weights, v).flatten(1)
        found = found.index_copy(0, at, mixed)
    return found.view(*between.shape[:2], -1)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As numbers of a type are multiplied; rounding is no matter of gradients."""
    return x.double() + (x.to(dtype).double() - x.double()).detach()


def mapped(
    x: Tensor, map: Parameters, dtype: torch.dtype, biases: dict[Tensor, Tensor] | None = None
) -> Tensor:
    """The map by its definition; `biases` gets the bias of each row, as if each had its own."""
    y = torch.einsum("...k,nk->...n", rounded(x, dtype), rounded(map.weight, dtype))
    if map.bias is None:
        return y
    of_rows = map.bias.double().expand_as(y).clone()
    if biases is not None:
        biases[map.bias] = of_rows
    return y + of_rows


def normed_by_definition(whole: Tensor, norm: nn.Module | None) -> Tensor:
    if norm is None:
        return whole
    weight = norm.weight.double()
    if isinstance(norm, RMSNorm):
        return whole / (whole.square().mean(-1, keepdim=True) + norm.epsilon).sqrt() * weight
    apart = whole - whole.mean(-1, keepdim=True)
    return apart / (apart.square().mean(-1, keepdim=True) + norm.eps).sqrt() * weight + norm.bias


def norm_of(kind: str, width: int = WIDTH) -> nn.Module | None:
    if kind == "none":
        return None
    norm = nn.LayerNorm(width, eps=1e-5) if kind == "layer" else RMSNorm(width, 1e-6)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def map_of(out_width: int, in_width: int, bias: bool) -> Parameters:
    weight = (torch.randn(out_width, in_width) * in_width**-0.5).requires_grad_()
    return Parameters(weight, leaf(out_width) if bias else None)


def near(found: Tensor, wanted: Tensor, exactness: float, summed: float = 0.0) -> None:
    """As a whole; where nothing is wanted, what rounding leaves is next to nothing.

    A sum is as far off as what was added (of length `summed`) was rounded, though it cancels.
    """
    assert found.isfinite().all()
    apart = (found.double() - wanted.double()).norm()
    length = max(float(wanted.detach().double().norm()), summed)
    assert apart <= exactness * (length + 0.1 * found.numel() ** 0.5)


def ending_with(norm: nn.Module | None, dropout: float, norm_last: bool) -> ResidualNorm:
    """The norm of a sum that goes on as the stream, or is for the next part alone."""
    return ResidualNorm(norm if norm_last else None, None if norm_last else norm, dropout)


def nowhere() -> Context:
    """A context without captures."""
    return Context(Positions.of_self(torch.zeros(1, 1, dtype=torch.int64)))


class Case(NamedTuple):
    """What a sub-layer computes with."""

    x: Tensor
    read: Tensor
    first: Parameters
    between: Heads | str
    second: Parameters
    ending: ResidualNorm

    @property
    def learned(self) -> list[Tensor]:
        """All that has a gradient."""
        memory = self.between.memory if isinstance(self.between, Heads) else None
        norm = self.ending.any_norm
        found = [self.x, self.read, None if memory is None else memory.projected]
        found += [*self.first, *self.second, *(() if norm is None else norm.parameters())]
        present = {id(each): each for each in found if each is not None and each.requires_grad}
        return list(present.values())


def check(case: Case, dtype: torch.dtype, middle: Callable[[Tensor], Tensor]) -> None:
    """Results and all gradients beside those of the definition in float64."""
    ending = case.ending
    with autocast(dtype):
        found = fused_sublayer(*case)
    assert found is not None
    assert {each.grad_fn.name() for each in found} == {"_FusedSublayerBackward"}
    biases: dict[Tensor, Tensor] = {}
    between = middle(mapped(case.read, case.first, dtype, biases))
    change = mapped(between, case.second, dtype, biases)
    if ending.dropout:  # what is added and kept is seen, unless it is lost in rounding
        assume(((change == 0) | (change.abs() > 1e-6 * case.x.abs())).all())
        change = change * (found[0] != case.x) / (1 - ending.dropout)
    whole = case.x.double() + change
    normed = normed_by_definition(whole, ending.any_norm)
    count = 1 if found[0] is found[1] else 2
    assert count == (2 if ending.input_norm is not None else 1)
    outputs, wanted = found[-count:], (whole, normed)[-count:]
    exactness = 3e-2 if dtype == HALF else 2e-5
    for one, other in zip(outputs, wanted, strict=True):
        near(one, other, exactness)
    ups = [torch.randn_like(each) for each in outputs]
    gradients = torch.autograd.grad(outputs, case.learned, ups)
    sought = [*case.learned, *biases.values()]
    right = torch.autograd.grad(wanted, sought, [up.double() for up in ups])
    of_rows = dict(zip(biases, right[len(case.learned) :], strict=True))
    for each, one, other in zip(case.learned, gradients, right, strict=False):
        assert one.dtype == each.dtype
        near(one, other, exactness, float(of_rows[each].norm()) if each in of_rows else 0.0)


def ending_of(norm: str, placement: str, drops: bool) -> ResidualNorm:
    """Nothing is dropped where the norm comes last and what was dropped is not to be seen."""
    seen = norm == "none" or placement == "pre"
    return ending_with(norm_of(norm), 0.25 if drops and seen else 0.0, placement == "post")


def inputs_of(shape: Sequence[int], placement: str, half: bool) -> tuple[Tensor, Tensor]:
    x = leaf(*shape, WIDTH)
    return x, x if placement == "post" else leaf(*shape, WIDTH, dtype=HALF if half else x.dtype)


class Sizes(NamedTuple):
    """Numbers of heads of queries and of keys, and their width."""

    heads: int
    key_heads: int
    width: int


def attention_case(
    queries: Layout, keys: Layout | None, mask: str, sizes: Sizes, biases: str,
    ending: ResidualNorm, half: bool = False,
) -> Case:  # fmt: skip
    """Self-attention where there are no keys apart from the queries."""
    placement = "pre" if ending.norm is None else "post"
    inner, both = sizes.heads * sizes.width, 2 * sizes.key_heads * sizes.width
    memory = None
    if keys is not None:
        projected = leaf(*keys.shape, both, dtype=HALF if half else torch.float32)
        memory = ProjectedMemory(projected, keys.rows)
    positions = Positions(queries.positions, (keys or queries).positions)
    of_heads = sizes.heads, sizes.key_heads, sizes.width**-0.5
    heads = Heads(*of_heads, positions, MASKS[mask], queries.rows, memory)
    first = map_of(inner + (both if memory is None else 0), WIDTH, "first" in biases)
    second = map_of(WIDTH, inner, "second" in biases)
    return Case(*inputs_of(queries.shape, placement, half), first, heads, second, ending)


SIZES = [Sizes(2, 2, 16), Sizes(4, 2, 16), Sizes(2, 1, 32), Sizes(3, 3, 48), Sizes(1, 1, 64)]
LENGTH = st.integers(0, 9) | st.integers(0, 40)
LENGTHS = st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=5).filter(
    lambda pairs: all(map(any, zip(*pairs, strict=True)))
)
BIASES = st.sampled_from(["", "first", "second", "first, second"])


@at_levels
@pytest.mark.parametrize("key_how", [None, *LAYOUTS])
@pytest.mark.parametrize("dtype", KINDS)
@given(
    lengths=LENGTHS,
    how=st.sampled_from(LAYOUTS),
    mask=st.sampled_from(sorted(MASKS)),
    sizes=st.sampled_from(SIZES),
    biases=BIASES,
    norm=st.sampled_from(["none", "layer", "rms"]),
    placement=st.sampled_from(["pre", "post"]),
    drops=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=slow_examples(24))
def test_attention_and_its_gradients_are_those_of_the_definition(
    dtype, key_how, lengths, how, mask, sizes, biases, norm, placement, drops, half, seed
):
    needs(dtype)
    torch.manual_seed(seed)
    queries = laid([pair[0] for pair in lengths], how)
    keys = None if key_how is None else laid([pair[1] for pair in lengths], key_how)
    ending = ending_of(norm, placement, drops)
    case = attention_case(queries, keys, mask, sizes, biases, ending, half and dtype == HALF)
    memory = case.between.memory

    def middle(between: Tensor) -> Tensor:
        source = None if memory is None else memory.projected.double()
        return mixed_by_definition(between, source, case.between, queries, keys or queries, mask)

    check(case, dtype, middle)


ACTIVATIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


def feedforward_case(
    shape: Sequence[int], activation: str, inner: int, biases: str, ending: ResidualNorm,
    half: bool = False,
) -> Case:  # fmt: skip
    inputs = inputs_of(shape, "pre" if ending.norm is None else "post", half)
    first = map_of(inner, WIDTH, "first" in biases)
    return Case(*inputs, first, activation, map_of(WIDTH, inner, "second" in biases), ending)


@at_levels
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", KINDS)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(8, 40)),
    inner=(st.integers(8, 70) | st.integers(8, 700)).map(lambda half: 2 * half),
    biases=BIASES,
    norm=st.sampled_from(["none", "layer", "rms"]),
    placement=st.sampled_from(["pre", "post"]),
    drops=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=20)
def test_a_network_and_its_gradients_are_those_of_the_definition(
    dtype, activation, shape, inner, biases, norm, placement, drops, half, seed
):
    needs(dtype)
    torch.manual_seed(seed)
    ending = ending_of(norm, placement, drops)
    case = feedforward_case(shape, activation, inner, biases, ending, half and dtype == HALF)
    if activation == "relu" and dtype == torch.float32:  # rounding decides what is next to zero
        first, read = case.first, case.read.flatten(0, 1).double()
        assume(F.linear(read, *(t if t is None else t.double() for t in first)).abs().min() > 1e-5)
    check(case, dtype, ACTIVATIONS[activation])


@pytest.mark.parametrize("same", [True, False])
def test_a_stream_in_half_stays_so(same):
    needs(HALF)
    torch.manual_seed(0)
    case = feedforward_case((2, 40), "silu", 64, "first", ending_of("layer", "pre", False))
    x = leaf(2, 40, WIDTH, dtype=HALF)
    case = case._replace(x=x, read=x if same else case.read)
    with autocast(HALF):
        assert [each.dtype for each in fused_sublayer(*case)] == [HALF, HALF]
    check(case, HALF, ACTIVATIONS["silu"])


def test_what_is_read_and_added_has_one_gradient():
    for placement, count in (("pre", 2), ("post", 1)):
        case = feedforward_case((2, 40), "relu", 64, "", ending_of("layer", placement, False))
        _, read = fused_sublayer(*case)  # older PyTorch forgets the graph of a tensor that is gone
        functions = (function for function, _ in read.grad_fn.next_functions)
        inputs = [id(each.variable) for each in functions if each is not None]
        assert sum(each in (id(case.x), id(case.read)) for each in inputs) == count


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4))
def test_rows_are_in_front_where_no_padding_comes_before_a_token(real):
    rows = [slot for slot, each in enumerate(itertools.chain(*real)) if each]
    positions = torch.tensor([[i if each else -1 for i, each in enumerate(row)] for row in real])
    index, row = torch.tensor([*rows, 0, 0]), torch.zeros(positions.numel()).long()
    found = RealRows(index, row, len(rows), positions, tuple(positions.shape))
    assert found.in_front == all(row == sorted(row, reverse=True) for row in real)
    assert found.starts.tolist() == [0, *itertools.accumulate(map(sum, real))]


def test_a_mask_is_made_only_where_a_row_sees_less_than_all():
    lengths = [3, 20, 0]
    for how, mask, plain in [
        ("exact", Everything(), True),
        ("repeats", Everything(), True),
        ("exact", Causal(), False),
        ("right", Everything(), False),
        ("full", Everything(), True),
    ]:
        layout = laid(lengths, how)
        positions = Positions.of_self(layout.positions)
        heads = Heads(2, 2, 1.0, positions, mask, layout.rows)
        assert (heads.visible() is None) == plain, how
        if layout.rows is not None:  # what was found out for rows does not hold for slots
            assert Heads(2, 2, 1.0, positions, mask).visible() is not None
            memory = ProjectedMemory(torch.empty(0), None)
            assert Heads(2, 2, 1.0, positions, mask, layout.rows, memory).visible() is not None


def attention_of_blocks(**changes: object) -> AttentionSpec:
    return AttentionSpec(num_heads=4, **{"num_kv_heads": 2, **changes})


def block_of(
    dropout: float = 0.0,
    placement: str = "pre",
    norm: str = "layer",
    cross: dict[str, object] | None = None,
    feedforward: dict[str, object] | None = None,
    **changes: object,
) -> BlockSpec:
    inner = FeedForwardSpec(**{"width": 48, "activation": "gelu", **(feedforward or {})})
    return BlockSpec.of(
        norm_placement=placement,
        norm=NormSpec(kind=norm),
        self_attention=attention_of_blocks(**{"mask": Causal(), **changes}),
        cross_attention=attention_of_blocks(**(cross or {})),
        feedforward=inner,
        dropout=dropout,
    )


def steps(*of: Tensor) -> Iterator[str]:
    """The names of all that gradients go through."""
    seen, left = set(), [each.grad_fn for each in of]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [following for following, _ in node.next_functions]
        yield node.name()


def calls(*of: Tensor) -> int:
    return list(steps(*of)).count("_FusedSublayerBackward")


def one_by_one(patch: pytest.MonkeyPatch) -> None:
    for module in (processor, processor_attention):
        patch.setattr(module, "fused_sublayer", lambda *_: None)


def in_one_call(
    part: nn.Module, x: Tensor, read: Tensor, ending: ResidualNorm, context: Context
) -> tuple[Tensor, Tensor] | None:
    """What a part of the engine gives in one call, if it says that it may be one."""
    if processor.fusion_refusal(part, ending, context.biases) is not None:
        return None
    return part.fuse(x, read, ending, context, None)


class Translation:
    """An encoder and a decoder of two blocks each, and a batch of four sentences."""

    def __init__(self, placement: str, norm: str, dropout: float, how: str = "repeats") -> None:
        torch.manual_seed(3)
        block = block_of(dropout, placement, norm)
        plain = block.replace(cross_attention=None, self_attention=attention_of_blocks())
        final = NormSpec() if placement == "pre" else None
        self.encoder, self.decoder = (
            Stack(WIDTH, StackSpec.of(num_layers=2, block=each, final_norm=final), name)
            for each, name in ((plain, "encoder"), (block, "decoder"))
        )
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter, std=0.2)
        source, target = laid([9, 33, 4, 17], how), laid([12, 20, 0, 21], how)
        self.source, self.target = source.positions, target.positions
        self.x, self.y = (leaf(*each.shape, WIDTH) for each in (self.source, self.target))
        self.up = torch.randn_like(self.y)

    def parameters(self) -> list[Tensor]:
        return [*self.encoder.parameters(), *self.decoder.parameters()]

    def forward(self, dtype: torch.dtype) -> Tensor:
        torch.manual_seed(11)  # decides what is dropped
        with autocast(dtype):
            states = self.encoder(self.x, Context(Positions.of_self(self.source)))
            own, over = Positions.of_self(self.target), Positions(self.target, self.source)
            read = self.decoder.read(Memory(states, self.source))
            y: Tensor = self.decoder(self.y, Context(own, over), read)
        return y

    def learned(self, dtype: torch.dtype) -> tuple[int, list[Tensor]]:
        """How many sub-layers were one call; the result and all gradients."""
        with on_processor(self.encoder, self.decoder):
            return self.learned_by_definition(dtype)

    def learned_by_definition(self, dtype: torch.dtype) -> tuple[int, list[Tensor]]:
        """The same without the engine."""
        y = self.forward(dtype)
        mine = [self.x, self.y, *self.parameters()]
        return calls(y), [y.detach(), *torch.autograd.grad(y, mine, self.up)]


@pytest.mark.parametrize(
    ("how", "apart", "count"),
    # Of rows that padding stood before, attention in one call knows nothing; networks care not.
    [("repeats", False, 10), ("left", False, 4), ("left", True, 10), ("full", False, 10)],
)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("dtype", KINDS)
def test_a_translator_is_the_same_as_one_by_one(
    monkeypatch, dtype, placement, dropout, how, apart, count
):
    needs(dtype)
    model = Translation(placement, "layer" if apart else "rms", dropout, how)
    if apart:  # padding stays
        monkeypatch.setattr(processor, "real_rows", lambda *_, **__: None)
    times, found = model.learned(dtype)
    one_by_one(monkeypatch)
    never, plain = model.learned(dtype)
    assert (times, never) == (count, 0)
    assert torch.equal(found[0], plain[0])
    for one, other in zip(found, plain, strict=True):
        near(one, other, 1e-2 if dtype == HALF else 5e-6)


@pytest.mark.parametrize("how", ["repeats", "left", "full"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("dtype", KINDS)
def test_a_translator_learns_what_the_definition_says(dtype, placement, how):
    needs(dtype)
    model = Translation(placement, "layer", 0.0, how)
    real = (model.target >= 0)[..., None]
    model.up = model.up * real  # what comes of padding goes nowhere
    times, found = model.learned(dtype)
    never, plain = model.learned_by_definition(dtype)
    assert never == 0 < times
    for one, other in zip(
        [found[0] * real, *found[1:]], [plain[0] * real, *plain[1:]], strict=True
    ):
        near(one, other, 1e-2 if dtype == HALF else 5e-6)


@contextlib.contextmanager
def new_memory_is_no_number() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(1).isnan()
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@at_levels
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("dtype", KINDS)
def test_memory_that_nobody_wrote_to_is_not_read(dtype, placement):
    needs(dtype)
    model = Translation(placement, "layer", 0.1)
    for positions in (model.source, model.target):
        rows = real_rows(positions)
        assert len(rows.index) > rows.count
    _, found = model.learned(dtype)
    with new_memory_is_no_number():
        count, filled = model.learned(dtype)
    assert count == 10
    for one, other in zip(found, filled, strict=True):
        assert other.isfinite().all()
        assert torch.equal(one, other)


def attention_of_rows(ending: ResidualNorm, seed: int = 0, of_memory: bool = True) -> Case:
    torch.manual_seed(seed)
    queries, keys = laid([7, 0, 20], "repeats"), laid([12, 3, 5], "repeats")
    of = keys if of_memory else None
    return attention_case(queries, of, "causal", Sizes(4, 2, 16), "first, second", ending)


def cases(ending: ResidualNorm) -> list[Case]:
    """One of each kind."""
    torch.manual_seed(0)
    network = feedforward_case((2, 40), "gelu", 96, "first, second", ending)
    return [network, attention_of_rows(ending), attention_of_rows(ending, of_memory=False)]


def gradients(case: Case, of: Sequence[Tensor], used: str = "both") -> list[Tensor | None]:
    """Of numbers that depend on the sum, its norm or both."""
    torch.manual_seed(1)
    found = fused_sublayer(*case)
    assert found is not None
    ups = [torch.randn_like(each) for each in found]
    chosen = {"both": slice(2), "sum": slice(1), "norm": slice(1, 2)}[used]
    return list(torch.autograd.grad(found[chosen], of, ups[chosen], allow_unused=True))


def parts(case: Case) -> list[Tensor]:
    """All that may have a gradient, in an order of its own."""
    memory = case.between.memory if isinstance(case.between, Heads) else None
    of_memory = [] if memory is None else [memory.projected]
    found = [case.x, case.read, *of_memory, *case.first, *case.second]
    return [*found, *case.ending.any_norm.parameters()]


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("drops", [0.0, 0.2])
def test_what_is_frozen_gets_no_gradient_and_all_else_the_same(placement, drops):
    for case in cases(ending_with(norm_of("layer"), drops, placement == "post")):
        of_all = dict(zip(map(id, parts(case)), gradients(case, parts(case)), strict=True))
        for frozen in {id(each): each for each in parts(case)}.values():
            # A bias is not learned alone.
            biases = [map.bias for map in (case.first, case.second) if map.weight is frozen]
            for each in (frozen, *biases):
                each.requires_grad_(False)
            left = [each for each in parts(case) if each.requires_grad]
            assert len(left) < len(parts(case))
            for each, one in zip(left, gradients(case, left), strict=True):
                assert torch.equal(one, of_all[id(each)])
            for each in (frozen, *biases):
                each.requires_grad_(True)


@pytest.mark.parametrize("drops", [0.0, 0.2])
def test_a_part_that_nothing_came_of_gets_no_gradient(drops):
    for case in cases(ending_with(norm_of("layer"), drops, False)):
        of_all, of_sum, of_norm = (
            gradients(case, parts(case), used) for used in ("both", "sum", "norm")
        )
        norm = [id(each) for each in case.ending.any_norm.parameters()]
        together = zip(parts(case), of_all, of_sum, of_norm, strict=True)
        for each, whole, by_sum, by_norm in together:
            if id(each) in norm:
                assert by_sum is None
                assert torch.equal(whole, by_norm)
            else:
                near(by_sum + by_norm, whole, 1e-6)
                assert by_norm.abs().sum() > 0


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_where_no_gradient_comes_none_goes_on(stopping, placement):
    for case in cases(ending_with(norm_of("rms"), 0.1, placement == "post")):
        stopped = sum(stopping(each).sum() for each in fused_sublayer(*case))
        found = torch.autograd.grad(stopped, parts(case), allow_unused=True)
        assert found == (None,) * len(parts(case))


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("dtype", KINDS)
def test_a_seed_drops_what_it_drops_one_by_one(dtype, placement, norm):
    needs(dtype)
    torch.manual_seed(0)
    network = FeedForward(WIDTH, FeedForwardSpec(width=96, activation="gelu"))
    ending = ending_with(norm_of(norm), 0.3, placement == "post")
    x, read = inputs_of((2, 40), placement, False)
    mine = [x, read, *network.parameters()]
    mine += [] if ending.any_norm is None else list(ending.any_norm.parameters())

    def plain() -> tuple[Tensor, Tensor]:
        return residual_norm(x, network(read), ending)

    def fused() -> tuple[Tensor, Tensor] | None:
        return in_one_call(network, x, read, ending, nowhere())

    def drawn(seed: int, compute: Callable[[], tuple[Tensor, Tensor] | None]) -> list[Tensor]:
        torch.manual_seed(seed)
        with on_processor(network), autocast(dtype):
            found = compute()
        after = torch.rand(1)  # as many random numbers were drawn
        total = sum(each.float().square().sum() for each in found)
        return [*found, after, *torch.autograd.grad(total, mine)]

    one = drawn(5, fused)
    other = drawn(5, plain)
    assert all(map(torch.equal, one[:3], other[:3]))
    for each, wanted in zip(one, other, strict=True):
        near(each, wanted, 1e-2 if dtype == HALF else 5e-6)
    again = drawn(6, fused)
    assert not torch.equal(again[0], one[0])


@pytest.mark.parametrize("dtype", KINDS)
def test_what_is_dropped_has_no_gradient(dtype):
    needs(dtype)
    for case in cases(ending_with(None, 0.3, False)):
        with autocast(dtype):
            whole, _ = fused_sublayer(*case)
        dropped = (whole == case.x).to(whole.dtype)
        assert dropped.mean().item() == pytest.approx(0.3, abs=0.06)
        learned = [case.second.bias, case.second.weight, case.first.weight]
        bias, *_ = torch.autograd.grad(whole, learned, 1 - dropped, retain_graph=True)
        near(bias, (1 - dropped).flatten(0, -2).sum(0) / 0.7, 1e-2 if dtype == HALF else 5e-6)
        found = torch.autograd.grad(whole, learned, dropped)
        assert not any(each.any() for each in found)


@pytest.mark.parametrize("dtype", KINDS)
def test_threads_change_nothing(dtype):
    needs(dtype)
    ending = ending_with(norm_of("layer", 128), 0.1, False)
    torch.manual_seed(0)
    layout = laid([60, 90, 33, 71], "repeats")
    x, read = leaf(*layout.shape, 128), leaf(*layout.shape, 128)
    positions = Positions.of_self(layout.positions)
    heads = Heads(4, 2, 0.2, positions, Causal(), layout.rows)
    attends = Case(x, read, map_of(256, 128, True), heads, map_of(128, 128, True), ending)
    feeds = Case(x, read, map_of(512, 128, True), "silu", map_of(128, 512, True), ending)

    def found(case: Case, threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        with autocast(dtype):
            outputs = fused_sublayer(*case)
        total = sum(each.float().square().sum() for each in outputs)
        return [*outputs, *torch.autograd.grad(total, case.learned)]

    before = torch.get_num_threads()
    try:
        for case in (attends, feeds):
            assert all(map(torch.equal, found(case, 1), found(case, 2)))
    finally:
        torch.set_num_threads(before)


class Guarded:
    """PyTorch, whose new tensors are followed by memory that is watched."""

    def __init__(self) -> None:
        self.watched: list[Tensor] = []

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        size = math.prod(shape)
        whole = torch.full((size + BEYOND,), 7, dtype=dtype)
        self.watched.append(whole[size:])
        return whole[:size].view(shape)

    def empty_like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return self.empty(*tensor.shape, dtype=dtype or tensor.dtype)


@at_levels
@pytest.mark.parametrize("dtype", KINDS)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    of_memory=st.booleans(),
    sizes=st.sampled_from(SIZES),
    inner=st.integers(1, 70) | st.integers(1, 1500),
    activation=st.sampled_from([None, *ACTIVATIONS]),
    norm=st.sampled_from(["none", "layer"]),
    drops=st.booleans(),
    same=st.booleans(),
)
@settings(max_examples=15)
def test_nothing_is_written_past_the_memory_for_it(
    dtype, lengths, of_memory, sizes, inner, activation, norm, drops, same
):
    needs(dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # past the room of the first there is otherwise that of the next
    ending = ending_with(norm_of(norm), 0.3 if drops else 0.0, same)
    layout = laid(lengths, "repeats")
    if activation is None:
        keys = layout if of_memory else None
        case = attention_case(layout, keys, "causal", sizes, "first, second", ending)
    else:
        case = feedforward_case(layout.shape, activation, 2 * inner, "first, second", ending)
    guarded = Guarded()
    try:
        with pytest.MonkeyPatch.context() as patch, autocast(dtype):
            patch.setattr(fused_module, "torch", guarded)
            outputs = fused_sublayer(*case)
            total = sum(each.float().square().sum() for each in outputs)
            torch.autograd.grad(total, case.learned)
    finally:
        torch.set_num_threads(threads)
    assert len(guarded.watched) >= 3 + 1 + 4  # of the pass: sum, kept and room; of gradients more
    assert all(bool((each == 7).all()) for each in guarded.watched)


def memory_of(states: Tensor, positions: Tensor, rows: RealRows | None = None) -> Memory:
    """A memory of states that come without their padding where there are rows."""
    if rows is None:
        return Memory(states, positions)
    padded = Memory(rows.unpack(states), positions)
    return PackedMemory(states, positions, rows=rows, padded=padded)


def seen_by(
    how: str = "repeats", memory: str | None = None, **changes: object
) -> tuple[Tensor, Context, Memory]:
    """What a block is given: its input, sight and memory, which may be laid out otherwise."""
    layout = laid([30, 41, 9], how)
    rows = layout.rows if how != "left" else real_rows(layout.positions)
    positions = Positions.of_self(layout.positions)
    keys, key_rows = layout.positions, rows
    if memory is not None:
        keys = laid([30, 41, 9], memory).positions
        key_rows = real_rows(keys)
    of_memory = Positions(layout.positions, keys)
    shape, key_shape = (
        at.shape if of is None else of.positions.shape
        for of, at in ((rows, positions.query), (key_rows, keys))
    )
    x, states = leaf(*shape, WIDTH), leaf(*key_shape, WIDTH)
    context = Context(positions, of_memory, **changes)
    if rows is not None:
        context = PackedContext.of(context, rows, x)
    return x, context, memory_of(states, keys, key_rows)


def passed(block: Block, how: str = "repeats", **changes: object) -> Tensor:
    """What a block gives for some sentences."""
    x, context, memory = seen_by(how, **changes)
    with on_processor(block):
        projected = block.cross_attention.read(memory)
        return block(x, context, (None, projected, None))[0]


def test_every_part_of_a_block_is_one_call():
    for placement in ("pre", "post"):
        assert calls(passed(Block(WIDTH, block_of(placement=placement)))) == 3


UNSERVED = {
    "attention that drops": ({"dropout": 0.1}, 2),
    "cross-attention that drops": ({"cross": {"dropout": 0.1}}, 2),
    "rotary": ({"rotary": RotarySpec()}, 2),
    "soft cap": ({"softcap": 30.0}, 2),
    "biases of positions": ({"position_bias": AlibiSpec()}, 2),
    "heads too narrow": ({"head_width": 4}, 2),
    "network that drops": ({"feedforward": {"dropout": 0.1}}, 2),
    "gated network": ({"feedforward": {"activation": "swiglu"}}, 2),
    "experts": ({"feedforward": {"experts": ExpertsSpec(num_experts=2)}}, 2),
    "odd width": ({"feedforward": {"width": 49}}, 2),
}


@pytest.mark.parametrize("name", UNSERVED)
def test_other_architectures_go_one_by_one(name):
    changes, count = UNSERVED[name]
    attention_only = {key: changes[key] for key in changes if key == "dropout"}
    spec = block_of(**{key: changes[key] for key in changes if key not in attention_only})
    own = spec.self_attention.model_copy(update=attention_only)
    block = Block(WIDTH, spec.replace(self_attention=own))
    y = passed(block)
    assert calls(y) == count
    assert y.isfinite().all()


HOOKED = {
    "self_attention": 2,
    "self_attention.projection": 2,
    "self_attention.output": 2,
    "cross_attention.projection": 2,
    "cross_attention.memory_projection": 2,
    "cross_attention.output": 2,
    "feedforward": 2,
    "feedforward.up": 2,
    "feedforward.down": 2,
}


@pytest.mark.parametrize("name", HOOKED)
@pytest.mark.parametrize("kind", ["forward_pre", "forward", "full_backward_pre", "full_backward"])
def test_a_module_that_is_watched_is_called(name, kind):
    block = Block(WIDTH, block_of())
    called = []
    watched = block.get_submodule(name)
    handle = getattr(watched, f"register_{kind}_hook")(lambda *_: called.append(name))
    y = passed(block)
    assert calls(y) == HOOKED[name]
    y.sum().backward()
    assert called == [name]
    handle.remove()
    assert calls(passed(block)) == 3


def test_what_is_looked_into_cut_or_not_trained_goes_one_by_one():
    block = Block(WIDTH, block_of())
    assert calls(passed(block, "full")) == 3
    assert calls(passed(block, "full", capture=Capture([]))) == 0
    block.cut = frozenset({"cross"})
    assert calls(passed(block)) == 2
    block.cut = frozenset()
    assert calls(passed(block)) == 3
    assert calls(passed(block.eval(), "full")) == 0


def test_with_a_cache_self_attention_goes_one_by_one():
    block = Block(WIDTH, block_of())
    x, context, memory = seen_by("full")
    empty = torch.empty(x.shape[0], 2, 0, 16)
    with on_processor(block):
        projected = block.cross_attention.read(memory)
        states = (GrowingCache.empty(empty, empty), projected, None)
        y, (cache, *_) = block(x, context, states)
    assert calls(y) == 2
    assert cache.keys.shape[2] == x.shape[1]


def test_biases_that_all_blocks_share_are_added():
    bias = build_bias(AlibiSpec(), AttentionSpec(num_heads=4), WIDTH)
    assert calls(passed(Block(WIDTH, block_of()), biases=(bias,))) == 2


@pytest.mark.parametrize(("how", "count"), [("left", 1), ("right", 3), ("full", 3)])
def test_attention_of_rows_needs_them_in_front(how, count):
    assert calls(passed(Block(WIDTH, block_of()), how)) == count


def test_rows_of_a_memory_need_to_be_in_front_too():
    block = Block(WIDTH, block_of())
    assert calls(passed(block, memory="right")) == 3
    assert calls(passed(block, memory="left")) == 2


@pytest.mark.parametrize(("length", "count"), [(256, 3), (257, 1)])
def test_long_sequences_attend_one_by_one(length, count):
    block = Block(WIDTH, block_of())
    positions = Positions.of_self(torch.arange(length)[None])
    x = leaf(1, length, WIDTH)
    short = Positions(positions.query, torch.arange(3)[None])
    with on_processor(block):
        memory = block.cross_attention.read(Memory(leaf(1, 3, WIDTH), torch.arange(3)[None]))
        assert calls(block(x, Context(positions, short), (None, memory, None))[0]) == count


def test_without_gradients_there_is_no_such_call():
    case = cases(ending_with(norm_of("layer"), 0.0, False))[0]
    assert fused_sublayer(*case) is not None
    with torch.no_grad():
        assert fused_sublayer(*case) is None
    with Precision("fp32", "cpu", own=False).autocast():
        assert fused_sublayer(*case) is None
    block = Block(WIDTH, block_of())
    x, context, memory = seen_by()
    with on_processor(block), torch.no_grad():
        projected = block.cross_attention.read(memory)
        assert not block(x, context, (None, projected, None))[0].requires_grad


def test_few_rows_and_narrow_maps_go_one_by_one(monkeypatch):
    case = cases(ending_with(norm_of("layer"), 0.0, False))[0]
    monkeypatch.setattr(products, "_FEWEST_ROWS", 80)
    assert fused_sublayer(*case) is not None
    monkeypatch.setattr(products, "_FEWEST_ROWS", 81)
    assert fused_sublayer(*case) is None
    monkeypatch.setattr(products, "_FEWEST_ROWS", 80)
    monkeypatch.setattr(library, "_MIN_FUSED_WIDTH", WIDTH)
    assert fused_sublayer(*case) is not None
    monkeypatch.setattr(library, "_MIN_FUSED_WIDTH", WIDTH + 1)
    assert fused_sublayer(*case) is None


def test_numbers_of_other_types_go_one_by_one():
    case = cases(ending_with(norm_of("layer"), 0.0, False))[0]
    assert fused_sublayer(*case._replace(x=case.x.double())) is None
    assert fused_sublayer(*case._replace(read=case.read.double())) is None
    assert (
        fused_sublayer(*case._replace(ending=ending_with(norm_of("layer").double(), 0.0, False)))
        is None
    )
    for name in ("first", "second"):
        map = getattr(case, name)
        double = map._replace(weight=map.weight.detach().double().requires_grad_())
        assert fused_sublayer(*case._replace(**{name: double})) is None
    plain = nn.LayerNorm(WIDTH, elementwise_affine=False)
    assert fused_sublayer(*case._replace(ending=ending_with(plain, 0.0, False))) is None
    attends = attention_of_rows(ending_with(None, 0.0, False))
    memory = ProjectedMemory(attends.between.memory.projected.double(), attends.between.memory.rows)
    between = dataclasses.replace(attends.between, memory=memory)
    assert fused_sublayer(*attends._replace(between=between)) is None


@pytest.mark.parametrize("name", ["self_attention.output", "feedforward.up", "feedforward.down"])
def test_a_bias_that_is_learned_alone_is_learned_one_by_one(name):
    block = Block(WIDTH, block_of())
    map = block.get_submodule(name)
    map.weight.requires_grad_(False)
    y = passed(block)
    assert calls(y) == 2
    y.square().sum().backward()
    assert map.weight.grad is None
    assert map.bias.grad.abs().sum() > 0
    map.bias.requires_grad_(False)
    assert calls(passed(block)) == 3


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("self_attention.output", 2),
        ("feedforward.up", 2),
        ("feedforward.down", 2),
        ("self_attention.projection", 3),  # whose weight is put together before
    ],
)
def test_weights_that_are_put_together_are_learned(name, count):
    block = Block(WIDTH, block_of())
    map = block.get_submodule(name)
    rows, width = map.weight.shape
    change = LowRank({"part": (0, rows)}, width, rank=4, scale=1.0)
    torch.nn.utils.parametrize.register_parametrization(map, "weight", change)
    y = passed(block)
    assert calls(y) == count
    y.square().sum().backward()
    assert change.up["part"].grad.abs().sum() > 0


def test_heads_that_were_pruned_unevenly_attend_one_by_one():
    def found(*kept: int) -> tuple[Tensor, Tensor] | None:
        layer = SelfAttention(WIDTH, attention_of_blocks().model_copy(update={"kept_heads": kept}))
        x, positions = leaf(2, 40, WIDTH), Positions.of_self(torch.arange(40).repeat(2, 1))
        with on_processor(layer):
            ending = ending_with(None, 0.0, False)
            return in_one_call(layer, x, x, ending, Context(positions))

    assert found(0, 1, 2, 3) is not None
    assert found(2, 3) is not None
    assert found(0, 1, 2) is None
    assert found() is None


@pytest.mark.parametrize("how", ["repeats", "right"])
def test_keys_and_values_are_taken_apart_for_whoever_asks(how):
    torch.manual_seed(0)
    layer = CrossAttention(WIDTH, attention_of_blocks().model_copy(update={"over": "memory"}))
    layout = laid([5, 20, 11], how)
    states = leaf(*layout.shape, WIDTH)
    memory = memory_of(states, layout.positions, layout.rows)
    with on_processor(layer):
        learned = layer.read(memory)
    assert isinstance(learned, LearnedKeyValues)
    with torch.no_grad():
        with on_processor(layer):
            plain = layer.read(memory)
            assert learned.plain.keys.requires_grad, (
                "kept for all, though the first to ask learns nothing"
            )
        definition = layer.read(getattr(memory, "padded", memory))
    assert type(plain) is KeyValues
    real = (layout.positions >= 0)[:, None, :, None]
    for name in ("keys", "values"):
        one = getattr(learned.plain, name)
        for other in (getattr(plain, name), getattr(definition, name)):
            near(one * real, other * real, 5e-6)  # PyTorch multiplies where nothing is learned
        assert getattr(learned.plain, name) is one
    assert learned.reorder(Reordering(torch.zeros(2, 1), torch.tensor([2, 0]))).keys.shape[0] == 2
    up = torch.randn_like(learned.plain.keys) * real
    (gradient,) = torch.autograd.grad(learned.plain.keys, states, up)
    weight = layer.memory_projection.weight[: 2 * 16].double()
    wanted = up.transpose(1, 2).flatten(2).double() @ weight
    if layout.rows is not None:
        wanted, gradient = wanted[layout.positions >= 0], gradient[0, : layout.rows.count]
    near(gradient, wanted, 5e-6)
    with on_processor(layer):
        assert type(layer.eval().read(memory)) is KeyValues


def test_a_plain_memory_is_attended_to_one_by_one():
    block = Block(WIDTH, block_of())
    x, context, memory = seen_by("full")
    with on_processor(block):
        learned = block.cross_attention.read(memory)
        plain = learned.plain
        counts = [calls(block(x, context, (None, each, None))[0]) for each in (learned, plain)]
        assert counts == [3, 2]
        one, other = (block(x, context, (None, each, None))[0] for each in (learned, plain))
    assert torch.equal(one, other)
