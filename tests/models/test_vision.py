"""The vision model: its parts by hand, its sizes, captures, and images of another size."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

import pytest
import torch

from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.build import canonical_weights
from heedful.models.images.vision import VisionModel
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.model_spec import parse_spec
from heedful.nn.capture import Capture

from ..on_processor import either_way


def spec(**changes) -> VisionSpec:
    values = {
        "kind": "vision",
        "width": 16,
        "image_size": 12,
        "patch_size": 4,
        "channels": 2,
        "encoder": {
            "num_layers": 2,
            "block": {
                "norm_placement": "pre",
                "self_attention": {"num_heads": 2},
                "feedforward": {"width": 24, "activation": "gelu"},
            },
            "final_norm": {},
        },
        **changes,
    }
    return parse_spec(values, where="a test")


PIXELS = {"resample": "bicubic", "mean": [0.5] * 2, "std": [0.5] * 2}


def build(seed: int = 0, **changes) -> VisionModel:
    torch.manual_seed(seed)
    return VisionModel(spec(**changes)).eval()


def reading(**own: Any) -> dict[str, Any]:
    """The settings of a model whose states a learned query reads."""
    attention = {"kind": "attention", "over": "memory", "num_heads": 2}
    read = {"name": "cross_attention", "part": attention, "norm_placement": "none"}
    network = {"name": "feedforward", "part": {"kind": "feedforward", "width": 24}}
    pattern = [{"sublayers": [read | {"residual": False}, network | {"norm_placement": "before"}]}]
    return {"pooling": "attention", "pooling_head": {"num_layers": 1, "pattern": pattern}, **own}


@torch.no_grad()
def test_a_learned_query_reads_all_states():
    """Written out with PyTorch's attention."""
    model = build(**reading())
    states = model(torch.randn(3, 2, 12, 12))
    assert states.shape == (3, 9, 16)
    block, weights = model.pooling_head.blocks[0], canonical_weights(model)
    theirs = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    named = [f"pooling_head.blocks.0.cross_attention.{x}" for x in ("query", "key", "value")]
    theirs.in_proj_weight.copy_(torch.cat([weights[f"{name}.weight"] for name in named]))
    theirs.in_proj_bias.copy_(torch.cat([weights[f"{name}.bias"] for name in named]))
    theirs.out_proj.load_state_dict(block.cross_attention.output.state_dict())
    x = theirs(model.pooling_query.expand(3, 1, -1), states, states)[0]
    expected = x + block.feedforward(block.feedforward_norm(x))
    torch.testing.assert_close(model.pooled(states), expected[:, 0])


@torch.no_grad()
def test_a_norm_before_the_first_block_and_patches_without_bias():
    model = build(input_norm={"epsilon": 1e-3}, patch_bias=False)
    assert model.patches.projection.bias is None
    images = torch.randn(2, 2, 12, 12)
    before = model.patches(images)
    before = torch.cat([model.class_token.expand(2, 1, -1), before], 1) + model.positions.weight
    capture = Capture(["encoder.embedding"])
    model(images, capture=capture)
    expected = torch.nn.functional.layer_norm(before, (16,), eps=1e-3)
    torch.testing.assert_close(capture.found["encoder.embedding"], expected)


@torch.no_grad()
def test_first_state_or_mean_stands_for_the_image():
    images = torch.randn(3, 2, 12, 12)
    first = build(labels=["a", "b", "c"])
    states = first(images)
    assert states.shape == (3, 10, 16)
    torch.testing.assert_close(first.pooled(states), states[:, 0])
    expected = states[:, 0] @ first.classifier.output.weight.T + first.classifier.output.bias
    torch.testing.assert_close(first.class_logits(states), expected)

    mean = build(pooling="mean", pooler=True, num_classes=5)
    states = mean(images)
    assert states.shape == (3, 9, 16)
    assert mean.spec.num_positions == mean.positions.max_length == 9
    dense = mean.pooler.dense
    pooled = torch.tanh(sum(states[:, n] for n in range(9)) / 9 @ dense.weight.T + dense.bias)
    torch.testing.assert_close(mean.pooled(states), pooled)
    assert mean.class_logits(states).shape == (3, 5)
    assert "class_token" not in canonical_weights(mean)


@torch.no_grad()
def test_patches_have_positions_and_a_vector_for_the_whole():
    """Without blocks that mix, each state is its own patch, position and final norm."""
    model = build()
    for block in model.encoder.blocks:
        for layer in (block.self_attention.output, block.feedforward.down):
            layer.weight.zero_()
            layer.bias.zero_()
    images = torch.randn(1, 2, 12, 12)
    inputs = torch.cat([model.class_token[None], model.patches(images)[0]])
    expected = model.encoder.final_norm(inputs + model.positions.weight)
    torch.testing.assert_close(model(images)[0], expected)


@torch.no_grad()
def test_an_image_does_not_depend_on_its_neighbours():
    model = build(labels=["a", "b"])
    images = torch.randn(4, 2, 12, 12)
    together = model.class_logits(model(images))
    for row in range(4):
        alone = model.class_logits(model(images[row : row + 1]))[0]
        torch.testing.assert_close(together[row], alone, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_captures_show_attention_and_do_not_change_the_answer():
    model = build()
    images = torch.randn(2, 2, 12, 12)
    capture = Capture(["encoder.*.self.weights", "encoder.1.output"])
    states = model(images, capture)
    assert torch.equal(states, model(images))
    weights = capture.found["encoder.1.self.weights"]
    assert weights.shape == (2, 2, 10, 10)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 10))
    torch.testing.assert_close(model.encoder.final_norm(capture.found["encoder.1.output"]), states)


@either_way
def test_every_parameter_learns_and_experts_fit_in(trained):
    changes = spec().plain()["encoder"]
    changes["pattern"][0]["sublayers"][1]["part"]["experts"] = {"num_experts": 3, "per_token": 2}
    model = build(encoder=changes, pooler=True, labels=["a", "b", "c"], dropout=0.1).train()
    images = torch.randn(4, 2, 12, 12)
    with trained(model):
        logits = model.class_logits(model(images))
        torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0])).backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_bad_requests_are_named():
    model = build()
    with pytest.raises(DataError, match="2 × 16 × 16; the model takes 2 × 12 × 12"):
        model(torch.zeros(1, 2, 16, 16))
    with pytest.raises(ModelError, match="no classifier"):
        model.class_logits(model(torch.zeros(1, 2, 12, 12)))
    with pytest.raises(ConfigError, match="image_size 14 is not a multiple of patch_size 4"):
        model.at_size(14)
    with pytest.raises(ConfigError, match="num_classes 3, but 2 labels"):
        spec(labels=["a", "b"], num_classes=3)
    with pytest.raises(ConfigError, match=r"stands after \[CLS\]"):
        spec(pooling="mean", distillation="token")
    with pytest.raises(ConfigError, match="pooling_head belongs to pooling = 'attention'"):
        spec(pooling="attention")
    with pytest.raises(ConfigError, match="pooling_head belongs to pooling = 'attention'"):
        spec(**reading(pooling="mean"))
    with pytest.raises(ConfigError, match="pooling_head needs cross_attention"):
        spec(pooling="attention", pooling_head=spec().encoder.plain())
    with pytest.raises(ConfigError, match="12 pixels cannot be cut out of"):
        spec(pixels=PIXELS | {"shorter_side": 11})
    with pytest.raises(ConfigError, match="shorter_side needs a filter"):
        spec(pixels={"mean": [0.5] * 2, "std": [0.5] * 2, "shorter_side": 12})
    with pytest.raises(ConfigError, match="needs classes"):
        spec(distillation="classifier")


@pytest.mark.parametrize(
    ("pooling", "distillation"), [("first", None), ("mean", None), ("first", "classifier")]
)
@torch.no_grad()
def test_another_image_size(pooling, distillation):
    model = build(pooling=pooling, distillation=distillation, labels=["a", "b"])
    state = torch.random.get_rng_state()
    finer = model.at_size(20)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert finer.spec == model.spec.model_copy(update={"image_size": 20})
    cut = build(pixels=PIXELS | {"shorter_side": 15}).at_size(20)
    assert cut.spec.pixels.shorter_side == 25
    assert not finer.training
    assert finer(torch.randn(1, 2, 20, 20)).shape[1] == 25 + (pooling == "first") + bool(
        distillation
    )
    same = model.at_size(12)
    images = torch.randn(2, 2, 12, 12)
    assert torch.equal(same(images), model(images))
    # A copy: what is learned later is its own.
    finer.patches.projection.weight.zero_()
    assert model.patches.projection.weight.any()


# The published models with ImageNet's classifier, and what is left without it.
COUNTS = {
    "vit-b-16": (86_567_656, 85_798_656),
    "vit-l-16": (304_326_632, 303_301_632),
    "vit-h-14": (632_045_800, 630_764_800),
}


def count(of: VisionSpec) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in VisionModel(of).parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_presets_have_the_published_sizes(name):
    file = resources.files("heedful.models") / "presets" / f"{name}.toml"
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    preset = parse_spec(values["spec"], where=name)
    whole, without = COUNTS[name]
    assert values["published_parameters"] == whole
    assert count(preset) == whole
    assert count(preset.model_copy(update={"num_classes": None})) == without
    if name == "vit-l-16":  # the size that the paper's 307 M are
        assert count(preset.model_copy(update={"patch_size": 32})) == 306_535_400
