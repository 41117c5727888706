"""Operations of one update of a run, by the cost model, averaged over batches of its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heedful.models.cost import (
    BACKWARD_PER_FORWARD,
    encoding_work,
    image_work,
    numel,
    segment_work,
    text_work,
    training_cost,
)

if TYPE_CHECKING:
    from heedful.train.batch_source import Source

_BATCHES = 64
"""Batches of the first epoch that are looked at, spread evenly."""


def flops_per_update(model: Any, source: Source, accumulate: int) -> float:
    """Return the operations of an update: forward and backward, padding counted.

    Args:
        model: that is trained.
        source: its batches.
        accumulate: batches of an update.
    """
    works = [batch_flops(model, batch) for batch in source.sample(_BATCHES)]
    return accumulate * sum(works) / len(works)


def batch_flops(model: Any, batch: Any) -> int:
    """Return the operations to learn from one batch.

    Args:
        model: that is trained.
        batch: of its task.
    """
    spec: Any = model.spec
    rows = len(batch.indices)
    if spec.reads == "pairs":
        pair = training_cost(spec, batch.source.shape[1], batch.target_input.shape[1])
        return rows * pair.total.total
    if spec.reads == "images":
        forward = rows * image_work(spec).total
    elif spec.generates and spec.memory is not None:
        forward = rows * segment_work(spec, batch.ids.shape[1]).total
    elif spec.generates:
        forward = rows * text_work(spec, batch.ids.shape[1]).total
    else:
        forward = rows * encoding_work(spec, batch.ids.shape[1]).total
        if spec.predicts == "masked_token":  # scores of the hidden tokens alone
            forward += 2 * batch.target_tokens * numel(model.embedding)
    return forward * (1 + BACKWARD_PER_FORWARD)
