"""A stack in one call: what its modules give, bit for bit what its blocks give one by one."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.pruning import ablated
from heedful.apps.pruning.head_pruning import without_heads
from heedful.device import Precision
from heedful.engines.class_exchange import become
from heedful.engines.inference.cpu_attention import set_positions
from heedful.engines.inference.cpu_model import CpuInputEmbedding
from heedful.engines.inference.prepare import prepare
from heedful.errors import ModelError
from heedful.kernels import library
from heedful.kernels.structs import AttentionArgs
from heedful.models.causal_lm import CausalLM
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack import Stack
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.models.translator import Translator
from heedful.nn.attention.cache import KeyValues
from heedful.nn.attention.masks import Causal, Everything, Mask, Window
from heedful.nn.capture import Capture
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.positions import Positions
from heedful.nn.spec import AttentionSpec, EmbeddingSpec, FeedForwardSpec, NormSpec, PositionSpec
from tests.reference_parts import GrowingCache

from . import searches
from .searches import ids, padded

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no kernels were compiled here")
IN_ONE = {
    "2017": {},
    "pre-norm, RMS, SwiGLU, no bias": {
        "norm_placement": "pre",
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
    },
    "grouped, learned positions, GELU": {
        "num_kv_heads": 2,
        "positions": "learned",
        "activation": "gelu",
    },
    "window": {"window": 3},
    "rotary, grouped": {"positions": "rotary", "num_kv_heads": 2},
    "wide heads": {"num_heads": 1},
}
ONE_BY_ONE = {
    "alibi": {"positions": "alibi"},
    "t5": {"positions": "t5"},
}


def prepared(model, name="fp32"):
    return prepare(model, Precision(name, "cpu"))


def stacks(model) -> list[Stack]:
    return [module for module in model.modules() if isinstance(module, Stack)]


def refuse(*_, **__):
    raise AssertionError("a block was asked by itself")


@contextlib.contextmanager
def asked(model, *, one_by_one: bool):
    """Either way of computing stacks, and no other."""
    with pytest.MonkeyPatch.context() as patch:
        for stack in stacks(model):
            assert stack.program is not None
            if one_by_one:
                patch.setattr(stack, "program", None)
            else:
                patch.setattr(stack, "cpu_blocks", [refuse] * len(stack.blocks))
        yield


def searched(model: Translator, source: torch.Tensor, positions: torch.Tensor):
    """A search past a store's first room."""
    reorders = {
        0: [[s] * 4 for s in range(len(source))],
        2: [[1, 0, 1], [9, 11, 10]],
        5: [[2, 2, 0]],
        9: [[1, 0]],
    }
    return searches.searched(model, source, positions, reorders, 24)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", IN_ONE)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_a_search_in_one_call_a_step(build, name, side, precision):
    if precision == "int8" and not library.has_int8_kernels():
        pytest.skip("no kernels for 8-bit products here")
    engine = prepared(build(**IN_ONE[name]), precision)
    source, positions = ids(4, 9, seed=5), padded([9, 4, 1, 7], 9, side)
    with asked(engine, one_by_one=False):
        states = engine.encode(source, positions).states
        found, _ = searched(engine, source, positions)
    with asked(engine, one_by_one=True):
        assert torch.equal(engine.encode(source, positions).states, states)
        expected, _ = searched(engine, source, positions)
    assert all(map(torch.equal, found, expected))
    if precision == "fp32":
        plain, _ = searched(build(**IN_ONE[name]), source, positions)
        for one, two in zip(found, plain, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_where_more_than_c_is_needed_blocks_are_asked_one_by_one(build, name):
    model = prepared(build(**ONE_BY_ONE[name]))
    source, positions = ids(4, 5, seed=1), padded([5, 3, 2, 4], 5, "right")
    with torch.inference_mode():
        found, _ = searched(model, source, positions)
        plain, _ = searched(build(**ONE_BY_ONE[name]), source, positions)
    for one, two in zip(found, plain, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    if name != "t5":  # whose biases come with each pass
        assert all(stack.program is None for stack in stacks(model))


@torch.inference_mode()
def test_layers_of_different_heads_are_asked_one_by_one(build):
    same = {("decoder", layer, "self_attention"): [0] for layer in (0, 1)}
    gone = {("encoder", 0, "self_attention"): [1, 2], ("decoder", 1, "cross_attention"): range(4)}
    model = prepared(without_heads(build(), {**same, **gone}))
    assert [stack.program is None for stack in stacks(model)] == [True, True]
    nothing = {("decoder", layer, "cross_attention"): range(4) for layer in (0, 1)}
    plain = without_heads(build(), {**same, **nothing})
    model = prepared(without_heads(build(), {**same, **nothing}))
    source, positions = ids(4, 5, seed=1), padded([5, 3, 4, 5], 5, "right")
    with asked(model, one_by_one=False):
        found, _ = searched(model, source, positions)
    expected, _ = searched(plain, source, positions)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_memories_that_lie_otherwise_are_read_by_blocks(build):
    model = prepared(build())
    source, positions = ids(4, 5, seed=1), padded([5, 3, 4, 5], 5, "right")
    state = model.start(source, positions)
    tokens = torch.full((4, 1), 2)
    expected, _ = model.step(state, tokens)

    def turned(each: torch.Tensor) -> torch.Tensor:
        return each.transpose(2, 3).contiguous().transpose(2, 3)

    for chosen in ([0, 1], [1]):  # all of them otherwise than kernels read them; one
        blocks = [
            (own, KeyValues(turned(read.keys), turned(read.values)) if i in chosen else read, None)
            for i, (own, read, _) in enumerate(state.decoder.blocks)
        ]
        found, _ = model.decoder.step(
            model.target_input(tokens, tokens * 0, model.target_embedding),
            tokens * 0,
            replace(state.decoder, blocks=tuple(blocks)),
        )
        torch.testing.assert_close(model.logits(found), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_state_is_a_value(build):
    """Two searches that go on from one state do not write into each other's past."""
    model = prepared(build())
    source, positions = ids(2, 6, seed=3), padded([6, 4], 6, "right")
    _, state = model.step(model.start(source, positions), torch.full((2, 1), 2))
    state = model.reorder(state, torch.tensor([[0, 0], [1, 1]]))
    one, two = ids(2, 2, seed=8), ids(2, 2, seed=9)
    with asked(model, one_by_one=False):
        _, first = model.step(state, one)
        alone, _ = model.step(first, two)
        _, second = model.step(state, two)
        again, _ = model.step(first, two)
        other, _ = model.step(second, two)
    assert torch.equal(alone, again)
    assert not torch.equal(alone, other)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_a_language_model_reads_prompts_and_goes_on(side):
    def made() -> CausalLM:
        torch.manual_seed(1)
        block = BlockSpec.of(
            norm_placement="pre",
            self_attention=AttentionSpec(num_heads=4, mask=Causal()),
            feedforward=FeedForwardSpec(width=48, activation="gelu"),
        )
        stack = StackSpec.of(num_layers=2, block=block, final_norm=NormSpec())
        embedding = EmbeddingSpec(positions=PositionSpec(kind="learned", max_length=30))
        spec = CausalLMSpec(width=64, vocabulary=50, decoder=stack, embedding=embedding)
        return CausalLM(spec).eval()

    plain, engine = made(), prepared(made())
    prompt, positions = ids(3, 7, seed=2), padded([7, 2, 5], 7, side)
    found = []
    for model in (plain, engine):
        with asked(model, one_by_one=False) if model is engine else contextlib.nullcontext():
            state, tokens, logits = model.start(prompt, positions), ids(3, 1, seed=4), []
            for step in range(5):
                scores, state = model.step(state, tokens)
                logits.append(scores)
                if step == 1:
                    rows = torch.tensor([[0, 0, 0], [2, 2, 2]])
                    state, tokens = model.reorder(state, rows), ids(2, 3, seed=6)
            apart = model.start(prompt, positions, make_cache=None, chunk=3)
            logits.append(model.step(apart, ids(3, 1, seed=4))[0])
        found.append(logits)
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)
    empty = engine.start(prompt[:, :0], positions[:, :0], make_cache=GrowingCache.empty)
    states, _ = engine.extend(empty, prompt, positions)  # kept as blocks keep it
    expected = plain(prompt, positions)
    real = positions >= 0
    torch.testing.assert_close(states[real], expected[real], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_who_looks_in_or_takes_away_asks_blocks(build):
    model = prepared(build())
    source, positions = ids(2, 5, seed=1), padded([5, 3], 5, "right")
    real = positions >= 0
    whole = model.encode(source, positions).states
    capture = Capture(["encoder.1.output"])
    shown = model.encode(source, positions, capture).states
    torch.testing.assert_close(shown[real], whole[real], rtol=1e-4, atol=1e-4)
    assert list(capture.found) == ["encoder.1.output"]
    plain = build()
    parts = ("positions", "0.self.norm", "1.feedforward", "1.feedforward.residual", "1.self.scale")
    for part in parts:
        found = []
        for each in (model, plain):
            with ablated(each, f"encoder.{part}"):
                found.append(each.encode(source, positions).states[real])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(found[0], whole[real])
    for each in (model, plain):
        each.encoder.blocks[1].cut = frozenset({"self"})
    found = [each.encode(source, positions).states[real] for each in (model, plain)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found[0], whole[real])


@given(
    batch=st.integers(1, 3),
    queries=st.integers(1, 4),
    keys=st.integers(1, 9),
    mask=st.sampled_from([Everything(), Causal(), Window(2)]),
    shift=st.sampled_from([-1, 0, 3]),
    lineage=st.booleans(),
    spread=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=150)
def test_who_sees_whom(batch, queries, keys, mask: Mask, shift, lineage, spread, seed):
    generator = torch.Generator().manual_seed(seed)

    def places(count: int) -> torch.Tensor:
        return torch.randint(-1, 6, (batch, count), generator=generator).add(shift).clamp(min=-1)

    query, key = places(queries), places(keys)
    if spread:
        query = query[:, :1].expand(-1, queries)
    own = None
    if lineage:
        own = torch.randint(0, 3, (batch, queries, keys), generator=generator) > 0
    positions = Positions(query, key, lineage=own)
    described = AttentionArgs()
    told = set_positions(described, positions, mask)
    expected = [
        [
            [
                bool(
                    q >= 0
                    and k >= 0
                    and (k <= q if mask == Causal() else True)
                    and (abs(k - q) <= 1 if isinstance(mask, Window) else True)
                    and (own is None or own[b, i, j])
                )
                for j, k in enumerate(key[b].tolist())
            ]
            for i, q in enumerate(query[b].tolist())
        ]
        for b in range(batch)
    ]
    assert (described.batch, described.num_queries, described.num_keys) == (batch, queries, keys)
    if told is None:
        assert torch.tensor(expected).all()
    else:
        assert told.data_ptr() == described.visible
        assert told[:, 0].bool().expand(batch, queries, keys).tolist() == expected
        assert not torch.tensor(expected).all()


EMBEDDINGS = {
    "sinusoids in pairs": EmbeddingSpec(),
    "sinusoids in halves, as they are": EmbeddingSpec(
        scale=False, positions=PositionSpec(layout="halves")
    ),
    "learned": EmbeddingSpec(positions=PositionSpec(kind="learned", max_length=12, unused_rows=2)),
    "none": EmbeddingSpec(positions=PositionSpec(kind="none")),
}


@pytest.mark.parametrize("name", EMBEDDINGS)
@torch.no_grad()
def test_what_is_read_of_ids(name, monkeypatch):
    torch.manual_seed(0)
    embedding, table = InputEmbedding(24, EMBEDDINGS[name]).eval(), TokenEmbedding(50, 24)
    read, positions = ids(3, 12, seed=1), padded([12, 0, 5], 12, "left")
    expected = embedding(read, positions, table)
    step = embedding(read[:, :1].expand(-1, 3), positions[:, -1:].expand(-1, 3), table)
    embedding = become(embedding, CpuInputEmbedding)
    monkeypatch.setattr(InputEmbedding, "embed", None)
    torch.testing.assert_close(embedding(read, positions, table), expected, rtol=1e-6, atol=1e-6)
    again = embedding(read[:, :1].expand(-1, 3), positions[:, -1:].expand(-1, 3), table)
    torch.testing.assert_close(again, step, rtol=1e-6, atol=1e-6)
    monkeypatch.undo()
    for wrong in (50, -1):
        with pytest.raises(IndexError):
            embedding(torch.tensor([[4, wrong]]), torch.tensor([[0, 1]]), table)
    if name == "learned":
        with pytest.raises(ModelError, match="Position 12 lies past"):
            embedding(torch.tensor([[4]]), torch.tensor([[12]]), table)
    elif name != "none":
        far = torch.tensor([[1 << 15]])  # sinusoids of which no table is kept
        plain = InputEmbedding(24, EMBEDDINGS[name]).eval()
        assert torch.equal(embedding(read[:1, :1], far, table), plain(read[:1, :1], far, table))
    half = TokenEmbedding(50, 24).to(torch.bfloat16)
    assert embedding(read, positions.clamp(max=11), half).dtype == torch.bfloat16


@pytest.mark.usefixtures("level")
@torch.inference_mode()
def test_nothing_to_compute(build):
    model = prepared(build())
    empty = torch.zeros((0, 4), dtype=torch.int64)
    assert model.encode(empty, empty).states.shape == (0, 4, 64)
