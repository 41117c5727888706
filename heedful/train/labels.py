"""What tasks share that give each example one label: the loss and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from heedful.evaluate.classification import accuracy, macro_f1
from heedful.train.objective import Context, LossSum
from heedful.train.validation import Measured

if TYPE_CHECKING:
    from heedful.data.encoded import Indices
    from heedful.device import Precision
    from heedful.train.settings import ValidationSettings

_METRICS: Mapping[str, Callable[[Sequence[int], Sequence[int]], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
}

Scorer = Callable[[Any, Any], tuple[Tensor, Tensor | float]]
"""A model and a batch to scores [B, labels], and what is added to the mean loss in training."""


class LabelObjective:
    """Cross-entropy of the labels, summed over examples.

    Args:
        scorer: runs the model.
        label_smoothing: in training.
    """

    def __init__(self, scorer: Scorer, label_smoothing: float) -> None:
        self.scorer = scorer
        self.label_smoothing = label_smoothing

    def loss(self, model: Any, batch: Any, context: Context) -> LossSum:
        """The summed loss over the batch's examples; `tokens` counts these."""
        scores, added = self.scorer(model, batch)
        logits = scores.float()
        smoothing = self.label_smoothing if model.training else 0.0
        loss = F.cross_entropy(logits, batch.targets, reduction="sum", label_smoothing=smoothing)
        nll = F.cross_entropy(logits.detach(), batch.targets, reduction="sum")
        count = batch.target_tokens
        return LossSum(loss + count * added, count, {"nll": nll})


class LabelMeasure:
    """Labels validation examples and compares.

    Args:
        scorer: runs the model.
        batch: examples by their numbers as a batch.
        plan: the numbers below a count, in batches; what an example is labelled does not depend on
            its company.
        right: the label of each example [N] int64.
        settings: metrics and how many examples.
        precision: of the forward passes.
    """

    def __init__(
        self,
        scorer: Scorer,
        batch: Callable[[Indices], Any],
        plan: Callable[[int], Iterable[Indices]],
        right: Indices,
        settings: ValidationSettings,
        *,
        precision: Precision,
    ) -> None:
        self.scorer = scorer
        self.batch = batch
        self.plan = plan
        self.right = right
        self.settings = settings
        self.precision = precision

    def count(self, *, everything: bool) -> int:
        """How many examples are labelled."""
        if not self.settings.metrics:
            return 0
        limit, total = self.settings.max_sentences, len(self.right)
        return total if everything or limit is None else min(limit, total)

    def __call__(self, model: Any, count: int) -> Measured:
        """Score the labels of the first examples."""
        device = next(model.parameters()).device
        given = np.zeros(count, np.int64)
        for indices in self.plan(count):
            batch = self.batch(indices).to(device)
            with self.precision.autocast():
                scores, _ = self.scorer(model, batch)
            given[indices] = scores.argmax(-1).cpu().numpy()
        ours, right = given.tolist(), self.right[:count].tolist()
        return Measured({name: _METRICS[name](ours, right) for name in self.settings.metrics}, {})
