"""Every model is one graph: PyTorch's compiler traces it whole, as the plan for CUDA has it.

The device of a plan is a value, so a processor can ask for the plan that a GPU would get, and trace
it. `eager` runs the traced operations as they are; what comes out, forward and backward, is what
the definition gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention

from heedful.engines.class_exchange import Exchange
from heedful.engines.training import traced_parts
from heedful.engines.training.traced_parts import compiled_kinds, obstacle_in
from heedful.models.build import build_model
from heedful.models.model_spec import ModelSpec, parse_spec
from heedful.models.preset_files import has_spec, preset_names, read_preset, read_preset_spec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec

pytestmark = [
    # Constants kept on a device are constants of a graph too; PyTorch warns of each such function.
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache"),
    # PyTorch's own tracing of block masks.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

SMALL = {"width": 64, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 4, "feedforward": 96}
SIZES = {
    "num_layers": 1,
    "num_heads": 4,
    "head_width": 16,
    "vocabulary": 50,
    "num_classes": 7,
    "source_vocabulary": 50,
    "target_vocabulary": 50,
    "image_size": 32,
    "patch_size": 16,
}
"""What a published model is shrunk to; its kinds of parts stay."""

SHAPES: dict[str, dict[str, Any]] = {
    **{
        f"mixer {name}": {"mixer": name, "positions": "none"}
        for name in ("linear_attention", "average_attention", "ssru", "s4d", "mamba", "rwkv")
    },
    "mixer linformer": {"encoder_mixer": "linformer"},
    "cosine features": {"mixer": "linear_attention", "features": "cosine", "positions": "none"},
    "random features": {"mixer": "linear_attention", "features": "random", "positions": "none"},
    "channel mix": {"mixer": "rwkv", "network": "channel_mix", "positions": "none"},
    **{
        f"positions {name}": {"positions": name}
        for name in (
            "sinusoidal",
            "learned",
            "rotary",
            "alibi",
            "kerple",
            "t5",
            "relative_keys",
            "transformer_xl",
            "disentangled",
            "none",
        )
    },
    "window": {"window": 3},
    "mask": {"mask": "strided(2)"},
    "grouped heads": {"num_kv_heads": 2, "positions": "rotary"},
    "global tokens": {"window": 3, "global_tokens": 2},
    "relative values": {"relative_values": 4},
    "gated, pre-norm": {"activation": "swiglu", "norm": "rms", "norm_placement": "pre"},
    "attention dropout": {"attention_dropout": 0.1},
    "recurrent": {
        "recurrent": {"attention": "additive", "feeding": "context"},
        "positions": "none",
    },
    "experts": {"num_experts": 2},
    "convolution": {"convolution": {}, "positions": "learned"},
    # Rows of nine tokens; in one of them pairs are missing.
    "evoformer": {"evoformer": {"side": 2}, "positions": "learned"},
}


def shrunk(data: Any, depth: int = 0) -> Any:
    if isinstance(data, list):
        return [shrunk(each, depth + 1) for each in data]
    if not isinstance(data, dict):
        return data
    result = {}
    for key, value in data.items():
        result[key] = SIZES[key] if key in SIZES and value is not None else shrunk(value, depth + 1)
        if key == "width" and value is not None:
            result[key] = 64 if depth == 0 else 96
        if key == "labels" and depth == 0 and value:
            result[key] = value[:7]
    return result


def refused(model: nn.Module) -> bool:
    """Whether the engine says that no graph can be made, of recurrent layers and of experts."""
    return obstacle_in(model) is not None


def small_spec(name: str) -> ModelSpec:
    """The spec of a preset in the smallest size."""
    if has_spec(name):
        data = read_preset_spec(name).model_dump(mode="json")
        return parse_spec(shrunk(data), where=name)
    options = read_preset(name)["model"]
    if {"recurrent", "convolution"} & options.keys():
        small = {key: SMALL[key] for key in ("width", "encoder_layers", "decoder_layers")}
    else:
        small = SMALL
    shape = TranslatorShape.parse(options | small, where=name)
    return translator_spec(shape, 50, 50)


def inputs_of(model: nn.Module) -> tuple[Any, ...]:
    """A batch with padding, as the model's forward takes it."""
    spec: Any = model.spec
    if spec.reads == "images":
        return (torch.rand(2, spec.channels, spec.image_size, spec.image_size),)
    positions = torch.arange(9).repeat(3, 1)
    positions[1, 6:] = -1
    ids = torch.randint(5, 40, (3, 9))
    if spec.reads == "pairs":
        shorter = positions[:, :7].contiguous()
        return ids, positions, torch.randint(5, 40, (3, 7)), shorter
    return ids, positions


@pytest.fixture(autouse=True)
def flex_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch refuses gradients of `flex_attention` on processors; the traced form has them."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    # Rows of 7 and 9 tokens are then as long as rows that `flex_attention` serves.
    monkeypatch.setattr(traced_parts, "_BLOCK", 4)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(call: Callable[..., Tensor], model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """The output, and the gradients of all parameters."""
    model.zero_grad()
    torch.manual_seed(3)
    output = call(*inputs)
    torch.manual_seed(4)
    (output * torch.randn_like(output)).sum().backward()
    return [output.detach()] + [
        torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()
    ]


def traced_equally(model: nn.Module, inputs: tuple[Any, ...], *, drops: bool = False) -> None:
    model.train()
    expected = run(model, model, inputs)
    with Exchange(model, compiled_kinds("cuda")).made():
        # `eager` runs what was traced: a break is an error, as would be a look at a value.
        graph = torch.compile(model, fullgraph=True, backend="eager")
        found = run(graph, model, inputs)
    if drops:  # one kernel drops other weights than another
        return
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model


def kinds_of_presets() -> dict[str, list[str]]:
    """Presets by the first of those that are alike but for their sizes."""
    kinds: dict[str, list[str]] = {}
    for name in preset_names():
        kinds.setdefault(repr(small_spec(name)), []).append(name)
    return {names[0]: names for names in kinds.values()}


@pytest.mark.parametrize("name", kinds_of_presets())
def test_a_preset_is_one_graph(name: str) -> None:
    torch.manual_seed(1)
    model = without_dropout(build_model(small_spec(name)))
    assert refused(model) == name.startswith("rnn-")
    if not refused(model):
        traced_equally(model, inputs_of(model))


@pytest.mark.parametrize("name", SHAPES)
def test_a_translator_is_one_graph(name: str) -> None:
    torch.manual_seed(1)
    sizes = SMALL
    if {"recurrent", "convolution"} & SHAPES[name].keys():
        sizes = {key: SMALL[key] for key in ("width", "encoder_layers", "decoder_layers")}
    shape = TranslatorShape(**{**sizes, "dropout": 0.0, "max_length": 32} | SHAPES[name])
    model = build_model(translator_spec(shape, 50, 50))
    assert refused(model) == (name in ("recurrent", "experts"))
    if not refused(model):
        traced_equally(model, inputs_of(model), drops="dropout" in name)


def test_a_model_of_pixels_is_one_graph() -> None:
    torch.manual_seed(1)
    small = {"width": 64, "decoder_layers": 2, "dropout": 0.0, "positions": "learned"}
    convolution = {"kernel_width": 5, "columns": 4, "first": 1}
    shape = TranslatorShape.parse(small | {"convolution": convolution})
    model = build_model(causal_lm_spec(shape, 50, 12))
    traced_equally(model, inputs_of(model))


@pytest.mark.parametrize(
    "name",
    [
        "positions rotary",
        "positions t5",
        "window",
        "grouped heads",
        "global tokens",
        "relative values",
    ],
)
def test_short_rows_are_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_parts, "_BLOCK", 128)
    torch.manual_seed(1)
    shape = TranslatorShape(**{**SMALL, "dropout": 0.0, "max_length": 32} | SHAPES[name])
    model = build_model(translator_spec(shape, 50, 50))
    traced_equally(model, inputs_of(model))
