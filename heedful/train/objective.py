"""What is minimised: the one thing the trainer asks of a task.

The trainer hands an `Objective` a model and a batch and gets a sum of losses back; what a batch or
a model looks like is the objective's own business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from heedful.nn.capture import Capture
from heedful.nn.losses import consistent_cross_entropy, smoothed_cross_entropy
from heedful.nn.moe import PENALTIES, adds_penalties, penalty
from heedful.train.r_drop import twice
from heedful.train.scheduled_sampling import mix_in_guesses

if TYPE_CHECKING:
    from heedful.data.batches import PairBatch
    from heedful.models.translator import Translator
    from heedful.train.settings import ObjectiveSettings


@dataclass(frozen=True)
class Context:
    """Where in the run a loss is asked for.

    Args:
        step: number of the update, from 1.
    """

    step: int


@dataclass(frozen=True)
class LossSum:
    """A loss summed over real target tokens.

    Args:
        loss_sum: 0-dim tensor to differentiate, in nats.
        tokens: how many tokens it is the sum over.
        extras: other sums over the same tokens, for reporting; `nll` is the plain
            negative log-likelihood.
    """

    loss_sum: Tensor
    tokens: int
    extras: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """A task's loss."""

    def loss(self, model: Any, batch: Any, context: Context) -> LossSum:
        """The summed loss of a batch; the model's mode says whether this is training."""
        ...


class TranslationObjective:
    """Label-smoothed cross-entropy of an encoder-decoder, with its regularisers.

    Args:
        settings: label smoothing, scheduled sampling, R-Drop.
    """

    def __init__(self, settings: ObjectiveSettings) -> None:
        self.settings = settings

    def loss(self, model: Translator, batch: PairBatch, context: Context) -> LossSum:
        """The summed loss over the batch's real target positions.

        Args:
            model: anything that forwards like `Translator`.
            batch: a `PairBatch` on the model's device.
            context: the step, which sets the share of scheduled sampling.
        """
        target_input = batch.target_input
        if model.training and self.settings.scheduled_sampling:
            target_input = mix_in_guesses(model, batch, self._sampled_share(context.step))
        if model.training and self.settings.r_drop:
            return self._r_drop(model, batch, target_input)
        real = batch.target_positions >= 0
        states, added = with_penalty(
            model, batch.source, batch.source_positions, target_input, batch.target_positions
        )
        hidden = states[real]
        loss, nll = self._cross_entropy(model, hidden, batch.target_output[real])
        tokens = int(hidden.shape[0])
        return LossSum(loss + tokens * added, tokens, {"nll": nll})

    def _sampled_share(self, step: int) -> float:
        grown = min(1.0, step / self.settings.scheduled_sampling_steps)
        return self.settings.scheduled_sampling * grown

    def _r_drop(self, model: Translator, batch: PairBatch, target_input: Tensor) -> LossSum:
        """Half of the paper's loss, so that without the divergence it is the plain loss."""
        double = twice(batch)
        real = double.target_positions >= 0
        states, added = with_penalty(
            model,
            double.source,
            double.source_positions,
            torch.cat([target_input, target_input]),
            double.target_positions,
        )
        hidden = states[real]
        tokens = int(hidden.shape[0]) // 2
        found = consistent_cross_entropy(
            hidden.view(2, tokens, -1),
            model.output_weight,
            batch.target_output[batch.target_positions >= 0],
            self.settings.label_smoothing,
            self.settings.r_drop / 2,
            bias=model.output_bias,
        )
        extras = {"nll": found.nll / 2, "divergence": found.divergence}
        return LossSum(found.loss / 2 + tokens * added, tokens, extras)

    def _cross_entropy(
        self, model: Translator, hidden: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        return smoothed_cross_entropy(
            hidden,
            model.output_weight,
            targets,
            self.settings.label_smoothing if model.training else 0.0,
            bias=model.output_bias,
        )


def with_penalty(model: nn.Module, *inputs: Tensor | None) -> tuple[Tensor, Tensor | float]:
    """A model's states, and what its layers add to the mean loss of a token in training.

    Args:
        model: any whose `forward` takes a `capture`.
        *inputs: of the pass.
    """
    # Without a capture blocks leave out padding, and nothing is asked for at every address.
    capture = Capture([PENALTIES]) if model.training and adds_penalties(model) else None
    states: Tensor = model(*inputs, capture=capture)
    return states, 0.0 if capture is None else penalty(capture)
