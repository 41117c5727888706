"""The residual network: its shapes, its numbers by PyTorch's own layers, its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from heedful.errors import ConfigError, DataError, ModelError
from heedful.inspect.subject import Subject
from heedful.interop.architecture import fitting_architecture
from heedful.models.build import build_model
from heedful.models.checkpoint import load_model, read_weights, save_model
from heedful.models.cost import count_parameters, image_work
from heedful.models.images.resnet import ResNet
from heedful.models.images.resnet_spec import ResNetSpec
from heedful.models.model_spec import parse_spec
from heedful.pipelines.image_classification import ImagePipeline

PIXELS = {"resample": "bilinear", "mean": [0.3], "std": [0.2]}


def spec(**changes: Any) -> ResNetSpec:
    plain = {"kind": "resnet", "width": 4, "blocks": [1, 2], "image_size": 9, "channels": 1}
    plain |= {"labels": ["a", "b", "c"], "pixels": PIXELS}
    found = parse_spec(plain | changes, where="test")
    assert isinstance(found, ResNetSpec)
    return found


def build(seed: int = 0, **changes: Any) -> ResNet:
    """A network whose running statistics are not those of a new one."""
    torch.manual_seed(seed)
    model = ResNet(spec(**changes))
    for _ in range(3):
        model(torch.randn(5, model.spec.channels, model.spec.image_size, model.spec.image_size))
    return model.eval()


def reference(model: ResNet, x: Tensor) -> Tensor:
    """The logits by PyTorch's layers, with weights looked up by name."""
    weights = model.state_dict()

    def convolved(x: Tensor, name: str, stride: int) -> Tensor:
        weight = weights[f"{name}.weight"]
        outputs, inputs, kernel, _ = weight.shape
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        norm = nn.BatchNorm2d(outputs)
        conv.load_state_dict({"weight": weight})
        own = {"weight": "weight", "bias": "bias", "running_mean": "running_mean"}
        own |= {"running_var": "running_variance"}
        states = {ours: weights[f"{name}.norm.{theirs}"] for ours, theirs in own.items()}
        norm.load_state_dict(states | {"num_batches_tracked": torch.zeros((), dtype=torch.long)})
        result: Tensor = norm.eval()(conv(x))
        return result

    x = convolved(x, "stem", model.spec.stem_stride).relu()
    number = 0
    for stage, count in enumerate(model.spec.blocks):
        for index in range(count):
            name, stride = f"blocks.{number}", 2 if stage and not index else 1
            y = convolved(convolved(x, f"{name}.first", stride).relu(), f"{name}.second", 1)
            is_same = f"{name}.shortcut.weight" not in weights
            x = (y + (x if is_same else convolved(x, f"{name}.shortcut", stride))).relu()
            number += 1
    return F.linear(
        x.mean((2, 3)), *(weights[f"classifier.output.{n}"] for n in ("weight", "bias"))
    )


@pytest.mark.parametrize(
    "changes",
    [{}, {"stem_stride": 2, "blocks": [2]}, {"blocks": [1, 1, 1], "channels": 3, "pixels": None}],
)
def test_the_network_computes_what_the_layers_of_pytorch_do(changes: dict[str, Any]) -> None:
    model = build(**changes)
    channels, side = model.spec.channels, model.spec.image_size
    images = torch.randn(4, channels, side, side)
    states = model(images)
    assert states.shape == (4, model.spec.num_states, model.spec.state_width)
    torch.testing.assert_close(model.class_logits(states), reference(model, images))
    with FlopCounterMode(display=False) as counter:
        model.class_logits(model(images[:1]))
    assert image_work(model.spec).total == counter.get_total_flops()
    assert count_parameters(model.spec) == sum(p.numel() for p in model.parameters())


def test_sizes_of_the_published_networks() -> None:
    """Table 6 of He 2016: 0.27 and 0.85 million parameters, of 20 and 56 layers."""
    for blocks, millions in ((3, 0.27), (9, 0.85)):
        sizes = {"width": 16, "blocks": [blocks] * 3, "image_size": 32, "channels": 3}
        found = count_parameters(spec(**sizes, pixels=None, labels=[], num_classes=10))
        assert found / 1e6 == pytest.approx(millions, abs=0.006)


def test_a_directory_keeps_running_statistics(tmp_path: Path) -> None:
    model = build()
    save_model(model, None, tmp_path / "model")
    stored = read_weights(tmp_path / "model")
    assert {"stem.norm.running_mean", "blocks.2.second.norm.running_variance"} <= stored.keys()
    loaded, _ = load_model(tmp_path / "model")
    images = torch.randn(2, 1, 9, 9)
    assert torch.equal(loaded(images), model(images))


def test_a_label_does_not_depend_on_other_images(tmp_path: Path) -> None:
    pipeline = ImagePipeline(build())
    images = list(np.random.default_rng(0).integers(0, 256, (7, 9, 9)).astype(np.uint8))
    together = pipeline.classify(images)
    alone = [pipeline.classify([image])[0] for image in images]
    for labels, others in zip(together, alone, strict=True):
        assert [each.label for each in labels] == [each.label for each in others]
        probabilities = [each.probability for each in labels]
        assert probabilities == pytest.approx([each.probability for each in others], abs=1e-6)
    save_model(build(), None, tmp_path / "model")
    exact = ImagePipeline.load(tmp_path / "model").classify(images)
    assert exact == together


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"blocks": []}, "blocks"),
        ({"blocks": [1, 1, 1, 1, 1]}, "single place"),
        ({"stem_stride": 3}, "stem_stride"),
        ({"encoder": {}}, "encoder"),
        ({"num_classes": 2}, "num_classes 2, but 3 labels"),
        ({"channels": 3}, "mean and std for each of 3 channels"),
    ],
)
def test_specs_that_do_not_fit(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        spec(**changes)


def test_other_images_and_other_verbs_are_refused() -> None:
    model = build_model(spec()).eval()
    with pytest.raises(DataError, match="1 × 8 × 9; the model takes 1 × 9 × 9"):
        model(torch.zeros(1, 1, 8, 9))
    with pytest.raises(ModelError, match="no attention and no blocks; its kind is 'resnet'"):
        Subject(model)
    with pytest.raises(ModelError, match="of the kind 'resnet'"):
        fitting_architecture(model.spec, None, where="here")
    with pytest.raises(ModelError, match="has no classifier"):
        build(labels=[]).class_logits(torch.zeros(1, 25, 8))
