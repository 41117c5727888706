"""The losses of tasks: the one thing the trainer knows of a model.

The trainer hands an `Objective` a model and a batch and gets a sum of losses back; what a batch or
a model looks like is the objective's own business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.data.batches import NO_TARGET
from heedful.engines.training.chunked_loss import ChunkedLosses
from heedful.nn.capture import Capture
from heedful.nn.moe import PENALTIES, penalty
from heedful.train.static_shapes import OutputProjection, real_places

if TYPE_CHECKING:
    from heedful.data.batches import PairBatch, RowBatch, SegmentBatch, WindowBatch
    from heedful.models.segment_memory import SegmentMemory
    from heedful.models.translator import Translator
    from heedful.train.run_settings import ObjectiveSettings


CarriedState = Mapping[str, Tensor]
"""State that a batch hands to the next, by name: tensors with its examples along the first axis."""


@dataclass(frozen=True)
class LossContext:
    """The place in the run at which a loss is computed.

    Args:
        step: number of the update, from 1.
        carried_state: what the batch before handed on.
        losses: how cross-entropies are computed.
    """

    step: int
    carried_state: CarriedState = field(default_factory=dict)
    losses: ChunkedLosses = field(default_factory=ChunkedLosses)


@dataclass(frozen=True)
class LossSum:
    """A loss summed over real target tokens.

    Args:
        loss_sum: 0-dim tensor to differentiate, in nats.
        tokens: how many tokens it is the sum over.
        extras: other sums over the same tokens, for reporting; `nll` is the plain
            negative log-likelihood.
        carried_state: what the batch hands to the next one, without gradient.
    """

    loss_sum: Tensor
    tokens: int
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    carried_state: CarriedState = field(default_factory=dict)


class Objective(Protocol):
    """A task's loss."""

    def loss(self, model: Any, batch: Any, context: LossContext) -> LossSum:
        """The summed loss of a batch; the model's mode says whether this is training."""
        ...


@dataclass(frozen=True)
class TranslationObjective:
    """Label-smoothed cross-entropy of an encoder-decoder, with its regularisers.

    Args:
        settings: label smoothing, scheduled sampling, R-Drop.
    """

    settings: ObjectiveSettings

    @property
    def can_be_static(self) -> bool:
        """True if nothing but shapes decides what is computed; see `static_shapes`."""
        return not (self.settings.scheduled_sampling or self.settings.r_drop)

    def loss(self, model: Translator, batch: PairBatch, context: LossContext) -> LossSum:
        """The summed loss over the batch's real target positions.

        Args:
            model: anything that forwards like `Translator`.
            batch: a `PairBatch` on the model's device.
            context: the step, which sets the share of scheduled sampling.
        """
        target_input = batch.target_input
        if model.training and self.settings.scheduled_sampling:
            grown = min(1.0, context.step / self.settings.scheduled_sampling_steps)
            share = self.settings.scheduled_sampling * grown
            target_input = mix_in_guesses(model, batch, share)
        if model.training and self.settings.r_drop:
            return self._r_drop(model, batch, target_input, context)
        states, added = with_penalty(
            model,
            batch.source,
            batch.source_positions,
            target_input,
            batch.target_positions,
            **segments_of(batch),
        )
        smoothing = self.settings.label_smoothing if model.training else 0.0
        output, count = output_of(model), batch.target_tokens
        targets = batch.target_output.where(batch.target_positions >= 0, NO_TARGET)
        return _token_loss(states, output, targets, count, smoothing, added, context)

    def _r_drop(
        self, model: Translator, batch: PairBatch, target_input: Tensor, context: LossContext
    ) -> LossSum:
        """Half of the paper's loss, so that without the divergence it is the plain loss."""
        double = twice(batch)
        real = double.target_positions >= 0
        states, added = with_penalty(
            model,
            double.source,
            double.source_positions,
            torch.cat([target_input, target_input]),
            double.target_positions,
            **segments_of(double),
        )
        hidden = _chosen(states, real, double.target_tokens)
        tokens = int(hidden.shape[0]) // 2
        once = batch.target_positions >= 0
        result = context.losses.consistent_cross_entropy(
            hidden.view(2, tokens, -1),
            model.output_weight,
            _chosen(batch.target_output, once, batch.target_tokens),
            self.settings.label_smoothing,
            self.settings.r_drop / 2,
            bias=model.output_bias,
            softcap=model.spec.logits_softcap,
        )
        extras = {"nll": result.nll / 2, "divergence": result.divergence}
        return LossSum(result.loss / 2 + tokens * added, tokens, extras)


@dataclass(frozen=True)
class CausalLMObjective:
    """Cross-entropy of the next token.

    Args:
        label_smoothing: in training.
    """

    label_smoothing: float

    can_be_static = True

    def loss(self, model: Any, batch: WindowBatch, context: LossContext) -> LossSum:
        # Windows in which no text ends need no segments to tell texts apart.
        segments = batch.segments if batch.packed else None
        positions = None if batch.counted else batch.positions
        states, added = with_penalty(model, batch.ids, positions, segments)
        return _next_token_loss(model, states, batch, self.label_smoothing, added, context)


@dataclass(frozen=True)
class SegmentObjective:
    """Cross-entropy of the next token in texts read as streams, with a memory of what came before.

    A row finds its memory by the number of its first token. It begins without one where a stream
    begins, and where the batch before it was not learned from.

    Args:
        label_smoothing: in training.
    """

    label_smoothing: float

    def loss(self, model: Any, batch: SegmentBatch, context: LossContext) -> LossSum:
        memory = model.empty_memory(len(batch.ids))
        if not batch.begins and context.carried_state:
            memory = _remembered(context.carried_state, batch.indices, memory)
        capture = _penalties_of(model)
        states, memory = model.read_segment(
            batch.ids, batch.positions, batch.segments, memory, capture=capture
        )
        added = 0.0 if capture is None else penalty(capture)
        result = _next_token_loss(model, states, batch, self.label_smoothing, added, context)
        layers = {f"layer.{number}": inputs for number, inputs in enumerate(memory.inputs)}
        following = batch.indices + batch.ids.shape[1]
        carried = {"following": following, "segments": memory.segments, **layers}
        return dataclasses.replace(result, carried_state=carried)


def _remembered(carried: CarriedState, firsts: Tensor, empty: SegmentMemory) -> SegmentMemory:
    """Return the memory of each row, by the number of its first token [B]; empty where unknown."""
    matches = carried["following"].cpu()[None, :] == firsts[:, None]
    segments = empty.segments
    device = segments.device
    known = matches.any(1).to(device, non_blocking=True)
    row = matches.int().argmax(1).to(device, non_blocking=True)
    kept = carried["segments"].to(device)[row].where(known[:, None], segments)
    layers = range(len(empty.inputs))
    inputs = tuple(carried[f"layer.{number}"].to(device)[row] for number in layers)
    return dataclasses.replace(empty, inputs=inputs, segments=kept)


def _next_token_loss(
    model: Any,
    states: Tensor,
    batch: WindowBatch,
    smoothing: float,
    added: Tensor | float,
    context: LossContext,
) -> LossSum:
    """The summed cross-entropy of a batch's targets from states [B, L, D]."""
    smoothing = smoothing if model.training else 0.0
    output, tokens = output_of(model), batch.target_tokens
    return _token_loss(states, output, batch.targets, tokens, smoothing, added, context)


@dataclass(frozen=True)
class MaskedObjective:
    """Cross-entropy of the tokens that a masked language model has to guess.

    Args:
        label_smoothing: in training.
    """

    label_smoothing: float

    def loss(self, model: Any, batch: RowBatch, context: LossContext) -> LossSum:
        states, added = with_penalty(model, batch.ids, batch.positions, None)
        head = model.heads["masked_lm"]
        smoothing = self.label_smoothing if model.training else 0.0
        # One token in seven is guessed: only those go through the head.
        real, count = batch.targets != NO_TARGET, batch.target_tokens
        features = head.features(_chosen(states, real, count))
        targets = _chosen(batch.targets, real, count)
        output = OutputProjection(head.projection.weight, head.bias)
        return _token_loss(features, output, targets, count, smoothing, added, context)


Scorer = Callable[[Any, Any], tuple[Tensor, Tensor | float]]
"""A model and a batch to scores [B, labels], and what is added to the mean loss in training."""


@dataclass(frozen=True)
class LabelObjective:
    """Cross-entropy of labels, summed over examples.

    Args:
        scorer: runs the model.
        label_smoothing: in training.
    """

    scorer: Scorer
    label_smoothing: float

    def loss(self, model: Any, batch: Any, context: LossContext) -> LossSum:
        """The summed loss over the batch's examples; `tokens` counts these."""
        scores, added = self.scorer(model, batch)
        logits = scores.float()
        smoothing = self.label_smoothing if model.training else 0.0
        loss = F.cross_entropy(logits, batch.targets, reduction="sum", label_smoothing=smoothing)
        nll = F.cross_entropy(logits.detach(), batch.targets, reduction="sum")
        count = batch.target_tokens
        return LossSum(loss + count * added, count, {"nll": nll})


def segments_of(batch: PairBatch) -> dict[str, Tensor]:
    """The segments of a batch of packed pairs, as a translator's `forward` takes them."""
    source, target = batch.source_segments, batch.target_segments
    if source is None or target is None:
        return {}
    return {"source_segments": source, "target_segments": target}


def with_penalty(
    model: nn.Module, *inputs: Tensor | None, **more: Tensor
) -> tuple[Tensor, Tensor | float]:
    """A model's states, and what its layers add to the mean loss of a token in training.

    Args:
        model: any whose `forward` takes a `capture`.
        *inputs: of the pass.
        **more: inputs by name.
    """
    capture = _penalties_of(model)
    states: Tensor = model(*inputs, capture=capture, **more)
    return states, 0.0 if capture is None else penalty(capture)


def adds_penalties(model: nn.Module) -> bool:
    """Return whether a model's layers add something to the loss, as experts do."""
    if model not in _adding:  # every pass asks, and looking takes half a millisecond
        result = any(getattr(each, "adds_penalty", False) for each in model.modules())
        _adding[model] = result
    return _adding[model]


_adding: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _penalties_of(model: nn.Module) -> Capture | None:
    """A capture of what layers add to the loss; None where they add nothing.

    Without a capture blocks leave out padding, and nothing is asked for at every address.
    """
    return Capture([PENALTIES]) if model.training and adds_penalties(model) else None


def output_of(model: Any) -> OutputProjection:
    """A model's output projection."""
    return OutputProjection(model.output_weight, model.output_bias, model.spec.logits_softcap)


def _chosen(table: Tensor, real: Tensor, count: int) -> Tensor:
    """The rows [count, …] of a table [B, L, …] where something is real [B, L], so many times."""
    if real.device.type == "cpu":
        return table[real]
    return table.flatten(0, 1).index_select(0, real_places(real, count))


def _token_loss(
    states: Tensor,
    output: OutputProjection,
    targets: Tensor,
    tokens: int,
    smoothing: float,
    added: Tensor | float,
    context: LossContext,
) -> LossSum:
    """The summed cross-entropy of states [..., D], with what layers add to it.

    Args:
        states: of every place, or of those that count.
        output: the projection.
        targets: [...] int64; −1 where nothing is to be predicted.
        tokens: number of targets.
        smoothing: of labels.
        added: by layers, to the mean loss of a token.
        context: whose losses are used.
    """
    weight, bias, softcap = output
    if tokens < targets.numel() and not context.losses.takes_padding:
        real = targets != NO_TARGET
        states, targets = _chosen(states, real, tokens), _chosen(targets, real, tokens)
    states, targets = states.flatten(end_dim=-2), targets.flatten()
    sums = context.losses.smoothed_cross_entropy(states, weight, targets, smoothing, bias, softcap)
    return LossSum(sums.loss + tokens * added, tokens, {"nll": sums.nll})


def twice(batch: PairBatch) -> PairBatch:
    """The batch followed by itself, so that one pass draws two sets of dropout masks."""
    values = {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch)}
    doubled: dict[str, Any] = {
        name: torch.cat([value, value])
        for name, value in values.items()
        if isinstance(value, Tensor)
    }
    return dataclasses.replace(batch, target_tokens=2 * batch.target_tokens, **doubled)


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
            batch.source,
            batch.source_positions,
            batch.target_input,
            batch.target_positions,
            **segments_of(batch),
        )
        guesses = model.logits(hidden[before]).argmax(-1)
    mixed = batch.target_input.clone()
    mixed[chosen] = guesses
    return mixed


class HandOver:
    """The states that batches of an update hand on, each put together from those of its parts.

    Args:
        first: what the batch before the update handed on.
    """

    def __init__(self, first: CarriedState) -> None:
        self.first = first
        self.restart()

    def restart(self) -> None:
        """Forget all batches of the update."""
        self._number, self._before = 0, self.first
        self._parts: list[CarriedState] = []

    def before(self, number: int) -> CarriedState:
        """Return what the batch before one handed on.

        Args:
            number: of the batch in the update, counted from 0; parts of batches come in order.
        """
        if number != self._number:
            self._number, self._before, self._parts = number, self.last(), []
        return self._before

    def add(self, part: CarriedState) -> None:
        """Add what some of the batch's examples hand on."""
        self._parts.append(part)

    def last(self) -> CarriedState:
        """Return what the batch hands on whose parts were added last."""
        names = self._parts[0] if self._parts else {}
        return {name: torch.cat([part[name] for part in self._parts]) for name in names}
