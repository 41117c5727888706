"""Scheduled sampling for Transformers (Mihaylova & Martins 2019): two passes.

The first pass predicts every target token from the gold ones; some of the second pass's inputs are
then replaced by what the first predicted, so that the model learns to go on after its own mistakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from heedful.data.batches import PairBatch
    from heedful.models.translator import Translator


def mix_in_guesses(model: Translator, batch: PairBatch, share: float) -> Tensor:
    """Target inputs of which a random share is replaced by the model's own best guesses.

    Args:
        model: the translator, in training mode; no gradient flows through its guesses.
        batch: a batch on the model's device.
        share: probability that an input is replaced, in [0, 1]; the first one never is.

    Returns:
        [B, T] int64.
    """
    real = batch.target_positions >= 0
    chosen = real & (torch.rand(real.shape, device=real.device) < share)
    chosen &= batch.target_positions > 0
    if not bool(chosen.any()):
        return batch.target_input
    # the input at position t is the output at t − 1, wherever padding put them
    before = torch.zeros_like(chosen)
    before[:, :-1] = chosen[:, 1:]
    with torch.no_grad():
        hidden = model(
            batch.source, batch.source_positions, batch.target_input, batch.target_positions
        )
        guesses = model.logits(hidden[before]).argmax(-1)
    mixed = batch.target_input.clone()
    mixed[chosen] = guesses
    return mixed
