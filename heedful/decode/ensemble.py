"""Several models as one: the mean of their probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from heedful.decode.candidates import log_probabilities
from heedful.decode.protocol import AttentiveModel, JoinableModel, StepModel
from heedful.errors import ModelError


class Ensemble:
    """A `StepModel` whose next-token probabilities are the mean of its members'.

    Args:
        members: at least one model; all read and write the same vocabularies.
    """

    def __init__(self, members: Sequence[StepModel[Any]]) -> None:
        assert members
        self.members = tuple(members)

    def start(self, source: Tensor, source_positions: Tensor) -> tuple[Any, ...]:
        """See `StepModel`."""
        return tuple(member.start(source, source_positions) for member in self.members)

    def step(self, state: tuple[Any, ...], tokens: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """See `StepModel`; the logits are log-probabilities.

        Raises:
            ModelError: when members have target vocabularies of different sizes.
        """
        results = [m.step(s, tokens) for m, s in zip(self.members, state, strict=True)]
        sizes = {logits.shape[-1] for logits, _ in results}
        if len(sizes) > 1:
            raise ModelError(
                f"Models with target vocabularies of {sorted(sizes)} tokens cannot be averaged",
                remedy="Give models trained with the same tokenizer",
            )
        scores = torch.stack([log_probabilities(logits) for logits, _ in results])
        mean = scores.logsumexp(0) - math.log(len(results))
        return mean, tuple(state for _, state in results)

    def reorder(self, state: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
        """See `StepModel`."""
        return tuple(m.reorder(s, rows) for m, s in zip(self.members, state, strict=True))

    def join(self, state: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """See `JoinableModel`, which every member is then."""
        members = cast("tuple[JoinableModel[Any], ...]", self.members)
        return tuple(m.join(*pair) for m, *pair in zip(members, state, other, strict=True))

    def cross_attention(
        self, source: Tensor, source_positions: Tensor, target: Tensor, target_positions: Tensor
    ) -> Tensor:
        """Attention [M, B, 1, T, S] of the M members, the mean over each one's layers and heads."""
        means = []
        for member in self.members:
            assert isinstance(member, AttentiveModel)
            weights = member.cross_attention(source, source_positions, target, target_positions)
            means.append(weights.mean((0, 2))[None, :, None])
        return torch.cat(means)
