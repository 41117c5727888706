"""Mixers that a shape names: the specs that follow, and options that would do nothing."""

from __future__ import annotations

import typing
from typing import Any

import pytest
import torch

from heedful.config import MixerName
from heedful.errors import ConfigError
from heedful.models.build import build_around, build_model, canonical_weights
from heedful.models.cost import count_parameters
from heedful.models.mixers import mixer_spec
from heedful.models.model_spec import CausalLMSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import (
    causal_lm_spec,
    encoder_spec,
    translator_spec,
)
from heedful.models.spec_overrides import contradictions, with_overrides
from heedful.nn.positions import Positions
from heedful.train.optimizers import build_optimizer
from heedful.train.run_settings import OptimizerSettings

from ..on_processor import either_way

SIZES = {"width": 32, "encoder_layers": 2, "decoder_layers": 4, "num_heads": 2, "feedforward": 48}
READERS = ("linformer",)
"""Mixers that see the whole text at once, and so write none."""
OTHERS = [name for name in typing.get_args(MixerName) if name not in ("attention", *READERS)]


def shape(**options: object) -> TranslatorShape:
    return TranslatorShape.parse({**SIZES, **options})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"width": 65}, "width 65 is not a multiple of num_heads 2"),
        ({"width": 64, "num_heads": 3}, "width 64 is not a multiple of num_heads 3"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads"),
        ({"num_experts": 4, "experts_per_token": 9}, "per_token 9 exceeds num_experts 4"),
    ],
)
def test_options_that_contradict_each_other_are_a_persons_mistake(
    options: dict[str, int], reason: str
) -> None:
    made = shape(**options)
    for make in (
        lambda: translator_spec(made, 30, 30),
        lambda: causal_lm_spec(made, 30, 16),
        lambda: encoder_spec(made, 30, 16, ()),
    ):
        with pytest.raises(ConfigError, match=reason) as error:
            make()
        assert (error.value.where, error.value.remedy) == ("model", "Change one of these settings")


def kinds(stack: typing.Any) -> list[str]:
    return [block.mixers()[0].kind for block in stack.blocks]


def test_every_name_has_a_mixer_of_this_kind() -> None:
    for name in typing.get_args(MixerName):
        assert mixer_spec(shape(), name, name not in READERS).kind == name


@either_way
@pytest.mark.parametrize("name", OTHERS)
def test_a_language_model_of_any_mixer_runs(name: MixerName, trained: Any) -> None:
    spec = causal_lm_spec(shape(mixer=name), 30, 16)
    assert kinds(spec.decoder) == [name] * 4
    assert "cross_attention" not in [each.name for each in spec.decoder.pattern[0].sublayers]
    model = build_model(spec)
    ids = torch.randint(30, (2, 9))
    positions = torch.arange(9).expand(2, 9)
    with trained(model):
        states = model(ids, positions, torch.zeros_like(positions))
        states.square().mean().backward()
    assert all(each.grad is not None for each in model.parameters() if each.requires_grad)


@pytest.mark.parametrize("name", OTHERS)
def test_a_translator_decodes_with_any_mixer(name: MixerName) -> None:
    spec = translator_spec(shape(mixer=name), 30, 30)
    assert (kinds(spec.encoder), kinds(spec.decoder)) == (["attention"] * 2, [name] * 4)
    names = [each.name for each in spec.decoder.pattern[0].sublayers]
    assert names == ["mixer", "cross_attention", "feedforward"]
    model = build_model(spec).eval()
    ids, positions = torch.randint(30, (2, 5)), torch.arange(5).expand(2, 5)
    whole = model.logits(model.decode(model.encode(ids, positions), ids, positions))
    state = model.start(ids, positions)
    for place in range(5):
        logits, state = model.step(state, ids[:, place : place + 1])
        torch.testing.assert_close(logits[:, 0], whole[:, place], rtol=1e-4, atol=1e-4)


def test_attention_takes_the_place_of_every_third_mixer() -> None:
    hybrid = shape(mixer="linear_attention", attention_every=3, decoder_layers=7)
    spec = causal_lm_spec(hybrid, 30, 16)
    linear, full = "linear_attention", "attention"
    assert kinds(spec.decoder) == [linear, linear, full, linear, linear, full, linear]
    assert spec.decoder.pattern[2].self_attention.mask.heeds_segments
    assert kinds(translator_spec(hybrid, 30, 30).encoder) == [full] * 2
    with pytest.raises(ConfigError, match="Of 4 layers none would have attention") as error:
        causal_lm_spec(shape(mixer="linear_attention", attention_every=5), 30, 16)
    assert error.value.where == "model.attention_every"


def test_shared_biases_stand_in_hybrids_only() -> None:
    options = {"mixer": "linear_attention", "positions": "t5"}
    spec = causal_lm_spec(shape(**options, attention_every=2), 30, 16)
    model = build_model(spec)
    assert model.decoder.position_bias is not None
    translator = translator_spec(shape(**options), 30, 30)
    assert translator.encoder.shared_position_bias is not None
    assert translator.decoder.shared_position_bias is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("positions", "rotary"),
        ("positions", "t5"),
        ("window", 4),
        ("mask", "strided(4)"),
        ("global_tokens", 1),
        ("relative_values", 4),
    ],
)
def test_options_of_attention_are_refused_where_there_is_none(option: str, value: object) -> None:
    lonely = shape(mixer="linear_attention", encoder_mixer="linear_attention", **{option: value})
    for expand in (
        lambda: causal_lm_spec(lonely, 30, 16),
        lambda: encoder_spec(lonely, 30, 16, ()),
        lambda: translator_spec(lonely, 30, 30),
    ):
        with pytest.raises(ConfigError, match="linear_attention only") as error:
            expand()
        assert error.value.where == f"model.{option}"
    hybrid = lonely.model_copy(update={"attention_every": 2})
    assert causal_lm_spec(hybrid, 30, 16).decoder.has_self_attention


def test_a_model_of_other_mixers_contradicts_options() -> None:
    spec = causal_lm_spec(shape(mixer="linear_attention", attention_every=2), 30, 16)
    same = shape(mixer="linear_attention", attention_every=2, width=32)
    assert contradictions(same, spec) == []
    assert contradictions(shape(mixer="attention", attention_every=4), spec) == [
        "model.mixer is attention, and the model's linear_attention",
        "model.attention_every is 4, and the model's 2",
    ]
    pure = causal_lm_spec(shape(mixer="linear_attention"), 30, 16)
    assert contradictions(shape(mixer="linear_attention", attention_every=4), pure) == [
        "model.attention_every is 4, and the model's none"
    ]
    stretched = shape(rotary_scaling="linear", rotary_factor=2.0)
    with pytest.raises(ConfigError, match="no rotary positions"):
        with_overrides(pure.embedding, pure.decoder, stretched)
    rotated = causal_lm_spec(
        shape(mixer="linear_attention", attention_every=2, positions="rotary"), 30, 16
    )
    _, stack = with_overrides(rotated.embedding, rotated.decoder, stretched)
    assert stack.pattern[1].self_attention.rotary.factor == 2.0
    _, stack = with_overrides(spec.embedding, spec.decoder, shape(dropout=0.3))
    assert all(block.dropout == 0.3 for block in stack.pattern)


def test_relative_keys_reach_as_far_as_asked() -> None:
    def keys(**options: object) -> CausalLMSpec:
        return causal_lm_spec(shape(positions="relative_keys", **options), 30, 16)

    for spec, distance in ((keys(), 16), (keys(relative_distance=40), 40)):
        assert spec.decoder.pattern[0].self_attention.position_bias.max_distance == distance
    other = shape(positions="relative_keys", relative_distance=20)
    assert contradictions(other, keys()) == ["model.relative_distance is 20, and the model's 16"]
    with pytest.raises(ConfigError, match="relative_distance is of positions = 'relative_keys'"):
        TranslatorShape.parse({"positions": "rotary", "relative_distance": 20})


def test_a_mask_is_written_as_an_expression() -> None:
    options = {"mask": "window(3)|global(1)", "global_tokens": 1, "relative_values": 4}
    spec = causal_lm_spec(shape(**options), 30, 16)
    attention = spec.decoder.pattern[0].self_attention
    assert (attention.global_tokens, attention.relative_values) == (1, 4)
    six = Positions.of_self(torch.arange(6)[None])
    sees = six.visible(attention.mask)[0, 0]
    assert sees.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 0, 1, 1, 1, 0],
        [1, 0, 0, 1, 1, 1],
    ]
    encoder = translator_spec(shape(**options), 30, 30).encoder.pattern[0].self_attention
    assert six.visible(encoder.mask)[0, 0, 0].all()
    assert contradictions(shape(**options), spec) == []
    assert contradictions(shape(mask="window(3)"), spec) == [
        "model.mask is window(3), and the model's window(3) | global(1)"
    ]
    assert contradictions(shape(window=3), spec) == ["model.window is 3, and the model's none"]
    assert contradictions(shape(mask="window(3)"), causal_lm_spec(shape(window=3), 30, 16)) == []


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("windw(3)", "No mask is called 'windw'"),
        ("random(4, 2, 16)", "need a seed"),
        ("window(3) |", "a mask is expected"),
    ],
)
def test_a_mask_that_cannot_be_is_refused(mask: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        causal_lm_spec(shape(mask=mask), 30, 16)
    with pytest.raises(ConfigError, match="window and mask both say"):
        shape(mask="strided(4)", window=4)


def test_linear_attention_has_the_feature_map_that_is_named() -> None:
    named = {None: "elu", "cosine": "cosine", "random": "random"}
    for features, kind in named.items():
        spec = causal_lm_spec(shape(mixer="linear_attention", features=features), 30, 16)
        part = spec.decoder.pattern[0].mixers()[0]
        assert part.features.kind == kind
    assert part.causal
    assert contradictions(shape(mixer="linear_attention", features="cosine"), spec) == [
        "model.features is cosine, and the model's random"
    ]
    cosine = causal_lm_spec(shape(mixer="linear_attention", features="cosine"), 30, 16)
    assert cosine.decoder.pattern[0].mixers()[0].features.length == 17  # an end token may follow


def test_the_longest_text_is_that_of_the_mixer_that_reads_least() -> None:
    assert causal_lm_spec(shape(mixer="mamba"), 30, 16).longest_text is None
    features = {"mixer": "linear_attention", "features": "cosine"}
    assert causal_lm_spec(shape(**features), 30, 16).longest_text == 17
    assert encoder_spec(shape(encoder_mixer="linformer"), 30, 16, ()).longest_text == 17
    both = {**features, "positions": "learned", "max_length": 20}
    assert causal_lm_spec(shape(**both), 30, 12).longest_text == 13
    translator = translator_spec(shape(**features, max_length=20), 30, 30)
    assert translator.longest_text == 20  # and the token before it


def test_linformer_reads_and_does_not_write() -> None:
    spec = encoder_spec(shape(encoder_mixer="linformer"), 30, 16, ())
    part = spec.encoder.pattern[0].mixers()[0]
    assert (part.length, part.rank) == (17, 17)
    model = build_model(spec)
    positions = torch.arange(16).expand(2, 16)
    assert model(torch.randint(30, (2, 16)), positions).shape == (2, 16, 32)
    with pytest.raises(ConfigError, match="cannot hide later tokens") as error:
        causal_lm_spec(shape(mixer="linformer"), 30, 16)
    assert error.value.where == "model.mixer"


@pytest.mark.parametrize("name", ["s4d", "mamba", "mamba2", "rwkv", "ssru", "average_attention"])
def test_an_encoder_is_refused_a_mixer_of_one_direction(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} reads in one direction") as error:
        translator_spec(shape(encoder_mixer=name), 30, 30)
    assert error.value.where == "model.encoder_mixer"


def test_the_size_of_states_is_an_option() -> None:
    spec = causal_lm_spec(shape(mixer="s4d", state_size=6), 30, 16)
    assert spec.decoder.pattern[0].mixers()[0].state_size == 6
    with pytest.raises(ConfigError, match="state_size"):
        causal_lm_spec(shape(mixer="s4d", state_size=7), 30, 16)


def test_weight_decay_leaves_decay_rates_alone() -> None:
    model = build_model(causal_lm_spec(shape(mixer="s4d"), 30, 16))
    optimizer = build_optimizer(model, OptimizerSettings(kind="adamw", weight_decay=0.1))
    decayed, free = (group["params"] for group in optimizer.param_groups)
    mixer = model.decoder.blocks[0].mixer
    for name in ("log_decay", "frequency", "readout"):
        assert any(each is getattr(mixer, name) for each in free)
    assert any(each is mixer.output.weight for each in decayed)


def test_layers_may_have_the_network_of_rwkv() -> None:
    options = {"mixer": "rwkv", "network": "channel_mix", "attention_every": 2}
    spec = causal_lm_spec(shape(**options), 30, 16)
    names = [[each.name for each in block.sublayers] for block in spec.decoder.pattern]
    assert names == [["mixer", "channel_mix"], ["self_attention", "channel_mix"]]
    assert contradictions(shape(**options, feedforward=48), spec) == []
    assert contradictions(shape(network="feedforward"), spec) == [
        "model.network is feedforward, and the model's channel_mix"
    ]
    _, stack = with_overrides(spec.embedding, spec.decoder, shape(feedforward_dropout=0.1))
    assert stack == spec.decoder
    assert count_parameters(spec) == sum(each.numel() for each in build_model(spec).parameters())
    names = [
        each.name for each in translator_spec(shape(**options), 30, 30).encoder.block.sublayers
    ]
    assert names == ["self_attention", "feedforward"]
    with pytest.raises(ConfigError, match="Experts") as error:
        causal_lm_spec(shape(**options, num_experts=4), 30, 16)
    assert error.value.where == "model.num_experts"


OPTIONS = [
    {"positions": "relative_keys", "relative_values": 4},
    {"positions": "kerple", "mask": "window(3) | global(2)", "global_tokens": 2},
    {"mask": "strided(4)", "num_kv_heads": 1},
    {"mixer": "linear_attention", "features": "random"},
    *({"mixer": name} for name in OTHERS),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_stored_weights_are_all_there_are(options: dict[str, object]) -> None:
    spec = causal_lm_spec(shape(**options), 30, 16)
    model = build_model(spec).eval()
    stored = {name: tensor.clone() for name, tensor in canonical_weights(model).items()}
    assert sum(map(torch.numel, stored.values())) >= count_parameters(spec)
    read = build_around(spec, stored, where="here").eval()
    ids, positions = torch.randint(30, (1, 7)), torch.arange(7)[None]
    torch.testing.assert_close(read(ids, positions), model(ids, positions), rtol=0, atol=1e-6)
