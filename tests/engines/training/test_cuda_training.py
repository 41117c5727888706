"""Training on a GPU beside the definition: attention in a graph, whole blocks, a hundred losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.data.batches import PairBatch
from heedful.data.padding import pad
from heedful.device import Precision
from heedful.engines.training.compiled import CompiledEngine
from heedful.engines.training.masked_loss import MaskedLosses
from heedful.events import Events
from heedful.models.build import build_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.nn.losses import smoothed_cross_entropy
from heedful.train.objective import TranslationObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
from heedful.train.update import Updater

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA GPU: PyTorch compiles for it"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PyTorch's compiler itself
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SMALL = {"width": 64, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4, "feedforward": 96}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    **{
        name: {"positions": name}
        for name in ("rotary", "alibi", "kerple", "t5", "relative_keys", "transformer_xl")
    },
    "window": {"window": 3},
    "mask": {"mask": "strided(2)"},
    "grouped heads": {"num_kv_heads": 2},
    "relative values": {"relative_values": 4},
    "mamba": {"mixer": "mamba", "positions": "none"},
}


def translator(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    shape = TranslatorShape(**{**SMALL, "dropout": 0.0} | changes)
    return build_model(translator_spec(shape, 50, 50)).train().cuda()


def padded(length: int) -> tuple[Tensor, Tensor]:
    positions = torch.arange(length).repeat(4, 1)
    positions[1, length // 2 :] = -1
    return torch.randint(5, 40, positions.shape).cuda(), positions.cuda()


def learned(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    model.zero_grad()
    output = model(*inputs)[inputs[-1] >= 0]
    weights = torch.arange(output.numel(), device=output.device).view_as(output).sin()
    (output * weights).sum().backward()
    return [output.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


@pytest.mark.parametrize("name", SHAPES)
def test_compiled_blocks_are_those_of_the_definition(name: str) -> None:
    """Whatever kernel the plan has: FlashAttention, `flex_attention`, or a mask in memory."""
    model = translator(**SHAPES[name])
    engine = CompiledEngine(model, Events(), asked_for=True)
    for length in (24, 17, 150, 139):
        inputs = (*padded(length), *padded(length - 3))
        expected = learned(model, *inputs)
        with engine.active():
            found = learned(model, *inputs)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)
    # One for each stack and any lengths up to a block of `flex_attention`, and one for longer rows.
    assert engine.graphs == 4


def test_rows_that_are_whole_texts_are_attended_to_by_flash() -> None:
    """Equal to the definition with positions; and no mask is in memory."""
    torch.manual_seed(0)
    shape = TranslatorShape(**SMALL, dropout=0.0)
    model = build_model(causal_lm_spec(shape, 50, 128)).train().cuda()
    ids = torch.randint(5, 40, (4, 128), device="cuda")
    positions = torch.arange(128, device="cuda").repeat(4, 1)
    engine = CompiledEngine(model, Events(), asked_for=True, one_shape=True)
    with engine.active():
        found = model(ids)
    torch.testing.assert_close(found, model(ids, positions), rtol=2e-3, atol=2e-3)
    watched = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with watched as profile, engine.active(), torch.autocast("cuda", torch.bfloat16):
        model(ids)
    names = [event.key for event in profile.key_averages()]
    assert any("flash" in each.lower() for each in names), names


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_losses_in_compiled_chunks(softcap: float | None) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(300, 32, device="cuda", requires_grad=True)
    weight = torch.randn(97, 32, device="cuda", requires_grad=True)
    targets = torch.randint(0, 97, (300,), device="cuda")
    targets[::7] = -1
    real = targets >= 0
    found = MaskedLosses(compiled=True).smoothed_cross_entropy(
        hidden, weight, targets, 0.1, None, softcap
    )
    expected = smoothed_cross_entropy(hidden[real], weight, targets[real], 0.1, None, softcap)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-3)
    pairs = (torch.autograd.grad(each.loss, (hidden, weight)) for each in (found, expected))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_hundred_updates_have_the_losses_of_a_processor(compiled: bool) -> None:
    """Float32 throughout; in pre-norm blocks rounding does not grow from update to update."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False

    def losses(device: str) -> list[float]:
        model = translator(norm_placement="pre", activation="gelu").to(device)
        optimizer = build_optimizer(model, OptimizerSettings())
        objective = TranslationObjective(ObjectiveSettings())
        work = Updater(model, objective, optimizer, Precision("fp32", device), seed=1)
        draw = torch.Generator().manual_seed(5)
        found = []
        for step in range(1, 101):
            rows = [
                torch.randint(5, 50, (int(n),), generator=draw).tolist()
                for n in torch.randint(2, 12, (8,), generator=draw)
            ]
            ids, positions = pad(rows, 0)
            count = sum(map(len, rows))
            batch = PairBatch(ids, positions, ids, ids, positions, torch.arange(8), count)
            if compiled and device == "cuda" and step == 1:
                assert work.compile(batch, 0, Events(), asked_for=True)
            result = work.update([batch], step, 1e-3)
            assert result is not None
            found.append(result.values["loss"])
        return found

    for step, (one, other) in enumerate(zip(losses("cuda"), losses("cpu"), strict=True), start=1):
        assert one == pytest.approx(other, rel=1e-4), step
