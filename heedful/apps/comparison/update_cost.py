"""Operations of one update of a run, by the cost model, averaged over batches of its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heedful.apps.planning.model_costs import forward_work
from heedful.models.cost import BACKWARD_PER_FORWARD, numel, training_cost

if TYPE_CHECKING:
    from heedful.train.batch_source import Source

_BATCHES = 64
"""Number of batches, spread evenly over the first epoch, whose operations are averaged."""


def flops_per_update(model: Any, source: Source, accumulate: int) -> float:
    """Return the operations of an update: forward and backward pass, padding included.

    Args:
        model: model to train.
        source: source of its batches.
        accumulate: number of batches of an update.
    """
    works = [batch_flops(model, batch) for batch in source.sample(_BATCHES)]
    return accumulate * sum(works) / len(works)


def batch_flops(model: Any, batch: Any) -> int:
    """Return the operations of the forward and backward pass of one batch.

    Args:
        model: model to train.
        batch: batch of the model's task.
    """
    spec: Any = model.spec
    rows = len(batch.indices)
    if spec.reads == "pairs":
        pair = training_cost(spec, batch.source.shape[1], batch.target_input.shape[1])
        return rows * pair.total.total
    length = 0 if spec.reads == "images" else batch.ids.shape[1]
    forward = rows * forward_work(spec, length).total
    if spec.kind == "encoder" and spec.predicts == "masked_token":
        # Only masked tokens have logits, and the batch knows their number.
        forward += 2 * batch.target_tokens * numel(model.embedding)
    return forward * (1 + BACKWARD_PER_FORWARD)
