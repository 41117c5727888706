"""Learning from pairs of answers: a reward model, and direct preference optimisation (DPO).

The loss of both is −log σ(reward of chosen − reward of rejected) (Bradley and Terry 1952). The
reward of a conversation is the output of a head (Ouyang 2022), or without such a model
β · log(π(y|x) / π_ref(y|x)), where π_ref is the frozen reference (DPO, Rafailov 2023).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.data.batches import NO_TARGET, ExampleBatch, WindowBatch
from heedful.device import Precision
from heedful.engines.training.training_engine import prepare_training
from heedful.train.batch_source import FixedBatches
from heedful.train.objective import LossContext, LossSum, penalties_of, penalty_of
from heedful.train.validation import Measure, Measured


@dataclass(frozen=True)
class RewardBatch(ExampleBatch):
    """The two conversations of each pair side by side, the chosen one first.

    Args:
        ids: token ids [B, 2 · L] int64.
        positions: positions from 0 in each conversation [B, 2 · L] int64; −1 is padding.
        indices: numbers of the pairs' first tokens in the stream [B] int64.
        target_tokens: number of pairs, as the loss is one for each.
    """

    ids: Tensor
    positions: Tensor
    indices: Tensor
    target_tokens: int

    def part(self, start: int, stop: int) -> Self:
        return replace(super().part(start, stop), target_tokens=stop - start)


@dataclass(frozen=True)
class PreferenceBatch(WindowBatch):
    """Rows of a prompt with its chosen answer in segment 0, and its rejected one in segment 1.

    `target_tokens` is the number of pairs, as the loss is one for each.
    """

    def part(self, start: int, stop: int) -> Self:
        part = super().part(start, stop)
        return replace(part, target_tokens=len(part.ids))


class Preferences(NamedTuple):
    """The answers of a batch as a model sees them beside its reference.

    Args:
        margins: reward of the chosen answer less that of the rejected, before any factor β [B].
        divergence: [] KL divergence from the reference, summed over the tokens of the answers.
        tokens: number of these tokens; 0 without a reference.
    """

    margins: Tensor
    divergence: Tensor
    tokens: int


class PairObjective:
    """The loss of pairs of answers, of which the first has to have the larger reward."""

    beta = 1.0
    """Factor of the margins."""

    def loss(self, model: Any, batch: Any, context: LossContext) -> LossSum:
        """Return the loss of the pairs; see `Objective`."""
        capture = penalties_of(model)
        margins = self.compare(model, batch, capture).margins
        loss, count = -F.logsigmoid(self.beta * margins).sum(), batch.target_tokens
        return LossSum(loss + count * penalty_of(capture), count, {"nll": loss})

    def compare(
        self, model: Any, batch: Any, capture: Any = None, *, diverging: bool = False
    ) -> Preferences:
        """Return what a model says of a batch.

        Args:
            model: trained model.
            batch: pairs on its device.
            capture: capture of the layers' penalties.
            diverging: flag that the divergence is wanted; it is 0 otherwise.
        """
        raise NotImplementedError


class RewardObjective(PairObjective):
    """The loss of a reward model."""

    def compare(
        self, model: Any, batch: RewardBatch, capture: Any = None, *, diverging: bool = False
    ) -> Preferences:
        pairs = len(batch.ids)
        # [2 · B, L]: an encoder reads each conversation as a row of its own.
        ids, positions = (each.view(2 * pairs, -1) for each in (batch.ids, batch.positions))
        states = model(ids, positions, None, capture=capture)
        # Under autocast rewards are bfloat16, too coarse for their differences.
        rewards = model.rewards(states, positions).float().view(pairs, 2)
        return Preferences(rewards[:, 0] - rewards[:, 1], rewards.new_zeros(()), 0)


class PreferenceObjective(PairObjective):
    """The loss of DPO.

    Args:
        beta: strength of the pull to the reference.
        reference: frozen model, in evaluation mode.
    """

    def __init__(self, beta: float, reference: nn.Module) -> None:
        self.beta = beta
        self.reference = reference.eval().requires_grad_(False)

    def compare(
        self, model: Any, batch: PreferenceBatch, capture: Any = None, *, diverging: bool = False
    ) -> Preferences:
        follow(self.reference, batch.ids.device)
        with torch.no_grad():
            theirs = _log_probabilities(self.reference, batch)
        ours = _log_probabilities(model, batch, capture)
        real = batch.targets != NO_TARGET
        targets = batch.targets[real][:, None]
        ratios = (ours.gather(-1, targets) - theirs.gather(-1, targets))[:, 0]
        signs = 1 - 2 * batch.segments[real]  # + for the chosen answer, − for the rejected
        rows = real.nonzero()[:, 0]
        margins = ratios.new_zeros(len(batch.ids)).index_add(0, rows, ratios * signs)
        divergence = (ours.exp() * (ours - theirs)).sum() if diverging else ratios.new_zeros(())
        return Preferences(margins, divergence, len(rows))


def follow(reference: nn.Module, device: torch.device) -> None:
    """Move a reference to the device of training, which is chosen after the task is prepared."""
    if next(reference.parameters()).device != device:
        reference.to(device)


def _log_probabilities(model: Any, batch: PreferenceBatch, capture: Any = None) -> Tensor:
    """Return the log-probabilities of all tokens at each token of an answer [T, V], in float32."""
    states = model(batch.ids, batch.positions, batch.segments, capture=capture)
    return F.log_softmax(model.logits(states[batch.targets != NO_TARGET]).float(), dim=-1)


def preference_measure(objective: PairObjective, batches: FixedBatches[Any], pairs: int) -> Measure:
    """Make the metrics of preferences.

    `accuracy` is the share of pairs whose chosen answer has the larger reward, `margin` the mean
    difference of the rewards, and `kl`, where there is a reference, the mean divergence from it for
    a token of the answers of the data.

    Args:
        objective: loss with its reference.
        batches: validation batches.
        pairs: number of pairs in them.
    """

    def score(model: Any, count: int, precision: Precision, on_batch: Any) -> Measured:
        engine = prepare_training(model, next(model.parameters()).device)
        margins: list[float] = []
        divergence, tokens = 0.0, 0
        for batch in batches:
            if len(margins) >= count:  # as many as `validation.max_sentences` allows, or a few more
                break
            moved: Any = batch.to(next(model.parameters()).device)
            with precision.autocast(), engine.active():
                found = objective.compare(model, moved, diverging=True)
            margins += found.margins.tolist()
            divergence += float(found.divergence)
            tokens += found.tokens
            on_batch()
        values = {
            "accuracy": sum(margin > 0 for margin in margins) / len(margins),
            "margin": objective.beta * sum(margins) / len(margins),
        }
        return Measured(values | ({"kl": divergence / tokens} if tokens else {}))

    return Measure(pairs, score)
