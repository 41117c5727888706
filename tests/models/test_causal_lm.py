"""The causal model: caches of every kind equal one pass, padding and packing do not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.config import read_toml_text
from heedful.data.batches import WindowBatch
from heedful.device import Precision
from heedful.engines.inference.prepare import prepare
from heedful.errors import ModelError
from heedful.models import preset_files as sizes
from heedful.models.causal_lm import CausalLM
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.cache import RingCache, StaticCache
from heedful.nn.attention.masks import AllOf, Causal, SameSegment, Window
from heedful.nn.attention.sparse_masks import RandomBlocks, Window2d
from heedful.nn.spec import (
    AlibiSpec,
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
)
from heedful.train.objective import CausalLMObjective, LossContext
from tests.reference_parts import GrowingCache

VOCABULARY, WINDOW = 30, 4
LEARNED = {"embedding": EmbeddingSpec(positions=PositionSpec(kind="learned", max_length=24))}
ROTARY = {"embedding": EmbeddingSpec(scale=False, positions=PositionSpec(kind="none"))}
WINDOWED = AllOf(parts=(Causal(), Window(size=WINDOW)))
MODELS = {
    "learned": (LEARNED, {}),
    "rotary, grouped": (ROTARY, {"rotary": RotarySpec(), "num_kv_heads": 2, "bias": False}),
    "untied, output bias": ({"tied": False, "output_bias": True}, {}),
    "alibi, window": (ROTARY, {"position_bias": AlibiSpec(), "mask": WINDOWED}),
    "rotary, window": (ROTARY, {"rotary": RotarySpec(), "mask": WINDOWED}),
}


def build(name: str, seed: int = 0, **attention) -> CausalLM:
    torch.manual_seed(seed)
    model, changes = MODELS[name]
    block = BlockSpec.of(
        norm_placement="pre",
        self_attention=AttentionSpec(**{"num_heads": 4, "mask": Causal(), **changes, **attention}),
        feedforward=FeedForwardSpec(width=24),
    )
    stack = StackSpec.of(num_layers=2, block=block, final_norm=NormSpec())
    made = CausalLM(CausalLMSpec(width=16, vocabulary=VOCABULARY, decoder=stack, **model)).eval()
    if made.output_bias is not None:
        torch.nn.init.normal_(made.output_bias)
    return made


def caches_of(kind: str, chunk: int):
    if kind == "growing":
        return GrowingCache.empty
    if kind == "static":
        return lambda k, v: StaticCache.empty(k, v, 24)
    return lambda k, v: RingCache.empty(k, v, WINDOW + chunk - 1, WINDOW)


def place(rows: list[list[int]], size: int, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and positions with padding on one side."""
    ids, positions = [], []
    for row in rows:
        gap = size - len(row)
        real = list(range(len(row)))
        ids.append([0] * gap + row if left else row + [0] * gap)
        positions.append([-1] * gap + real if left else real + [-1] * gap)
    return torch.tensor(ids), torch.tensor(positions)


def draw(length: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (length,)).tolist()


def alone(model: CausalLM, row: list[int]) -> torch.Tensor:
    """Logits [L, V] of one text by itself, in one pass."""
    return model.logits(model(torch.tensor([row]), torch.arange(len(row))[None]))[0]


def close(a, b) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["none", "growing", "static", "ring"])
@pytest.mark.parametrize("name", MODELS)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    left=st.booleans(),
    extra=st.integers(0, 2),
    chunk=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=6)
@torch.no_grad()
def test_neither_padding_nor_neighbours_nor_caches_nor_chunks_matter(
    name, kind, lengths, left, extra, chunk, seed
):
    model = build(name, seed)
    if kind == "ring" and model.window is None:
        return
    rows = [draw(length) for length in lengths]
    ids, positions = place(rows, max(lengths) + extra, left=left)
    if kind == "none":
        states = model(ids, positions)
    else:
        state = model.start(ids[:, :0], positions[:, :0], make_cache=caches_of(kind, chunk))
        parts = []
        for part, at in zip(ids.split(chunk, 1), positions.split(chunk, 1), strict=True):
            found, state = model.extend(state, part, at)
            parts.append(found)
        states = torch.cat(parts, 1)
    for row, found, at in zip(rows, model.logits(states), positions, strict=True):
        close(found[at >= 0], alone(model, row))


@pytest.mark.parametrize("kind", ["growing", "static", "ring"])
@pytest.mark.parametrize("name", ["learned", "rotary, window"])
@pytest.mark.parametrize("kept", [False, True])
@torch.no_grad()
def test_steps_after_a_prompt_equal_one_pass(name, kind, kept):
    model = build(name)
    if kept:  # as those are that generate
        model = prepare(model, Precision("fp32", "cpu"))
    if kind == "ring" and model.window is None:
        kind = "growing"
    rows = [draw(9), draw(4), []]  # the last prompt has nothing before its first step
    ids, positions = place(rows, 10, left=False)
    chunk = 3
    state = model.start(ids, positions, make_cache=caches_of(kind, chunk), chunk=chunk)
    for _ in range(8):
        tokens = torch.randint(0, VOCABULARY, (3, 1))
        logits, state = model.step(state, tokens)
        for row, token, found in zip(rows, tokens.tolist(), logits, strict=True):
            row += token
            close(found[0], alone(model, row)[-1])


@torch.no_grad()
def test_a_prompt_of_nothing_at_all():
    model = build("learned")
    nothing = torch.zeros((2, 0), dtype=torch.int64)
    logits, _ = model.step(model.start(nothing, nothing), torch.tensor([[5], [6]]))
    close(logits[1, 0], alone(model, [6])[0])


@torch.no_grad()
def test_caches_hold_the_type_that_keys_come_in():
    model = build("rotary, grouped")
    tokens = torch.tensor([[5], [6]])
    with torch.autocast("cpu", torch.bfloat16):
        state = model.start(tokens, torch.zeros_like(tokens), make_cache=caches_of("static", 1))
        logits, state = model.step(state, tokens)
    assert state.decoder.blocks[0][0].keys.dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits[0, 0], alone(model, [5, 5])[-1], atol=0.1, rtol=0)


@pytest.mark.parametrize("kind", ["growing", "static", "ring"])
@torch.no_grad()
def test_reorder_chooses_continuations_and_prompts(kind):
    model = build("rotary, window")
    rows = [draw(5), draw(2), draw(7)]
    ids, positions = place(rows, 7, left=True)
    state = model.start(ids, positions, make_cache=caches_of(kind, 7))
    state = model.reorder(state, torch.tensor([[0, 0], [1, 1], [2, 2]]))
    _, state = model.step(state, torch.tensor([[10, 11], [12, 13], [14, 15]]))
    # Prompt 0 has left; those of 1 change places, and 2 keeps its second one only.
    state = model.reorder(state, torch.tensor([[3, 2], [5, 5]]))
    logits, _ = model.step(state, torch.tensor([[20, 21], [22, 23]]))
    texts = [[*rows[1], 13, 20], [*rows[1], 12, 21], [*rows[2], 15, 22], [*rows[2], 15, 23]]
    for text, found in zip(texts, logits.flatten(0, 1), strict=True):
        close(found, alone(model, text)[-1])


@torch.no_grad()
def test_packed_texts_do_not_see_each_other():
    mask = AllOf(parts=(Causal(), SameSegment()))
    model = build("learned", mask=mask)
    rows = [draw(4), draw(6), draw(3)]
    ids = torch.tensor([[*rows[0], *rows[1], *rows[2], 0]])
    positions = torch.tensor([[*range(4), *range(6), *range(3), -1]])
    segments = torch.tensor([[0] * 4 + [1] * 6 + [2] * 4])
    found = model.logits(model(ids, positions, segments))[0]
    close(found[:13], torch.cat([alone(model, row) for row in rows]))
    # And without segments the mask shows all that is causal.
    close(alone(model, rows[0]), alone(build("learned"), rows[0]))


def test_segments_that_the_mask_does_not_heed_are_refused():
    zeros = torch.zeros((1, 3), dtype=torch.int64)
    with pytest.raises(ModelError, match="would see each other"):
        build("learned")(zeros, zeros, zeros)


def test_a_position_past_the_learned_table_is_refused():
    with pytest.raises(ModelError, match="Position 24"):
        build("learned")(torch.zeros((1, 25), dtype=torch.int64), torch.arange(25)[None])


@torch.no_grad()
def test_an_output_bias_is_added_to_every_score():
    model = build("untied, output bias")
    states = torch.randn(2, 16)
    expected = states @ model.output_projection.weight.T + model.output_bias
    close(model.logits(states), expected)
    assert model.output_bias.abs().max() > 0.1


def test_the_loss_is_that_of_capped_logits():
    model = build("untied, output bias")
    model.spec = model.spec.model_copy(update={"logits_softcap": 0.5})
    ids = torch.randint(0, VOCABULARY, (2, 6))
    positions, targets = torch.arange(6).expand(2, 6), ids.roll(-1, 1)
    batch = WindowBatch(ids, positions, torch.zeros_like(ids), targets, torch.arange(2), 12)
    found = CausalLMObjective(0.0).loss(model, batch, LossContext(1)).loss_sum
    scores = model(ids, positions) @ model.output_weight.T + model.output_bias
    capped = 0.5 * (scores / 0.5).tanh()
    close(model.logits(model(ids, positions)), capped)
    loss = torch.nn.functional.cross_entropy(capped.flatten(0, 1), targets.flatten())
    close(found / 12, loss)


def test_tying_ties_and_windows_are_known():
    def count(name):
        return sum(p.numel() for p in build(name).parameters())

    plain = count("learned") - 24 * 16
    assert count("untied, output bias") - plain == VOCABULARY * 16 + VOCABULARY
    assert build("alibi, window").window == WINDOW
    # A window in an image of 4 columns: a row above, and 2 columns to the left of the token's own.
    seen = (Causal(), Window2d(columns=4, height=2, width=3))
    assert build("alibi, window", mask=AllOf(seen)).window == 7
    drawn = (Causal(), RandomBlocks(size=2, count=1, length=8, seed=3))
    assert build("alibi, window", mask=AllOf(drawn)).window is None
    assert build("learned").window is None


PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "gpt3": 174_604_259_328,  # the paper rounds to 175.0 billion
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_numbers_of_parameters(name):
    file = sizes._FOLDER / f"{name}.toml"
    preset = read_toml_text(file.read_text(encoding="utf-8"), where=name)
    with torch.device("meta"):
        model = CausalLM(CausalLMSpec.parse(preset["spec"]))
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]
    assert preset["published_parameters"] == PUBLISHED[name]
