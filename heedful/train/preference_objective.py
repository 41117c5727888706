"""Direct preference optimisation (DPO, Rafailov 2023): learning from pairs of answers.

A row of a batch is a prompt with its chosen answer, and after it, as a segment of its own, the same
prompt with the rejected one. The reward of an answer is β · log(π(y|x) / π_ref(y|x)), where π_ref
is the frozen initial model, and the loss is −log σ(reward of chosen − reward of rejected).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.data.batches import NO_TARGET, WindowBatch
from heedful.device import Precision
from heedful.engines.training.training_engine import prepare_training
from heedful.train.batch_source import FixedBatches
from heedful.train.objective import LossContext, LossSum, penalties_of, penalty_of
from heedful.train.validation import Measure, Measured


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
        margins: log-ratio of the chosen answer to the reference less that of the rejected [B].
        divergence: [] KL divergence from the reference, summed over the tokens of the answers.
        tokens: number of these tokens.
    """

    margins: Tensor
    divergence: Tensor
    tokens: int


class PreferenceObjective:
    """The loss of DPO.

    Args:
        beta: strength of the pull to the reference.
        reference: frozen model, in evaluation mode.
    """

    def __init__(self, beta: float, reference: nn.Module) -> None:
        self.beta = beta
        self.reference = reference.eval().requires_grad_(False)

    def loss(self, model: Any, batch: PreferenceBatch, context: LossContext) -> LossSum:
        """Return the loss of the pairs; see `Objective`."""
        capture = penalties_of(model)
        margins = self.compare(model, batch, capture).margins
        loss, count = -F.logsigmoid(self.beta * margins).sum(), batch.target_tokens
        return LossSum(loss + count * penalty_of(capture), count, {"nll": loss})

    def compare(
        self, model: Any, batch: PreferenceBatch, capture: Any = None, *, diverging: bool = False
    ) -> Preferences:
        """Return what a model and the reference say of a batch.

        Args:
            model: trained model.
            batch: pairs on its device.
            capture: capture of the layers' penalties.
            diverging: flag that the divergence is wanted; it is 0 otherwise.
        """
        # The trainer chooses the device after the task is prepared.
        device = batch.ids.device
        if next(self.reference.parameters()).device != device:
            self.reference.to(device)
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


def _log_probabilities(model: Any, batch: PreferenceBatch, capture: Any = None) -> Tensor:
    """Return the log-probabilities of all tokens at each token of an answer [T, V], in float32."""
    states = model(batch.ids, batch.positions, batch.segments, capture=capture)
    return F.log_softmax(model.logits(states[batch.targets != NO_TARGET]).float(), dim=-1)


def preference_measure(
    objective: PreferenceObjective, batches: FixedBatches[Any], pairs: int
) -> Measure:
    """Make the metrics of preferences.

    `accuracy` is the share of pairs whose chosen answer has the larger reward, `margin` the mean
    difference of the rewards, and `kl` the mean divergence from the reference for a token of the
    answers of the data.

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
        return Measured(
            {
                "accuracy": sum(margin > 0 for margin in margins) / len(margins),
                "margin": objective.beta * sum(margins) / len(margins),
                "kl": divergence / tokens,
            }
        )

    return Measure(pairs, score)
