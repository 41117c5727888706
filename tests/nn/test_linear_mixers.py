"""Mixers of linear cost in a whole language model: steps, beams, packing, neighbours, cost."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from heedful.engines.inference.prepare import prepare
from heedful.errors import ConfigError
from heedful.models import cost
from heedful.models.causal_lm import CausalLM
from heedful.models.model_spec import CausalLMSpec, TranslatorSpec

from ..on_processor import either_way

WIDTH, VOCABULARY = 16, 30
LINEAR = {"kind": "linear_attention", "num_heads": 2, "causal": True}
MIXERS = {
    "cosformer": LINEAR | {"features": {"kind": "cosine", "length": 120}},
    "performer": LINEAR | {"features": {"kind": "random", "num_features": 24}},
    "average": {"kind": "average_attention"},
    "average, plain": {"kind": "average_attention", "feedforward": 0, "gate": False},
    "ssru": {"kind": "ssru"},
}


def stack(part):
    network = {"kind": "feedforward", "width": 24}
    sublayers = [
        {"name": "mixer", "part": part, "norm_placement": "before"},
        {"name": "feedforward", "part": network, "norm_placement": "before"},
    ]
    return {"num_layers": 2, "pattern": [{"sublayers": sublayers}], "final_norm": {}}


def language_model(name):
    torch.manual_seed(0)
    values = {"width": WIDTH, "vocabulary": VOCABULARY, "decoder": stack(MIXERS[name])}
    model = CausalLM(CausalLMSpec.parse(values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("left", [True, False])
@torch.no_grad()
def test_steps_after_a_prompt_equal_one_pass_beside_other_texts(name, left):
    model, lengths, size = language_model(name), (80, 3, 41), 80
    ids, positions = torch.randint(VOCABULARY, (3, size)), torch.full((3, size), -1)
    for row, length in enumerate(lengths):
        place = slice(size - length, None) if left else slice(0, length)
        positions[row, place] = torch.arange(length)
    state = model.start(ids, positions, chunk=17)
    texts = [row[at >= 0].tolist() for row, at in zip(ids, positions, strict=True)]
    engine = prepare(model, "fp32", torch.device("cpu"))
    for _ in range(2):
        tokens = torch.randint(VOCABULARY, (3, 1))
        logits, state = model.step(state, tokens)
        for text, token, row in zip(texts, tokens[:, 0].tolist(), logits, strict=True):
            text.append(token)
            alone = torch.tensor([text]), torch.arange(len(text))[None]
            for each in (model, engine):
                expected = each.logits(each(*alone))[0, -1]
                torch.testing.assert_close(row[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_beams_go_on_from_those_they_were_chosen_from(name):
    model = language_model(name)
    ids, positions = torch.randint(VOCABULARY, (2, 5)), torch.arange(5).expand(2, 5)
    state = model.reorder(model.start(ids, positions), torch.tensor([[0, 0], [1, 1]]))
    _, state = model.step(state, torch.tensor([[7, 8], [9, 10]]))
    state = model.reorder(state, torch.tensor([[3, 2]]))
    logits, _ = model.step(state, torch.tensor([[11, 12]]))
    for beam, tail in enumerate(([10, 11], [9, 12])):
        text = torch.tensor([[*ids[1].tolist(), *tail]])
        expected = model.logits(model(text, torch.arange(7)[None]))[0, -1]
        torch.testing.assert_close(logits[0, beam], expected, rtol=1e-4, atol=1e-4)


@either_way
@pytest.mark.parametrize("name", MIXERS)
def test_packed_and_padded_texts_are_as_if_alone_in_training_too(name, trained):
    model = language_model(name).train()
    ids = torch.randint(VOCABULARY, (1, 9))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    with trained(model):
        together = model(ids, positions, segments)
    padded = torch.zeros(2, 9, dtype=torch.int64), torch.full((2, 9), -1)
    for row, part in enumerate((slice(0, 4), slice(4, 9))):
        alone = model(ids[:, part], positions[:, part])
        torch.testing.assert_close(together[:, part], alone, rtol=1e-4, atol=1e-5)
        length = part.stop - part.start
        padded[0][row, :length], padded[1][row, :length] = ids[0, part], positions[0, part]
    with trained(model):
        beside = model(*padded)  # on a processor rows go without their padding
    torch.testing.assert_close(beside[0, :4], together[0, :4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(beside[1, :5], together[0, 4:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_operations_and_state_are_those_of_a_run(name):
    model = language_model(name)
    ids, positions = torch.randint(VOCABULARY, (1, 70)), torch.arange(70)[None]
    with FlopCounterMode(display=False) as counter:
        model.logits(model(ids, positions))
    assert counter.get_total_flops() == cost.text_work(model.spec, 70).total
    state = model.start(ids, positions)
    parts = [part for block in state.decoder.blocks for part in vars(block[0]).values()]
    tensors = [t for part in parts for t in (part if isinstance(part, tuple) else (part,))]
    numbers = sum(tensor.numel() for tensor in tensors)
    assert cost.state_bytes(model.spec, 70) == (4 * numbers, 0)


@pytest.mark.parametrize(
    "part",
    [LINEAR | {"causal": False}, {"kind": "linformer", "num_heads": 2, "rank": 4, "length": 64}],
)
def test_mixers_that_see_what_is_not_yet_written_are_refused_in_decoders(part):
    with pytest.raises(ConfigError, match="sees tokens that are not yet written"):
        CausalLMSpec.parse({"width": WIDTH, "vocabulary": 9, "decoder": stack(part)})
    cross = {"kind": "attention", "over": "memory", "num_heads": 2}
    decoder = stack(part)
    decoder["pattern"][0]["sublayers"].insert(1, {"name": "cross_attention", "part": cross})
    sizes = {"source_vocabulary": 9, "target_vocabulary": 9}
    values = {"width": WIDTH, "encoder": stack(part), "decoder": decoder, **sizes}
    with pytest.raises(ConfigError, match="decoder"):
        TranslatorSpec.parse(values)
