"""Losses of tasks, which are the trainer's only interface to a model.

The trainer gives an `Objective` a model and a batch and gets a sum of losses back. Only the
objective knows the types of model and batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.data.batches import (
    NO_TARGET,
    PairBatch,
    RowBatch,
    SegmentBatch,
    WindowBatch,
    tensors_of,
)
from heedful.data.images.captioned_images import CaptionBatch
from heedful.engines.training.chunked_loss import ChunkedLosses
from heedful.models.segment_memory import SegmentMemory
from heedful.models.translator import Translator
from heedful.nn.capture import Capture
from heedful.nn.losses import contrastive_loss
from heedful.nn.moe import PENALTIES, penalty
from heedful.train.objective_settings import ObjectiveSettings
from heedful.train.static_shapes import OutputProjection, real_places

CarriedState = Mapping[str, Tensor]
"""State carried from a batch to the next: tensors by name, with examples along the first axis."""


@dataclass(frozen=True)
class LossContext:
    """The circumstances under which a loss is computed.

    Args:
        step: number of the update, from 1.
        carried_state: carried state of the previous batch.
        losses: implementation of the cross-entropies.
    """

    step: int
    carried_state: CarriedState = field(default_factory=dict)
    losses: ChunkedLosses = field(default_factory=ChunkedLosses)


@dataclass(frozen=True)
class LossSum:
    """A loss summed over real target tokens.

    Args:
        loss_sum: [] sum to differentiate, in nats.
        tokens: number of target tokens in the sum.
        extras: other sums over the same tokens, for reporting; `nll` is the plain
            negative log-likelihood.
        carried_state: state for the next batch, without gradient.
    """

    loss_sum: Tensor
    tokens: int
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    carried_state: CarriedState = field(default_factory=dict)


class Objective(Protocol):
    """The interface of a task's loss."""

    def loss(self, model: Any, batch: Any, context: LossContext) -> LossSum:
        """Return the summed loss of a batch; the model's mode decides whether it is training."""


@dataclass(frozen=True)
class TranslationObjective:
    """Label-smoothed cross-entropy of an encoder-decoder, with its regularisers.

    Args:
        settings: label smoothing, scheduled sampling, R-Drop.
    """

    settings: ObjectiveSettings

    @property
    def can_be_static(self) -> bool:
        """True if shapes alone decide what is computed; see `static_shapes`."""
        return not (self.settings.scheduled_sampling or self.settings.r_drop)

    def loss(self, model: Translator, batch: PairBatch, context: LossContext) -> LossSum:
        """Return the summed loss over the batch's real target positions.

        Args:
            model: model whose `forward` has the signature of `Translator.forward`.
            batch: a `PairBatch` on the model's device.
            context: circumstances; the step sets the share of scheduled sampling.
        """
        target_input = batch.target_input
        if model.training and self.settings.scheduled_sampling:
            # A linear schedule, as in Bengio 2015, section 2.4.
            grown = min(1.0, context.step / self.settings.scheduled_sampling_steps)
            share = self.settings.scheduled_sampling * grown
            target_input = mix_in_guesses(model, batch, share)
        if model.training and self.settings.r_drop:
            return self._r_drop(model, batch, target_input, context)
        capture = penalties_of(model)
        states = model(
            batch.source,
            batch.source_positions,
            target_input,
            batch.target_positions,
            capture=capture,
            **segments_of(batch),
        )
        # Padding becomes NO_TARGET, so losses that take padding count real targets only.
        targets = batch.target_output.where(batch.target_positions >= 0, NO_TARGET)
        smoothing, count = self.settings.label_smoothing, batch.target_tokens
        return _token_loss(model, states, targets, count, smoothing, capture, context)

    def _r_drop(
        self, model: Translator, batch: PairBatch, target_input: Tensor, context: LossContext
    ) -> LossSum:
        """Return half of the R-Drop loss (Liang 2021): without divergence it is the plain loss."""
        # Two dropout masks in one pass: one pass of 2B rows costs less than two of B.
        double = twice(batch)
        real = double.target_positions >= 0
        capture = penalties_of(model)
        states = model(
            double.source,
            double.source_positions,
            torch.cat([target_input, target_input]),
            double.target_positions,
            capture=capture,
            **segments_of(double),
        )
        # [2N, D]: the first half is the first copy of the batch, in the same order as the second.
        hidden = _select(states, real, double.target_tokens)
        tokens = int(hidden.shape[0]) // 2
        once = batch.target_positions >= 0
        result = context.losses.consistent_cross_entropy(
            hidden.view(2, tokens, -1),
            model.output_weight,
            _select(batch.target_output, once, batch.target_tokens),
            self.settings.label_smoothing,
            # The paper's divergence is the mean of both directions; this argument weighs their sum.
            self.settings.r_drop / 2,
            bias=model.output_bias,
            softcap=model.spec.logits_softcap,
        )
        extras = {"nll": result.nll / 2, "divergence": result.divergence}
        return LossSum(result.loss / 2 + tokens * penalty_of(capture), tokens, extras)


@dataclass(frozen=True)
class CausalLMObjective:
    """Cross-entropy of the next token.

    Args:
        label_smoothing: share of smoothing in training; evaluation uses none.
    """

    label_smoothing: float

    can_be_static = True

    def loss(self, model: Any, batch: WindowBatch, context: LossContext) -> LossSum:
        # Windows in which no text ends need no segments, and those that count from 0 no positions:
        # fewer inputs let a plain causal kernel serve.
        segments = batch.segments if batch.packed else None
        positions = None if batch.counted else batch.positions
        capture = penalties_of(model)
        states = model(batch.ids, positions, segments, capture=capture)
        smoothing, count = self.label_smoothing, batch.target_tokens
        return _token_loss(model, states, batch.targets, count, smoothing, capture, context)


@dataclass(frozen=True)
class SegmentObjective:
    """Cross-entropy of the next token in streams of segments, with a memory (Dai 2019).

    A row finds its memory by the index of its first token in the corpus. Its memory is empty where
    a stream begins, and where the previous batch was skipped.

    Args:
        label_smoothing: share of smoothing in training; evaluation uses none.
    """

    label_smoothing: float

    def loss(self, model: Any, batch: SegmentBatch, context: LossContext) -> LossSum:
        memory = model.empty_memory(len(batch.ids))
        if not batch.begins and context.carried_state:
            memory = _remembered(context.carried_state, batch.indices, memory)
        capture = penalties_of(model)
        states, memory = model.read_segment(
            batch.ids, batch.positions, batch.segments, memory, capture=capture
        )
        smoothing, count = self.label_smoothing, batch.target_tokens
        result = _token_loss(model, states, batch.targets, count, smoothing, capture, context)
        layers = {f"layer.{number}": inputs for number, inputs in enumerate(memory.inputs)}
        # The first token of the next segment of each row [B]: the key under which its memory is
        # found.
        following = batch.indices + batch.ids.shape[1]
        carried = {"following": following, "segments": memory.segments, **layers}
        return dataclasses.replace(result, carried_state=carried)


def _remembered(carried: CarriedState, firsts: Tensor, empty: SegmentMemory) -> SegmentMemory:
    """Return the memory of each row, found by the index of its first token [B]; else empty."""
    # [B, B'] of rows now and rows then: with other numbers of processes, rows change places.
    matches = carried["following"].cpu()[None, :] == firsts[:, None]
    segments = empty.segments
    device = segments.device
    known = matches.any(1).to(device, non_blocking=True)
    # Rows without a match take row 0's tensors, but its segments are masked out below.
    row = matches.int().argmax(1).to(device, non_blocking=True)
    kept = carried["segments"].to(device)[row].where(known[:, None], segments)
    layers = range(len(empty.inputs))
    inputs = tuple(carried[f"layer.{number}"].to(device)[row] for number in layers)
    return dataclasses.replace(empty, inputs=inputs, segments=kept)


@dataclass(frozen=True)
class MaskedObjective:
    """Cross-entropy of the masked tokens of a masked language model.

    Args:
        label_smoothing: share of smoothing in training; evaluation uses none.
    """

    label_smoothing: float

    def loss(self, model: Any, batch: RowBatch, context: LossContext) -> LossSum:
        capture = penalties_of(model)
        states = model(batch.ids, batch.positions, None, capture=capture)
        head = model.heads["masked_lm"]
        # Only masked tokens go through the head, usually 15 % of all.
        real, count = batch.targets != NO_TARGET, batch.target_tokens
        features = head.features(_select(states, real, count))
        targets = _select(batch.targets, real, count)
        output = OutputProjection(head.projection.weight, head.bias)
        smoothing = self.label_smoothing
        return _token_loss(model, features, targets, count, smoothing, capture, context, output)


@dataclass(frozen=True)
class CTCObjective:
    """Negative log-likelihood of labels, summed over their alignments to frames (Graves 2006).

    An alignment gives each frame a label or the blank; a label may last for several frames.
    """

    def loss(self, model: Any, batch: PairBatch, context: LossContext) -> LossSum:
        """Return the summed loss; `tokens` counts the labels, an end among them.

        Args:
            model: encoder with a CTC head.
            batch: tokens that the encoder reads, and the labels of each row.
            context: circumstances, of which none matters.
        """
        capture = penalties_of(model)
        states = model(batch.source, batch.source_positions, None, capture=capture)
        scores, frames = model.ctc_scores(states, batch.source_positions)
        real = batch.targets != NO_TARGET
        loss = F.ctc_loss(
            scores.transpose(0, 1),
            batch.targets[real],
            frames,
            real.sum(1),
            reduction="sum",
        )
        count = batch.target_tokens
        return LossSum(loss + count * penalty_of(capture), count, {"nll": loss.detach()})


PenaltyCapture = Capture | None
"""Capture of the layers' penalties in a pass; see `penalties_of`."""

Scorer = Callable[[Any, Any, PenaltyCapture], Tensor]
"""Function from model, batch and capture of the pass to scores [B, labels]."""


@dataclass(frozen=True)
class LabelObjective:
    """Cross-entropy of labels, summed over examples.

    Args:
        scorer: function that runs the model.
        label_smoothing: share of smoothing in training; evaluation uses none.
    """

    scorer: Scorer
    label_smoothing: float

    def loss(self, model: Any, batch: Any, context: LossContext) -> LossSum:
        """Return the summed loss over the batch's examples; `tokens` counts these."""
        capture = penalties_of(model)
        scores = self.scorer(model, batch, capture)
        # Under autocast scores are bfloat16, whose 8 bits of mantissa are too few for a logsumexp.
        logits = scores.float()
        smoothing = self.label_smoothing if model.training else 0.0
        loss = F.cross_entropy(logits, batch.targets, reduction="sum", label_smoothing=smoothing)
        nll = F.cross_entropy(logits.detach(), batch.targets, reduction="sum")
        count = batch.target_tokens
        return LossSum(loss + count * penalty_of(capture), count, {"nll": nll})


@dataclass(frozen=True)
class ContrastObjective:
    """Contrastive loss of the pairs of a batch, each of which is compared with all others.

    Args:
        label_smoothing: share of smoothing in training; evaluation uses none.
    """

    label_smoothing: float

    def loss(self, model: Any, batch: CaptionBatch, context: LossContext) -> LossSum:
        """Return the loss summed over the batch's pairs."""
        captures = penalties_of(model), penalties_of(model)
        scores = model(batch.images, batch.ids, batch.positions, *captures)
        smoothing = self.label_smoothing if model.training else 0.0
        sums = contrastive_loss(scores, batch.targets, smoothing)
        count = batch.target_tokens
        loss = sums.loss + count * (penalty_of(captures[0]) + penalty_of(captures[1]))
        return LossSum(loss, count, {"nll": sums.nll})


def segments_of(batch: PairBatch) -> dict[str, Tensor]:
    """Return the segments of packed pairs as keyword arguments of a translator's `forward`."""
    source, target = batch.source_segments, batch.target_segments
    if source is None or target is None:
        return {}
    return {"source_segments": source, "target_segments": target}


def adds_penalties(model: nn.Module) -> bool:
    """Return True if a model's layers add a penalty to the loss, as mixtures of experts do."""
    # Cached: this is called in every pass, and walking the modules takes half a millisecond.
    if model not in _adding:
        result = any(getattr(each, "adds_penalty", False) for each in model.modules())
        _adding[model] = result
    return _adding[model]


_adding: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def penalties_of(model: nn.Module) -> PenaltyCapture:
    """Return a capture of the layers' penalties for a pass; None for models without penalties.

    Blocks can leave out padding only without a capture, so no unneeded capture is made.
    """
    return Capture([PENALTIES]) if model.training and adds_penalties(model) else None


def penalty_of(capture: PenaltyCapture) -> Tensor | float:
    """Return the layers' penalty of the mean loss from the capture of a pass; 0 without one."""
    return 0.0 if capture is None else penalty(capture)


def _select(table: Tensor, real: Tensor, count: int) -> Tensor:
    """Select the `count` rows [count, …] of a table [B, L, …] at which `real` [B, L] is true."""
    if real.device.type == "cpu":
        return table[real]
    # Boolean indexing counts on the device and waits for the count; here it is known already.
    return table.flatten(0, 1).index_select(0, real_places(real, count))


def _token_loss(
    model: Any,
    states: Tensor,
    targets: Tensor,
    tokens: int,
    smoothing: float,
    capture: PenaltyCapture,
    context: LossContext,
    output: OutputProjection | None = None,
) -> LossSum:
    """Return the summed cross-entropy of states [..., D] with the layers' penalty.

    Args:
        model: model of the states; its mode decides whether labels are smoothed.
        states: hidden states of all positions, or of the predicting ones only.
        targets: [...] int64; −1 at positions without a prediction.
        tokens: number of targets.
        smoothing: label smoothing in training.
        capture: capture of the pass.
        context: circumstances, with the implementation of the loss.
        output: output projection; the model's own if None.
    """
    weight, bias, softcap = output or OutputProjection(
        model.output_weight, model.output_bias, model.spec.logits_softcap
    )
    # The matmul with [D, V] is the largest of a small model, so padding is removed before it.
    if tokens < targets.numel() and not context.losses.takes_padding:
        real = targets != NO_TARGET
        states, targets = _select(states, real, tokens), _select(targets, real, tokens)
    states, targets = states.flatten(end_dim=-2), targets.flatten()
    smoothing = smoothing if model.training else 0.0
    sums = context.losses.smoothed_cross_entropy(states, weight, targets, smoothing, bias, softcap)
    return LossSum(sums.loss + tokens * penalty_of(capture), tokens, {"nll": sums.nll})


def twice(batch: PairBatch) -> PairBatch:
    """Return the batch followed by itself, so that one pass draws two sets of dropout masks."""
    doubled: dict[str, Any] = {n: torch.cat([each, each]) for n, each in tensors_of(batch)}
    return dataclasses.replace(batch, target_tokens=2 * batch.target_tokens, **doubled)


def mix_in_guesses(model: Translator, batch: PairBatch, share: float) -> Tensor:
    """Replace a random share of the target inputs by the model's own predictions.

    Args:
        model: translator in training mode; no gradient flows through its predictions.
        batch: batch on the model's device.
        share: probability of replacing an input, in [0, 1]; the first input is always kept.

    Returns:
        [B, T] int64.
    """
    real = batch.target_positions >= 0
    chosen = real & (torch.rand(real.shape, device=real.device) < share)
    # Position 0 holds the begin token, which no prediction precedes.
    chosen &= batch.target_positions > 0
    if not bool(chosen.any()):
        return batch.target_input
    # The input at index t is the prediction at index t − 1, with padding on either side.
    before = torch.zeros_like(chosen)
    before[:, :-1] = chosen[:, 1:]
    with torch.no_grad():
        hidden = model(
            batch.source,
            batch.source_positions,
            batch.target_input,
            batch.target_positions,
            **segments_of(batch),
        )
        # Only the chosen positions go through the output projection.
        guesses = model.logits(hidden[before]).argmax(-1)
    mixed = batch.target_input.clone()
    mixed[chosen] = guesses
    return mixed


class HandOver:
    """Passes carried state from batch to batch of an update, assembled from the batches' parts.

    Args:
        first: carried state of the last batch before the update.
    """

    def __init__(self, first: CarriedState) -> None:
        self.first = first
        self.restart()

    def restart(self) -> None:
        """Forget all batches of the update, which is about to be repeated."""
        self._number, self._before = 0, self.first
        self._parts: list[CarriedState] = []

    def before(self, number: int) -> CarriedState:
        """Return the carried state of the batch before a given one.

        Args:
            number: index of the given batch in the update; parts of batches come in order.
        """
        if number != self._number:
            self._number, self._before, self._parts = number, self.last(), []
        return self._before

    def add(self, part: CarriedState) -> None:
        """Add the carried state of some of the batch's examples."""
        self._parts.append(part)

    def last(self) -> CarriedState:
        """Return the carried state of the latest batch, its parts concatenated."""
        names = self._parts[0] if self._parts else {}
        return {name: torch.cat([part[name] for part in self._parts]) for name in names}
