"""Texts read in segments with a memory: the states of the whole text, and gradients that end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from heedful.apps.comparison.update_cost import batch_flops
from heedful.data.batches import SegmentBatch
from heedful.errors import ConfigError, ModelError
from heedful.models.build import build_model
from heedful.models.causal_lm import CausalLM
from heedful.models.cost import segment_work
from heedful.models.model_spec import CausalLMSpec
from heedful.models.segment_memory import SegmentMemory
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec, translator_spec, vision_spec
from heedful.nn.mixer import Context
from heedful.nn.pixel_spec import PixelSpec
from heedful.nn.positions import Positions

from ..on_processor import either_way, on_processor

SMALL: dict[str, Any] = {
    "width": 24,
    "decoder_layers": 3,
    "num_heads": 3,
    "feedforward": 32,
    "dropout": 0.0,
    "positions": "transformer_xl",
    "memory": 4,
}


def shape(**changes: Any) -> TranslatorShape:
    return TranslatorShape(**(SMALL | changes))


def model_of(**changes: Any) -> CausalLM:
    torch.manual_seed(0)
    model = build_model(causal_lm_spec(shape(**changes), 20, 8))
    assert isinstance(model, CausalLM)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def text(rows: int = 2, length: int = 11) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(20, (rows, length)), torch.zeros(rows, length, dtype=torch.int64)


def read(model: CausalLM, ids: Tensor, texts: Tensor, length: int) -> tuple[Tensor, SegmentMemory]:
    """All states, read in segments of so many tokens; text −1 is padding."""
    memory, states = model.empty_memory(len(ids)), []
    for start in range(0, ids.shape[1], length):
        part = slice(start, start + length)
        places = torch.arange(ids[:, part].shape[1]).where(texts[:, part] >= 0, -1)
        found, memory = model.read_segment(ids[:, part], places, texts[:, part], memory)
        states.append(found)
    return torch.cat(states, 1), memory


KINDS: dict[str, dict[str, Any]] = {
    "as published": {},
    "pre-norm, grouped": {"norm_placement": "pre", "num_kv_heads": 1},
    "rotary": {"positions": "rotary"},
    "t5, experts": {"positions": "t5", "num_experts": 2},
    "alibi, no bias": {"positions": "alibi", "bias": False},
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_segments_with_a_memory_are_the_whole_text(name: str, training: bool) -> None:
    model = model_of(**KINDS[name]).train(training)
    ids, texts = text()
    whole = model(ids, torch.arange(11).expand(2, -1))
    for length in (1, 3, 8):  # shorter and longer than the memory
        states, _ = read(model, ids, texts, length)
        torch.testing.assert_close(states, whole, rtol=1e-5, atol=1e-5)


def test_places_that_hold_nothing_have_no_position() -> None:
    model = model_of()
    _, memory = read(model, *(each[:, :3] for each in text()), 3)
    at = memory.positions(torch.tensor([[0, 1], [0, -1]]), torch.tensor([[0, 0], [0, -1]]))
    assert at.query.tolist() == [[4, 5], [4, -1]]
    assert at.key.tolist() == [[-1, 1, 2, 3, 4, 5], [-1, 1, 2, 3, 4, -1]]


@torch.no_grad()
def test_the_memory_ends_where_the_mask_does() -> None:
    """Three layers of 4 tokens reach 12 back: the 13th before a token changes nothing."""
    model = model_of(memory=2).eval()
    ids, texts = text(1, 11)
    other = ids.clone()
    other[0, 0] = (other[0, 0] + 1) % 20
    (one, _), (two, _) = (read(model, each, texts, 4) for each in (ids, other))
    assert not torch.equal(one[0, 6], two[0, 6])
    assert torch.equal(one[0, 7:], two[0, 7:])


def test_texts_that_follow_each_other_do_not_see_each_other() -> None:
    model = model_of().eval()
    ids, _ = text(1)
    texts = torch.tensor([[7] * 5 + [8] * 6])
    states, _ = read(model, ids, texts, 3)
    alone = model(ids[:, 5:], torch.arange(6)[None])
    torch.testing.assert_close(states[:, 5:], alone, rtol=1e-5, atol=1e-5)


def test_neighbours_and_padding_change_nothing() -> None:
    model = model_of().eval()
    ids, texts = text(3)
    texts[1, 7:] = -1
    together, _ = read(model, ids, texts, 4)
    alone, _ = read(model, ids[1:2, :7], texts[1:2, :7], 4)
    torch.testing.assert_close(together[1:2, :7], alone, rtol=1e-5, atol=1e-5)


@either_way
def test_gradients_end_at_the_segment_but_maps_learn_from_the_memory(trained: Any) -> None:
    """One layer, where what a segment gets from the memory's keys can be told apart."""
    model = model_of(decoder_layers=1)
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    texts = torch.zeros_like(ids)
    with trained(model):
        _, memory = read(model, ids[:, :3], texts[:, :3], 3)
        assert not any(inputs.requires_grad for inputs in memory.inputs)
        states, _ = model.read_segment(ids[:, 3:], torch.arange(3)[None], texts[:, 3:], memory)
        states.square().sum().backward()
    table = model.embedding.weight.grad
    assert table is not None
    assert table[4:7].any(1).all()
    assert not table[1:4].any()  # read in the segment before
    # By hand: the same sum over a whole text whose first embeddings are constants.
    maps = model.decoder.blocks[0].self_attention.projection.weight
    found = maps.grad.clone()
    model.zero_grad()
    x = model.input(ids, torch.arange(6)[None], model.embedding)
    x = torch.cat([x[:, :3].detach(), x[:, 3:]], 1)
    whole = model.decoder(x, Context(Positions.of_self(torch.arange(6)[None])))
    whole[:, 3:].square().sum().backward()
    torch.testing.assert_close(maps.grad, found, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["transformer_xl", "rotary"])
def test_steps_with_a_bounded_cache_are_the_segments(positions: str) -> None:
    model = model_of(positions=positions).eval()
    ids, texts = text()
    states, _ = read(model, ids, texts, 4)
    expected = model.logits(states)
    cached = model.with_cache("auto", 100, chunk=3)
    state = cached.start(ids[:, :5], torch.arange(5).expand(2, -1))
    for place in range(5, 11):
        logits, state = cached.step(state, ids[:, place : place + 1])
        torch.testing.assert_close(logits[:, 0], expected[:, place], rtol=1e-5, atol=1e-5)
    slots = state.decoder.blocks[0][0].keys.shape[2]
    assert slots == 4 + 3 + 1  # memory and chunk, and one for padding


@torch.no_grad()
def test_operations_of_a_segment_are_counted_by_pytorch_too() -> None:
    model = model_of(num_kv_heads=1, norm_placement="pre").eval()
    ids, texts = text(1)
    _, memory = read(model, ids[:, :5], texts[:, :5], 5)
    with on_processor(model), FlopCounterMode(display=False) as counter:
        model.read_segment(ids[:, 5:], torch.arange(6)[None], texts[:, 5:], memory)
    expected = segment_work(model.spec, 6)
    assert counter.get_total_flops() == expected.total - expected.output
    rows, columns = 3, torch.zeros(3, 6, dtype=torch.int64)
    batch = SegmentBatch(columns, columns, columns, columns, torch.arange(rows), 18, begins=True)
    assert batch_flops(model, batch) == 3 * rows * expected.total


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "sinusoidal": ({"positions": "sinusoidal"}, "positions that are sinusoidal are part"),
    "learned": ({"positions": "learned"}, "positions that are learned are part"),
    "mixer": ({"positions": "none", "mixer": "mamba"}, "keys and values, which mamba"),
    "window": ({"window": 3}, "a window already"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_a_memory_is_refused(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        causal_lm_spec(shape(**changes), 20, 8)


def test_models_that_read_all_at_once_have_none() -> None:
    with pytest.raises(ConfigError, match="A translator reads each sentence as a whole"):
        translator_spec(shape(), 9, 9)
    with pytest.raises(ConfigError, match="An encoder reads each text as a whole"):
        encoder_spec(shape(), 9, 8, ())
    pixels = PixelSpec(mean=(0.5,), std=(0.5,))
    sizes: dict[str, Any] = {"image_size": 8, "channels": 1, "patch_size": 4, "pooling": "mean"}
    with pytest.raises(ConfigError, match="An image is read as a whole"):
        vision_spec(shape(positions="learned"), **sizes, labels=("a", "b"), pixels=pixels)
    with pytest.raises(ConfigError, match="memory is of blocks of attention"):
        TranslatorShape.parse({"memory": 3, "recurrent": {}})


def test_a_spec_says_what_its_memory_is_for() -> None:
    spec = causal_lm_spec(shape(), 20, 8)
    assert spec.memory == 4
    plain = spec.plain()
    with pytest.raises(ConfigError, match="memory holds 3 tokens, and the mask"):
        CausalLMSpec.parse(plain | {"memory": 3})
    positions = {"embedding": {"positions": {"kind": "sinusoidal"}}}
    with pytest.raises(ConfigError, match="sinusoidal positions are part of the states"):
        CausalLMSpec.parse(plain | positions)
    mamba = causal_lm_spec(
        shape(positions="none", memory=None, mixer="mamba", attention_every=2), 20, 8
    )
    with pytest.raises(ConfigError, match="plain attention, and a layer has mamba"):
        CausalLMSpec.parse(mamba.plain() | {"memory": 3})
    with pytest.raises(ModelError, match="keeps no memory"):
        model_of(memory=None).empty_memory(1)
