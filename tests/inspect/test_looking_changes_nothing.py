"""Generation, translation and classification before, between and after all kinds of looking.

Every architecture that can be imported, and what only this project has. The answers must be the
same bits; the weights that are shown must be those of the definition, computed here once more.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from heedful import inspect
from heedful.apps import pruning
from heedful.inspect.attention_maps import AttentionPart, attentions
from heedful.interop.architecture import MODEL_TYPES
from heedful.models.causal_lm import CausalLM
from heedful.models.translator import Translator
from heedful.nn.attention.masks import Causal, Window
from heedful.nn.capture import Capture
from heedful.nn.positions import Positions
from heedful.pipelines.text_generation import generate
from heedful.search.dispatch import search
from heedful.search.search_settings import GenerationSettings, SearchSettings, Specials

OWN = {
    "translator": lambda toys: toys.translator(),
    "grouped": lambda toys: toys.translator(num_kv_heads=2),
    "pre": lambda toys: toys.translator(norm_placement="pre", norm="rms"),
    "alibi": lambda toys: toys.translator(positions="alibi"),
    "rotary": lambda toys: toys.translator(positions="rotary"),
    "causal_lm": lambda toys: toys.causal_lm(),
    "encoder": lambda toys: toys.encoder(),
    "tagger": lambda toys: toys.encoder(({"kind": "token", "labels": ["A", "B"]},)),
    "vision": lambda toys: toys.vision(),
}
# Two towers and a reader of sounds take other inputs than the searches here; their attention is
# compared with theirs in test_attention_parity.
OF_OTHER_INPUTS = {"clip", "siglip", "whisper"}
EVERY = [*(name for name in MODEL_TYPES if name not in OF_OTHER_INPUTS), *OWN]
SPECIALS = Specials(pad=1, bos=0, eos=2)


@pytest.fixture(scope="module")
def models(toys, imported):
    """Makes a model of each name once."""
    made = {}

    def make(name):
        if name not in made:
            own = OWN.get(name)
            made[name] = own(toys).model if own else imported(name)[1].eval()
        return made[name]

    return make


def places(ids):
    return torch.arange(ids.shape[1]).expand(ids.shape)


def inputs_of(model):
    """What `forward` takes, two inputs side by side, the second of the texts shorter."""
    torch.manual_seed(1)
    spec = model.spec
    if spec.kind == "vision":
        return (torch.randn(2, spec.channels, spec.image_size, spec.image_size),)
    size = spec.source_vocabulary if spec.kind == "translator" else spec.vocabulary
    texts = []
    for length in (6, 4) if spec.kind == "translator" else (6,):
        ids = torch.randint(3, size, (2, length))
        positions = places(ids).clone()
        positions[1, 3:] = -1
        texts += [ids.masked_fill(positions < 0, 1), positions]
    if spec.kind != "translator" and (spec.embedding.num_segments or 1) > 1:
        texts.append((texts[1] > 1).long())
    return tuple(texts)


def answers(model):
    """What a person would get: the search's numbers, samples, or what every head says."""
    inputs = inputs_of(model)
    with torch.inference_mode():
        if isinstance(model, Translator):
            asked = [
                SearchSettings(max_length=6),
                SearchSettings(beam=3, n_best=3, max_length=6),
                SearchSettings(sampling=True, n_best=2, seed=5, max_length=6),
            ]
            return [search(model, *inputs[:2], each, specials=SPECIALS) for each in asked]
        if isinstance(model, CausalLM):
            prompts = [[3, 5, 4], [6, 7]]
            asked = [GenerationSettings(max_length=6), GenerationSettings(beam=3, max_length=6)]
            return [generate(model, prompts, ends=(2,), settings=each) for each in asked]
        states = model(*inputs)
        if model.spec.kind == "vision":
            said = [states, model.class_logits(states) if model.classifier else states.mean(1)]
        else:
            said = [states, *(head(states) for head in model.heads.values())]
        assert len(said) == 2
        return [each.numpy().tobytes() for each in said]


def look(model):
    """All that the library offers for any model, at all addresses."""
    inputs = inputs_of(model)
    inspect.capture(model, inputs, ["**"])
    heads = pruning.heads(model)  # Mamba and RWKV have none
    inspect.capture(model, inputs, ["**.weights", "**.output"][not heads :])
    inspect.shapes(model, inputs)
    with pruning.ablated(model, heads[:1]):
        inspect.capture(model, inputs, ["**.output"])


@pytest.mark.parametrize("name", EVERY)
def test_answers_are_the_same_bits(models, name):
    model = models(name)
    before = answers(model)
    assert before
    look(model)
    assert answers(model) == before
    # While it answers: each pass of the search is looked at, and gives what it would have given.
    looked_at = Watched(model)
    with looked_at:
        assert answers(model) == before
    assert looked_at.passes
    assert answers(model) == before


class Watched:
    """Every pass of a model's stacks keeps everything, whoever asked for the pass."""

    def __init__(self, model):
        self.stacks = [
            stack for name in ("encoder", "decoder") if (stack := getattr(model, name, None))
        ]
        self.passes = 0
        self.looked_for = ".weights" if pruning.heads(model) else ".output"

    def __enter__(self):
        for stack in self.stacks:
            stack._run = self._watching(stack._run)  # of whole sequences and of steps

    def _watching(self, run):
        def watched(x, context, states):
            capture = Capture(["**"])
            answer = run(x, dataclasses.replace(context, capture=capture), states)
            assert any(address.endswith(self.looked_for) for address in capture.found)
            self.passes += 1
            return answer

        return watched

    def __exit__(self, *exception):
        for stack in self.stacks:
            del stack._run


TOLERANCE = 1e-5


def by_definition(found, address, module, positions):
    """softmax(cap(scale · q·kᵀ) + bias) over what may be seen, in float64, from what was read."""
    query, key = (
        torch.from_numpy(found[f"{address}.{name}"]).double() for name in ("query", "key")
    )
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale = module.scale if module.scale is not None else 1 / math.sqrt(query.shape[-1])
    scores = scale * torch.einsum("bhqe,bhke->bhqk", query, key)
    if module.softcap is not None:
        scores = module.softcap * torch.tanh(scores / module.softcap)
    if f"{address}.bias" in found:
        scores = scores + torch.from_numpy(found[f"{address}.bias"]).double()
    seen = (positions.query >= 0)[:, None, :, None] & (positions.key >= 0)[:, None, None, :]
    back = positions.query[:, None, :, None] - positions.key[:, None, None, :]
    for mask in getattr(module.mask, "parts", (module.mask,)):
        if isinstance(mask, Causal):
            seen = seen & (back >= 0)
        if isinstance(mask, Window):
            seen = seen & (back.abs() < mask.size)
    exp = scores.masked_fill(~seen, -math.inf).exp().nan_to_num(0.0)
    return exp / exp.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


@pytest.mark.parametrize("name", EVERY)
def test_weights_are_those_of_the_definition(models, name):
    model = models(name)
    inputs = inputs_of(model)
    found = inspect.capture(model, inputs, ["**"])
    part: AttentionPart
    for part in inspect.parts_of(model):
        for address, layer in attentions(model, part).items():
            module = layer.module
            weights = torch.from_numpy(found[f"{address}.weights"])
            positions = positions_of(part, inputs, weights)
            expected = by_definition(found, address, module, positions)
            torch.testing.assert_close(
                weights.double(), expected, rtol=TOLERANCE, atol=TOLERANCE, msg=address
            )
            assert weights.std() > 0.01


def positions_of(part, inputs, weights):
    if len(inputs) == 1:  # an image's patches are all there
        there = torch.arange(weights.shape[-1]).expand(weights.shape[0], -1)
        return Positions.of_self(there)
    if part == "cross":
        return Positions(query=inputs[3], key=inputs[1])
    return Positions.of_self(inputs[3 if part == "decoder" and len(inputs) == 4 else 1])
