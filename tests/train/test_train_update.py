from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.data.batches import PairBatch
from heedful.device import Precision
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train.objective import LossContext, TranslationObjective, mix_in_guesses
from heedful.train.optimizers import build_optimizer, export_moments, import_moments
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
from heedful.train.update import Updater

VOCABULARY = 11
FP32 = Precision("fp32", "cpu")


def small_model(dropout: float = 0.0, seed: int = 0) -> Translator:
    shape = TranslatorShape(
        width=8,
        encoder_layers=1,
        decoder_layers=1,
        num_heads=2,
        feedforward=12,
        dropout=dropout,
    )
    torch.manual_seed(seed)
    return Translator(translator_spec(shape, VOCABULARY, VOCABULARY))


def padded(sequences: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
    width = max(map(len, sequences))
    tokens = torch.zeros(len(sequences), width, dtype=torch.int64)
    positions = torch.full_like(tokens, -1)
    for row, sequence in enumerate(sequences):
        start = width - len(sequence) if side == "left" else 0
        part = slice(start, start + len(sequence))
        tokens[row, part] = torch.tensor(sequence)
        positions[row, part] = torch.arange(len(sequence))
    return tokens, positions


def pairs(count: int, seed: int = 0, padding_side: Any = "right") -> PairBatch:
    draw = np.random.default_rng(seed)
    sources = [list(draw.integers(4, VOCABULARY, draw.integers(1, 6))) for _ in range(count)]
    targets = [list(draw.integers(4, VOCABULARY, draw.integers(1, 6))) for _ in range(count)]
    source, source_positions = padded([[*row, 2] for row in sources], padding_side)
    target_input, positions = padded([[1, *row] for row in targets], padding_side)
    target_output, _ = padded([[*row, 2] for row in targets], padding_side)
    tokens = sum(len(row) + 1 for row in targets)
    indices = torch.arange(count)
    return PairBatch(
        source, source_positions, target_input, target_output, positions, indices, tokens
    )


def rows(batch: PairBatch, chosen: list[int]) -> PairBatch:
    """Some rows of a batch, still padded as wide as all of it."""
    tensors = {
        f.name: value[chosen]
        for f in dataclasses.fields(batch)
        if isinstance(value := getattr(batch, f.name), torch.Tensor)
    }
    tokens = int((tensors["target_positions"] >= 0).sum())
    return PairBatch(**tensors, target_tokens=tokens)


def updater(model: Translator, clip_norm: float = 0.0, **objective: Any) -> Updater:
    return Updater(
        model,
        TranslationObjective(ObjectiveSettings.parse(objective)),
        build_optimizer(model, OptimizerSettings()),
        FP32,
        seed=3,
        clip_norm=clip_norm,
    )


def gradients(model: Translator, batches: list[PairBatch]) -> tuple[dict[str, Tensor], float]:
    result = updater(model).update(batches, 1, 0.0)
    assert result is not None
    assert result.tokens == sum(batch.target_tokens for batch in batches)
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found, result.values["loss"]


@pytest.mark.parametrize("parts", [[[0], [1], [2], [3, 4, 5, 6]], [[6, 5, 4, 3, 2], [1, 0]]])
def test_accumulation_is_exact(parts: list[list[int]]) -> None:
    """Batches of unequal token counts give the gradient of their union."""
    model = small_model().double()
    union = pairs(7)
    whole, loss = gradients(model, [union])
    split, split_loss = gradients(model, [rows(union, part) for part in parts])
    assert split_loss == pytest.approx(loss, rel=1e-6)
    assert whole.keys() == {name for name, _ in model.named_parameters()}
    for name, gradient in whole.items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-6, atol=1e-9, msg=name)


def test_loss_is_the_mean_over_real_target_tokens() -> None:
    model = small_model().double()
    batch = pairs(5)
    _, loss = gradients(model, [batch])
    with torch.no_grad():
        hidden = model(
            batch.source, batch.source_positions, batch.target_input, batch.target_positions
        )
        probabilities = model.logits(hidden).softmax(-1).log()
    expected, count = 0.0, 0
    for row in range(5):
        for t in range(batch.target_output.shape[1]):
            if batch.target_positions[row, t] >= 0:
                log = probabilities[row, t]
                expected -= 0.9 * float(log[batch.target_output[row, t]]) + 0.1 * float(log.mean())
                count += 1
    assert count == batch.target_tokens
    assert loss == pytest.approx(expected / count, rel=1e-9)


def test_randomness_is_a_function_of_seed_step_and_place() -> None:
    model = small_model(dropout=0.5)
    batch = pairs(4)
    first, _ = gradients(model, [batch, batch])
    torch.rand(100)
    again, _ = gradients(model, [batch, batch])
    assert all(torch.equal(first[name], again[name]) for name in first)
    losses = []
    for step in (1, 2):
        result = updater(model).update([batch], step, 0.0)
        assert result is not None
        losses.append(result.values["loss"])
    assert losses[0] != losses[1]


def test_clipping_bounds_the_gradient_and_reports_its_length_before() -> None:
    model = small_model()
    free = updater(model).update([pairs(3)], 1, 0.0)
    clipped = updater(model, clip_norm=0.01).update([pairs(3)], 1, 0.0)
    assert free is not None
    assert clipped is not None
    assert clipped.grad_norm == free.grad_norm > 0.01
    squares = sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None)
    assert squares**0.5 == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_the_optimizer_learns_from_the_clipped_gradient(fused: bool) -> None:
    model = small_model()
    found, _ = gradients(copy.deepcopy(model), [pairs(3)])
    length = sum(float((g.double() ** 2).sum()) for g in found.values()) ** 0.5
    worker = updater(model, clip_norm=0.01)
    for group in worker.optimizer.param_groups:
        group["fused"] = fused
    result = worker.update([pairs(3)], 1, 0.0)
    assert result is not None
    beta = OptimizerSettings().beta1
    for name, parameter in model.named_parameters():
        moment = worker.optimizer.state[parameter]["exp_avg"]
        wanted = (1 - beta) * found[name].double() * 0.01 / length
        torch.testing.assert_close(moment.double(), wanted, rtol=1e-5, atol=1e-9)
    worker.clip_norm = 2 * length  # which nothing is longer than
    assert worker.update([pairs(3)], 1, 0.0) is not None
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, found[name])


def test_cancelled_update_changes_nothing() -> None:
    model = small_model()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    answers = iter([False, True])
    result = updater(model).update([pairs(2), pairs(2)], 1, 0.1, cancelled=lambda: next(answers))
    assert result is None
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_optimizer_state_survives_export_and_import() -> None:
    def two_updates(reload: bool) -> dict[str, Tensor]:
        model = small_model()
        worker = updater(model)
        worker.update([pairs(3)], 1, 0.01)
        if reload:
            saved = {
                name: tensor.clone()
                for name, tensor in export_moments(worker.optimizer, model).items()
            }
            worker = updater(model)
            import_moments(worker.optimizer, model, saved)
        worker.update([pairs(3, seed=1)], 2, 0.01)
        return {n: p.detach().clone() for n, p in model.named_parameters()}

    straight, reloaded = two_updates(False), two_updates(True)
    assert all(torch.equal(straight[name], reloaded[name]) for name in straight)


def test_adamw_decays_matrices_only() -> None:
    model = small_model()
    optimizer = build_optimizer(model, OptimizerSettings(kind="adamw", weight_decay=0.1))
    decayed = {
        id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]
    }
    names = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert names
    assert len(names) < len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or "embedding" in name
        assert (name in names) is not plain, name


# R-Drop


@pytest.mark.parametrize("weight", [0.5, 5.0])
def test_r_drop_without_dropout_is_the_plain_loss(weight: float) -> None:
    model = small_model().double().train()
    batch = pairs(4)
    plain = TranslationObjective(ObjectiveSettings()).loss(model, batch, LossContext(1))
    twice = TranslationObjective(ObjectiveSettings(r_drop=weight)).loss(
        model, batch, LossContext(1)
    )
    assert twice.tokens == plain.tokens == batch.target_tokens
    assert float(twice.extras["divergence"]) == pytest.approx(0, abs=1e-12)
    assert twice.loss_sum.detach() == pytest.approx(float(plain.loss_sum.detach()), rel=1e-9)


def test_r_drop_adds_a_quarter_of_the_symmetric_divergence() -> None:
    """Half of the paper's -log p1 - log p2 + α/2 · (KL + KL)."""
    model = small_model(dropout=0.3).train()
    losses = []
    for weight in (1e-9, 2.0):
        torch.manual_seed(0)
        objective = TranslationObjective(ObjectiveSettings(r_drop=weight))
        losses.append(objective.loss(model, pairs(4), LossContext(1)))
    divergence = float(losses[1].extras["divergence"])
    assert divergence > 0
    difference = float((losses[1].loss_sum - losses[0].loss_sum).detach())
    assert difference == pytest.approx(2.0 / 4 * divergence, rel=1e-3)


# scheduled sampling


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_full_sampling_replaces_all_but_the_first_by_the_best_guess(padding_side: str) -> None:
    model = small_model().train()
    batch = pairs(6, padding_side=padding_side)
    mixed = mix_in_guesses(model, batch, 1.0)
    hidden = model(batch.source, batch.source_positions, batch.target_input, batch.target_positions)
    guesses = model.logits(hidden).argmax(-1)
    for row in range(6):
        for t in range(mixed.shape[1]):
            position = int(batch.target_positions[row, t])
            expected = guesses[row, t - 1] if position > 0 else batch.target_input[row, t]
            assert mixed[row, t] == expected
    assert not torch.equal(mixed, batch.target_input)


def test_sampled_share_grows_linearly_and_only_in_training() -> None:
    settings = ObjectiveSettings(scheduled_sampling=0.5, scheduled_sampling_steps=100)
    model = small_model().train()
    batch = pairs(400)
    movable = int((batch.target_positions > 0).sum())
    seen: list[float] = []
    forward = model.forward

    def spy(*arguments: Tensor, **kept: Any) -> Tensor:
        changed = int((arguments[2] != batch.target_input).sum())
        seen.append(changed / movable)
        return forward(*arguments)

    model.forward = spy  # type: ignore[method-assign]
    objective = TranslationObjective(settings)
    agreed = float(
        (model.logits(forward(*_inputs(batch))).argmax(-1) == batch.target_output)[:, :-1][
            batch.target_positions[:, 1:] > 0
        ]
        .float()
        .mean()
    )
    for step, share in ((50, 0.25), (100, 0.5), (1000, 0.5)):
        torch.manual_seed(step)
        seen.clear()
        objective.loss(model, batch, LossContext(step))
        assert seen[0] == 0
        assert seen[1] == pytest.approx(share * (1 - agreed), abs=0.05)
    model.eval()
    seen.clear()
    objective.loss(model, batch, LossContext(1000))
    assert seen == [0]


def _inputs(batch: PairBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.source, batch.source_positions, batch.target_input, batch.target_positions


def test_evaluation_has_no_label_smoothing() -> None:
    model = small_model().eval()
    result = TranslationObjective(ObjectiveSettings()).loss(model, pairs(3), LossContext(0))
    assert float(result.loss_sum.detach()) == float(result.extras["nll"])
