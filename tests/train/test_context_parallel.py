"""Whole models in several processes, each with a share of every sequence, beside one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heedful.data.batches import (
    NO_TARGET,
    PairBatch,
    RowBatch,
    SegmentBatch,
    WindowBatch,
    tensors_of,
)
from heedful.errors import ConfigError, DataError
from heedful.models.causal_lm import CausalLM
from heedful.models.shape import RecurrentShape, TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.models.translator import Translator
from heedful.nn.attention.kernels.chunked import computed_pairs
from heedful.nn.attention.masks import Causal
from heedful.nn.positions import Positions, context_parallel
from heedful.train.objective import CausalLMObjective, LossContext, TranslationObjective
from heedful.train.parallel.shares import check_context, shard_batch
from heedful.train.run_settings import ObjectiveSettings

VOCABULARY = 23
SMALL = {
    "width": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_heads": 4,
    "feedforward": 24,
    "dropout": 0.0,
}
FUSED = "fused in C in one process"
SHAPES: dict[str, dict[str, Any]] = {
    "rotary, grouped": {"positions": "rotary", "num_kv_heads": 2, "norm_placement": "pre"},
    "sinusoidal": {},
    FUSED: {"width": 64, "feedforward": 64},
    "learned": {"positions": "learned", "norm": "rms", "norm_placement": "pre"},
    "alibi": {"positions": "alibi"},
    "t5": {"positions": "t5", "bias": False},
    "window": {"positions": "rotary", "window": 5},
    "strided": {"positions": "rotary", "mask": "strided(4)"},
    "relative": {"positions": "relative_keys", "relative_values": 4},
}
SIZES = [2, 4]


def language_model(name: str) -> CausalLM:
    torch.manual_seed(3)
    shape = TranslatorShape(**SMALL | SHAPES[name])
    return CausalLM(causal_lm_spec(shape, VOCABULARY, 64)).train()


def translator(name: str) -> Translator:
    torch.manual_seed(3)
    return Translator(
        translator_spec(TranslatorShape(**SMALL | SHAPES[name]), VOCABULARY, VOCABULARY)
    ).train()


def windows(length: int = 37, packed: bool = True) -> WindowBatch:
    """Two windows: one with three texts, one that is padded."""
    torch.manual_seed(4)
    ids = torch.randint(VOCABULARY, (2, length))
    positions = torch.arange(length).repeat(2, 1)
    segments = torch.zeros_like(ids)
    if packed:
        for start in (min(11, length - 1), min(20, length - 1)):
            positions[0, start:] = torch.arange(length - start)
            segments[0, start:] += 1
    targets = torch.randint(VOCABULARY, (2, length))
    positions[1, length // 2 :] = -1
    targets[1, length // 2 :] = NO_TARGET
    targets[0, length // 3] = NO_TARGET
    tokens = int((targets != NO_TARGET).sum())
    return WindowBatch(ids, positions, segments, targets, torch.arange(2), tokens)


def pairs(source: int = 19, target: int = 11) -> PairBatch:
    torch.manual_seed(4)
    at = [torch.arange(length).repeat(3, 1) for length in (source, target)]
    for each in at:
        each[1, each.shape[1] // 3 :] = -1
        each[2, 1:] = -1
    tokens = [torch.randint(VOCABULARY, each.shape) for each in (at[0], at[1], at[1])]
    real = int((at[1] >= 0).sum())
    return PairBatch(tokens[0], at[0], *tokens[1:], at[1], torch.arange(3), real)


def learn(model: Any, batch: Any) -> dict[str, Tensor]:
    """Loss, number of tokens, and gradients of all parameters."""
    settings = ObjectiveSettings(label_smoothing=0.1)
    is_pair = isinstance(batch, PairBatch)
    objective = TranslationObjective(settings) if is_pair else CausalLMObjective(0.1)
    result = objective.loss(model, batch, LossContext(1))
    result.loss_sum.backward()
    return {
        "loss": result.loss_sum.detach(),
        "tokens": torch.tensor(result.tokens),
        **{name: each.grad for name, each in model.named_parameters()},
    }


def learn_share(group: Any, make: str, name: str, dtype: torch.dtype, batch: Any) -> dict[str, Any]:
    """What one process makes of its share."""
    model = globals()[make](name).to(dtype)
    share = shard_batch(batch, group.rank(), group.size())
    check_context(model, group.size())
    with context_parallel(group):
        return learn(model, share)


def check_equal(
    processes: Any, size: int, make: str, name: str, batch: Any, dtype: torch.dtype
) -> None:
    found = processes.run(learn_share, size, make, name, dtype, batch)
    expected = learn(globals()[make](name).to(dtype), batch)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    assert expected["tokens"] == batch.target_tokens
    for key, value in expected.items():
        total = sum(each[key] for each in found)
        scale = max(1.0, float(value.abs().max()))
        assert float((total - value).abs().max()) <= tolerance * scale, key


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name in SHAPES if name != FUSED])
def test_language_models(processes: Any, name: str, size: int) -> None:
    check_equal(processes, size, "language_model", name, windows(), torch.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["rotary, grouped", "sinusoidal", "learned", "t5", "relative"])
def test_translators(processes: Any, name: str, size: int) -> None:
    check_equal(processes, size, "translator", name, pairs(), torch.float32)


@pytest.mark.parametrize("size", SIZES)
def test_sublayers_that_one_call_in_c_would_do(processes: Any, size: int) -> None:
    """It has no keys but those of its own process, and must not serve."""
    for make, batch in (("language_model", windows()), ("translator", pairs())):
        many = {
            name: value.repeat(16, 1) if value.dim() == 2 else torch.arange(16 * len(value))
            for name, value in tensors_of(batch)
        }
        large = replace(batch, **many, target_tokens=16 * batch.target_tokens)
        check_equal(processes, size, make, FUSED, large, torch.float32)


@pytest.mark.parametrize(
    ("make", "name", "batch"),
    [
        ("language_model", "rotary, grouped", windows()),
        ("language_model", "alibi", windows(packed=False)),
        ("translator", "sinusoidal", pairs()),
    ],
)
def test_to_nine_digits(processes: Any, make: str, name: str, batch: Any) -> None:
    check_equal(processes, 4, make, name, batch, torch.float64)


def test_shares_without_a_token(processes: Any) -> None:
    """Three tokens for eight chunks: a process may have padding alone, and takes part."""
    check_equal(processes, 4, "language_model", "learned", windows(3), torch.float32)
    check_equal(processes, 4, "translator", "sinusoidal", pairs(9, 2), torch.float32)


@given(st.integers(1, 70), st.sampled_from([1, 2, 3, 4, 8]), st.booleans())
def test_shares_divide_a_batch(length: int, size: int, packed: bool) -> None:
    batch = windows(length, packed)
    shares = [shard_batch(batch, rank, size) for rank in range(size)]
    assert len({share.ids.shape for share in shares}) == 1
    assert shares[0].ids.shape[1] - length / size < 2
    assert sum(share.target_tokens for share in shares) == batch.target_tokens
    columns = [
        torch.cat([getattr(share, name) for share in shares], 1)
        for name in ("ids", "positions", "segments", "targets")
    ]
    any_text = bool(batch.segments.any())
    for row in range(2):
        found = {tuple(each) for each in torch.stack([c[row] for c in columns], 1).tolist()}
        whole = (batch.ids, batch.positions, batch.segments + any_text * (size > 1), batch.targets)
        expected = {tuple(each) for each in torch.stack([c[row] for c in whole], 1).tolist()}
        filled = {each for each in found if each[1] == -1 and each[3] == NO_TARGET}
        assert expected <= found
        assert found - expected <= filled
    assert all(bool(share.segments.any()) == any_text for share in shares)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_causal_work_is_balanced(size: int) -> None:
    """Scores of blocks, and with them time; equal stretches differ by almost 2 · size − 1 times."""
    length = 8192
    whole = torch.arange(length)[None]
    batch = replace(
        windows(length, packed=False), ids=whole, positions=whole, segments=whole * 0, targets=whole
    )
    zigzag = [
        computed_pairs(Positions(shard_batch(batch, rank, size).positions, whole), Causal())
        for rank in range(size)
    ]
    stretches = [computed_pairs(Positions(part, whole), Causal()) for part in whole.chunk(size, 1)]
    assert max(zigzag) <= 1.01 * min(zigzag)
    assert max(stretches) > 1.8 * size * min(stretches) * 0.8


def rows(targets: Tensor) -> RowBatch:
    ids = torch.arange(8).repeat(2, 1)
    return RowBatch(ids, ids, targets, torch.arange(2), 2)


def test_masked_rows_are_divided() -> None:
    targets = torch.full((2, 8), NO_TARGET)
    targets[0, 7] = targets[1, 2] = 5
    first, second = (shard_batch(rows(targets), rank, 2) for rank in range(2))
    assert first.positions.tolist() == [[0, 1, 6, 7]] * 2
    assert second.positions.tolist() == [[2, 3, 4, 5]] * 2
    assert (first.target_tokens, second.target_tokens) == (1, 1)


def test_batches_that_cannot_be_divided() -> None:
    segments = SegmentBatch(**vars(windows()), begins=True)
    for batch in (rows(torch.arange(2)), segments):
        with pytest.raises(DataError, match=r"parallel\.context: Only sequences with a target"):
            shard_batch(batch, 0, 2)
        assert shard_batch(batch, 0, 1) is batch


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mixer": "mamba"}, r"mamba \(decoder\.0\.mixer and 1 more\)"),
        (
            {"mixer": "linear_attention", "attention_every": 2},
            r"linear_attention \(decoder\.0\.mixer\)",
        ),
        ({"encoder_mixer": "linformer"}, r"linformer \(encoder\.0\.mixer and 1 more\)"),
        ({"network": "channel_mix"}, r"channel_mix \(decoder\.0\.channel_mix and 1 more\)"),
        (
            {"mask": "window(4) | global(2)", "global_tokens": 2},
            r"global attention \(encoder\.0\.self_attention and 3 more\)",
        ),
        ({"num_experts": 4}, "balance of experts"),
    ],
)
def test_models_that_cannot_be_divided(changes: dict[str, Any], reason: str) -> None:
    shape = TranslatorShape(**SMALL | {"feedforward": 24} | changes)
    model = Translator(translator_spec(shape, VOCABULARY, VOCABULARY))
    with pytest.raises(ConfigError, match=reason) as caught:
        check_context(model, 2)
    assert "among 2 processes" in str(caught.value)
    check_context(model, 1)


def test_recurrent_models_cannot_be_divided() -> None:
    small = {name: SMALL[name] for name in ("width", "encoder_layers", "decoder_layers")}
    shape = TranslatorShape(**small, recurrent=RecurrentShape(attention="dot", feeding="context"))
    with pytest.raises(ConfigError, match=r"recurrent_decoder \(decoder\.0\.cross_attention\)"):
        check_context(Translator(translator_spec(shape, VOCABULARY, VOCABULARY)), 4)


def test_settings_that_cannot_be_divided() -> None:
    sampling = ObjectiveSettings(scheduled_sampling=0.2)
    with pytest.raises(ConfigError, match="scheduled sampling"):
        check_context(translator("sinusoidal"), 2, sampling)
    shape = TranslatorShape(**SMALL, positions="transformer_xl", memory=8)
    with pytest.raises(ConfigError, match="memory of earlier segments"):
        check_context(CausalLM(causal_lm_spec(shape, VOCABULARY, 8)), 2)


def test_models_that_can_be_divided() -> None:
    check_context(language_model("window"), 4)
    check_context(translator("alibi"), 4, ObjectiveSettings())
