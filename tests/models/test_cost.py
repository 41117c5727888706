"""Costs from the spec agree with the modules: their tensors, their products, what they keep."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from heedful.engines import cost_memory
from heedful.engines.training.chunked_loss import ProcessorLosses
from heedful.kernels import library
from heedful.models import cost
from heedful.models.causal_lm import CausalLM
from heedful.models.images.vision import VisionModel
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.model_spec import CausalLMSpec, TranslatorSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    LinearAttentionSpec,
    NormSpec,
    PositionSpec,
)
from heedful.nn.work import BFLOAT16, Work

from ..on_processor import on_processor

SMALL = TranslatorShape(
    width=32, encoder_layers=2, decoder_layers=3, num_heads=4, feedforward=48, dropout=0.0
)
TINY = TranslatorShape(
    width=128, encoder_layers=4, decoder_layers=4, num_heads=4, feedforward=256, dropout=0.0
)
BIG = TranslatorShape(width=1024, num_heads=16, feedforward=4096)

SHAPES: dict[str, dict[str, Any]] = {
    "paper's": {},
    "grouped": {"num_kv_heads": 2},
    "multi-query": {"num_kv_heads": 1},
    "gated": {"activation": "swiglu"},
    "gated tanh": {"activation": "geglu_tanh"},
    "no bias": {"bias": False},
    "gated, no bias": {"bias": False, "activation": "reglu"},
    "learned positions": {"positions": "learned", "max_length": 40},
    "no positions": {"positions": "none"},
    "t5": {"positions": "t5"},
    "relative keys": {"positions": "relative_keys"},
    "transformer xl": {"positions": "transformer_xl"},
    "disentangled": {"positions": "disentangled"},
    "alibi": {"positions": "alibi"},
    "rotary": {"positions": "rotary"},
    "pre-norm": {"norm_placement": "pre"},
    "rms": {"norm": "rms"},
    "pre-norm rms": {"norm": "rms", "norm_placement": "pre"},
    "target shared": {"share_embeddings": "target"},
    "nothing shared": {"share_embeddings": "none"},
    "window": {"window": 5},
    "experts": {"num_experts": 4},
    "gated experts, one a token": {
        "num_experts": 3,
        "experts_per_token": 1,
        "activation": "swiglu",
    },
}


def spec_of(changes: dict[str, Any]) -> TranslatorSpec:
    same = changes.get("share_embeddings", "all") == "all"
    return translator_spec(SMALL.model_copy(update=changes), 70 if same else 90, 70)


def meta(spec: TranslatorSpec) -> Translator:
    with torch.device("meta"):
        return Translator(spec)


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_parameters_are_those_of_the_modules(changes: dict[str, Any]) -> None:
    spec = spec_of(changes)
    assert cost.count_parameters(spec) == sum(p.numel() for p in meta(spec).parameters())


def test_parameters_of_unusual_specs() -> None:
    spec = spec_of({})
    wide = AttentionSpec(over="memory", num_heads=3, head_width=20)
    block = spec.decoder.block.replace(cross_attention=wide)
    spec = spec.model_copy(
        update={
            "embedding": EmbeddingSpec(
                norm=NormSpec(), positions=PositionSpec(kind="learned", max_length=9)
            ),
            "decoder": spec.decoder.with_block(block),
        }
    )
    assert cost.count_parameters(spec) == sum(p.numel() for p in meta(spec).parameters())


def test_rows_are_the_modules_own_sums() -> None:
    spec = spec_of({"norm_placement": "pre", "num_kv_heads": 2, "activation": "swiglu"})
    model = meta(spec)

    def count(*names: str) -> int:
        return sum(
            p.numel() for n, p in model.named_parameters() if all(name in f".{n}" for name in names)
        )

    norms = count(".encoder.", "_norm.") - count(".encoder.", "final_norm.")
    assert {r.component: r.total for r in cost.parameter_table(spec) if r.part == "encoder"} == {
        "self-attention": count(".encoder.", ".self_attention."),
        "feed-forward": count(".encoder.", ".feedforward."),
        "norms": norms,
        "final norm": count(".encoder.", "final_norm."),
    }


@settings(max_examples=25)
@given(
    layers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1), (2, 2)]),
    feedforward=st.integers(1, 50),
    activation=st.sampled_from(["relu", "gelu", "swiglu", "geglu"]),
    positions=st.sampled_from(["sinusoidal", "learned", "t5", "relative_keys", "rotary"]),
    norm=st.sampled_from(["layer", "rms"]),
    placement=st.sampled_from(["post", "pre"]),
    bias=st.booleans(),
    share=st.sampled_from(["all", "target", "none"]),
)
def test_parameters_of_any_shape(
    layers: tuple[int, int],
    heads: tuple[int, int],
    feedforward: int,
    activation: Any,
    positions: Any,
    norm: Any,
    placement: Any,
    bias: bool,
    share: Any,
) -> None:
    shape = TranslatorShape(
        width=16,
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        num_heads=heads[0],
        num_kv_heads=heads[1],
        feedforward=feedforward,
        activation=activation,
        positions=positions,
        norm=norm,
        norm_placement=placement,
        bias=bias,
        share_embeddings=share,
    )
    spec = translator_spec(shape, 11, 11)
    assert cost.count_parameters(spec) == sum(p.numel() for p in meta(spec).parameters())


@pytest.mark.parametrize(
    ("shape", "pieces", "exact"),
    [
        (TranslatorShape(), 37_000, 63_082_496),
        (BIG, 37_000, 214_245_376),
        (TranslatorShape(), 40_745, 64_999_936),  # the paper's 65 million
        (BIG, 35_784, 213_000_192),  # the paper's 213 million
        (TINY, 10_000, 2_605_056),
    ],
)
def test_the_paper_sizes(shape: TranslatorShape, pieces: int, exact: int) -> None:
    spec = translator_spec(shape, pieces, pieces)
    assert cost.count_parameters(spec) == exact
    assert sum(p.numel() for p in meta(spec).parameters()) == exact


def batch(rows: int, length: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    return ids, torch.arange(length).expand(rows, -1)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own operations do everything: it counts nothing of what kernels in C do."""
    monkeypatch.setattr(library, "kernels", lambda: None)


FLOP_SHAPES = [
    *("paper's", "grouped", "gated", "relative keys", "transformer xl", "pre-norm"),
    "nothing shared",
]


@pytest.mark.parametrize("name", FLOP_SHAPES)
@pytest.mark.usefixtures("counted")
def test_operations_of_training_are_counted_by_pytorch_too(name: str) -> None:
    spec, source_length, target_length = spec_of(SHAPES[name]), 7, 5
    model = Translator(spec)
    source, target = batch(1, source_length, 70), batch(1, target_length, 70)
    expected = cost.training_cost(spec, source_length, target_length)
    with on_processor(model), FlopCounterMode(display=False) as counter:
        hidden = model(*source, *target)
    assert counter.get_total_flops() == expected.forward.total - expected.forward.output
    with on_processor(model), FlopCounterMode(display=False) as counter:
        hidden = model(*source, *target)
        losses = ProcessorLosses()
        sums = losses.smoothed_cross_entropy(hidden[0], model.output_weight, target[0][0], 0.1)
        sums.loss.backward()
    # The sinusoids of 13 distances in 2 layers and of 9 in 3 want no gradient.
    without = 2 * 32 * 32 * (2 * 13 + 3 * 9) if name == "transformer xl" else 0
    assert counter.get_total_flops() == expected.total.total - without


READING = {"kind": "attention", "over": "memory", "num_heads": 2}
POOLING_HEAD = {"sublayers": [{"name": "cross_attention", "part": READING}]}


@pytest.mark.parametrize("pooling", ["first", "mean", "attention"])
@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.usefixtures("counted")
def test_operations_for_an_image_are_counted_by_pytorch_too(pooling: str, pooler: bool) -> None:
    block = {"self_attention": {"num_heads": 2}, "feedforward": {"width": 24}}
    stack = {"num_layers": 3, "block": block}
    parts = {"width": 16, "image_size": 12, "patch_size": 4, "encoder": stack, "num_classes": 5}
    head = {"num_layers": 1, "pattern": [POOLING_HEAD]} if pooling == "attention" else None
    own = {"pooling": pooling, "pooler": pooler, "pooling_head": head}
    spec = VisionSpec.parse(parts | own)
    model = VisionModel(spec)
    image = torch.randn(1, 3, 12, 12)
    with FlopCounterMode(display=False) as counter:
        model.class_logits(model(image))
    assert counter.get_total_flops() == cost.image_work(spec).total


@pytest.mark.parametrize("name", ["paper's", "grouped", "gated", "pre-norm"])
@torch.no_grad()
def test_operations_of_decoding_are_counted_by_pytorch_too(name: str) -> None:
    spec, source_length, beam, steps = spec_of(SHAPES[name]), 7, 3, 4
    model = Translator(spec).eval()
    expected = cost.decoding_cost(spec, source_length, steps, beam)
    with FlopCounterMode(display=False) as counter:
        state = model.start(*batch(1, source_length, 70))
    assert counter.get_total_flops() == expected.encoding.total
    state = model.reorder(state, torch.zeros(1, beam, dtype=torch.int64))
    counted = []
    for _ in range(steps):
        with FlopCounterMode(display=False) as counter:
            _, state = model.step(state, torch.ones(1, beam, dtype=torch.int64))
        counted.append(counter.get_total_flops())
    assert counted[0] == expected.first_step.total
    assert counted[-1] == expected.last_step.total
    assert sum(counted) == expected.steps.total
    assert counted[1] == cost.step_work(spec, source_length, 2, beam).total


@pytest.mark.parametrize("name", ["paper's", "grouped", "multi-query"])
@torch.no_grad()
def test_caches_are_as_large_as_foreseen(name: str) -> None:
    spec, sentences, source_length, beam, steps = spec_of(SHAPES[name]), 2, 7, 3, 4
    model = Translator(spec).eval()
    state = model.start(*batch(sentences, source_length, 70))
    rows = torch.arange(sentences)[:, None].expand(-1, beam)
    state = model.reorder(state, rows)
    for _ in range(steps):
        _, state = model.step(state, torch.ones(sentences, beam, dtype=torch.int64))
    memory = cost.decoding_memory(spec, source_length, steps, sentences=sentences, beam=beam)
    states = [each for block in state.decoder.blocks for each in block]
    sizes = [0 if s is None else s.keys.numel() + s.values.numel() for s in states]
    cached, crossed = sum(sizes[0::3]), sum(sizes[1::3])  # self, cross and feed-forward
    assert memory.cross_cache == 4 * crossed
    assert memory.self_cache == 4 * cached
    assert memory.cross_per_source_token == 4 * crossed // (sentences * source_length)
    assert memory.weights == 4 * cost.count_parameters(spec)


LINEAR = CausalLMSpec.parse(
    {
        "width": 32,
        "vocabulary": 70,
        "decoder": {
            "num_layers": 5,
            "pattern": [
                {"sublayers": [
                    {"name": "linear_attention", "part": {
                        "kind": "linear_attention", "num_heads": 4, "head_width": 6, "causal": True,
                    }},
                    {"name": "feedforward", "part": {"kind": "feedforward", "width": 48}},
                ]},
                {"sublayers": [
                    {"name": "self_attention", "part": {
                        "kind": "attention", "num_heads": 2, "mask": {"kind": "causal"},
                    }},
                    {"name": "feedforward", "part": {"kind": "feedforward", "width": 40}},
                ]},
            ],
        },
    }
)  # fmt: skip
"""Layers 0, 2 and 4 are linear attention, 1 and 3 softmax attention."""


def test_linear_attention_in_a_language_model_costs_what_a_count_by_hand_says() -> None:
    linear, softmax = (32 * 72 + 72) + (24 * 32 + 32), 4 * (32 * 32 + 32)
    networks = 3 * (2 * 32 * 48 + 48 + 32) + 2 * (2 * 32 * 40 + 40 + 32)
    norms = 5 * 2 * 2 * 32
    parameters = 70 * 32 + 3 * linear + 2 * softmax + networks + norms
    assert cost.count_parameters(LINEAR) == parameters
    # Multiply-adds of a token after 8 others, itself among 9: matrices without biases, then sums.
    matrices = 3 * (32 * 72 + 24 * 32 + 2 * 32 * 48) + 2 * (4 * 32 * 32 + 2 * 32 * 40)
    within = 3 * 4 * (6 + 6)  # its own score, its own value
    sums = 3 * 4 * (6 * 6 + 6 + 6 * 6)  # sums of values and of keys read, its own added
    scores = 2 * 2 * (16 * 9 + 9 * 16)
    work = cost.step_work(LINEAR, 0, 9)
    assert work == Work(
        weights=2 * matrices, attention=2 * (within + sums + scores), output=2 * 32 * 70
    )
    memory = cost.decoding_memory(LINEAR, 0, 50, sentences=2, beam=3, number_bytes=BFLOAT16)
    state, cache = 3 * 4 * (6 * 6 + 6) * 4, 2 * (2 * 32 * 2)  # the sums are float32 all the same
    assert memory.weights == 2 * parameters
    assert memory.self_per_target_token == cache
    assert memory.self_cache == 2 * 3 * (state + 50 * cache)
    assert memory.cross_cache == memory.cross_per_source_token == 0


@pytest.mark.parametrize("length", [5, 64, 150])
@pytest.mark.usefixtures("counted")
@torch.no_grad()
def test_operations_and_state_of_linear_attention_are_those_of_a_run(length: int) -> None:
    spec = LINEAR.model_copy(
        update={"decoder": LINEAR.decoder.with_block(LINEAR.decoder.pattern[0])}
    )
    model = CausalLM(spec).eval()
    ids, positions = batch(1, length, 70)
    with FlopCounterMode(display=False) as counter:
        model.logits(model(ids, positions))
    assert counter.get_total_flops() == cost.text_work(spec, length).total
    state = model.start(ids, positions)
    with FlopCounterMode(display=False) as counter:
        model.step(state, ids[:, :1])
    assert counter.get_total_flops() == cost.step_work(spec, 0, length + 1).total
    states = [block[0] for block in state.decoder.blocks]
    numbers = sum(state.products.numel() + state.keys.numel() for state in states)
    assert (4 * numbers, 0) == cost.state_bytes(spec, length)


@pytest.mark.parametrize("heads", [4, 8])
def test_activations_of_linear_attention_are_near(heads: int) -> None:
    part = LinearAttentionSpec(num_heads=heads, head_width=16, causal=True)
    block = LINEAR.decoder.pattern[0].replace(linear_attention=part)
    spec = LINEAR.model_copy(update={"decoder": LINEAR.decoder.with_block(block)})
    memory = cost_memory.training_memory(spec, 0, 4 * 128)
    kept = saved_bytes(CausalLM(spec), 4, 64, batch(4, 128, 70))
    assert memory.activations == pytest.approx(kept, rel=0.05)


def kept_bytes(spec: TranslatorSpec, rows: int, length: int) -> int:
    texts = batch(rows, length, 70)
    return saved_bytes(Translator(spec), rows, length, (*texts, *texts))


def saved_bytes(model: Any, rows: int, length: int, inputs: tuple[torch.Tensor, ...]) -> int:
    """Return what autograd really keeps of a pass, parameters and small things apart."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() >= rows * length * model.spec.width and storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    keeping = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with on_processor(model), keeping:
        hidden = model(*inputs)
    total = sum(storage.nbytes() for storage in kept.values())
    assert hidden.requires_grad
    return total


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", ["paper's", "grouped", "gated", "pre-norm", "rms", "rotary", "t5"])
def test_the_estimate_of_activations_is_near(name: str, dropout: float) -> None:
    everywhere = {"dropout": dropout, "attention_dropout": dropout, "feedforward_dropout": dropout}
    spec = translator_spec(TINY.model_copy(update=SHAPES[name] | everywhere), 70, 70)
    rows, length = 4, 24
    tokens = rows * length
    memory = cost_memory.training_memory(spec, tokens, tokens, kept_weights_length=length)
    assert memory.activations == pytest.approx(kept_bytes(spec, rows, length), rel=0.05)


def test_fixed_memory_of_training() -> None:
    spec = spec_of({})
    parameters = cost.count_parameters(spec)
    plain = cost_memory.training_memory(spec, 10, 10)
    averaged = cost_memory.training_memory(spec, 10, 10, moving_average=True)
    assert plain.fixed == 16 * parameters
    assert averaged.fixed == averaged.total - averaged.activations - averaged.loss
    assert averaged.total - plain.total == 4 * parameters
    half = cost_memory.training_memory(spec, 10, 10, activation_bytes=BFLOAT16)
    # What norms read is float32 all the same, and products keep the weights they read.
    assert plain.activations < 2 * half.activations < 2 * plain.activations
    assert half.casts == 2 * (parameters - 70 * spec.width)
    assert half.total - half.fixed == half.casts + half.activations + half.loss


def test_fit_says_what_is_needed() -> None:
    roomy = cost_memory.describe_fit(10**9, 2 * 10**9)
    assert roomy == "Fits: 1.0 GB needed, 2.0 GB available"
    tight = cost_memory.describe_fit(2_500_000_000, 16_000_000)
    assert tight == "Does not fit: 2.5 GB needed, 16.0 MB available"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_600, "1.0 MB"), (123_456, "123 kB")],
)
def test_human_bytes(count: int, text: str) -> None:
    assert cost.human_bytes(count) == text


def test_a_target_token_of_a_large_model_costs_six_operations_a_parameter() -> None:
    spec = translator_spec(TranslatorShape(share_embeddings="target"), 1, 37_000)
    pair = cost.training_cost(spec, 25, 25)
    assert pair.per_target_token == pytest.approx(6 * cost.count_parameters(spec), rel=0.02)
    assert pair.total.attention / pair.total.total < 0.01


def test_attention_is_quadratic_and_the_rest_is_not() -> None:
    spec = spec_of({})
    once, twice = cost.encoding_work(spec, 10), cost.encoding_work(spec, 20)
    assert twice.attention == 4 * once.attention
    assert twice.weights == 2 * once.weights


def test_importing_costs_needs_no_torch() -> None:
    code = "import sys, heedful.engines.cost_memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
