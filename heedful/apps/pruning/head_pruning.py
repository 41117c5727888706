"""Pruning of attention heads: the choice of heads, and a copy of the model without them.

Heads are pruned greedily (each step prunes the head whose removal raises the loss least) or by
importance (Michel 2019): the magnitude of the derivative of the loss with respect to a factor on
each head, from one pass over a corpus. Voita (2019) trains such factors instead, which is not
implemented here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from heedful.apps.pruning.ablation import ablated, all_parts, parts_matching, set_attributes
from heedful.apps.pruning.effects import Bleu, Progress
from heedful.apps.pruning.examples import AnsweredInput, answer, for_each_batch
from heedful.errors import ConfigError, ModelError
from heedful.inspect.subject import Result, Subject, heads_of
from heedful.models.build import build_around, canonical_weights
from heedful.models.stack_spec import StackSpec
from heedful.nn.attention.multi_head import KeptHeads

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.models.stack import Stack
    from heedful.nn.attention.multi_head import Attention

Method = Literal["greedy", "gradient"]


@dataclass(frozen=True)
class Point(Result):
    """Scores of a model without some of its heads on a corpus.

    Args:
        removed: address of the head that was pruned last; None for the whole model.
        heads_left: number of remaining heads.
        loss: loss per answer, in nats.
        accuracy: share of right answers.
        bleu: BLEU from 0 to 100; None if it was not computed.
    """

    removed: str | None
    heads_left: int
    loss: float
    accuracy: float
    bleu: float | None = None

    def within(self, bound: Bound, whole: Point) -> bool:
        """Return True if this point is within a bound of the whole model."""
        mine, theirs = getattr(self, bound.score), getattr(whole, bound.score)
        # Loss grows and BLEU falls when a model gets worse.
        worse = mine - theirs if bound.score == "loss" else theirs - mine
        return bool(worse <= bound.by)


@dataclass(frozen=True)
class Bound:
    """Largest acceptable decline in quality.

    Args:
        score: measure of quality.
        by: largest decline, in the unit of the measure.
    """

    score: Literal["loss", "bleu"]
    by: float


@dataclass(frozen=True)
class Pruning(Result):
    """Quality of a model as a function of its remaining heads.

    Args:
        method: method of choosing heads.
        points: scores of the whole model, then after each pruned head.
    """

    method: Method
    points: tuple[Point, ...]

    def removed(self, heads_left: int) -> tuple[str, ...]:
        """Return the addresses of the heads to prune so that `heads_left` remain."""
        points = [point for point in self.points[1:] if point.heads_left >= heads_left]
        return tuple(point.removed for point in points if point.removed is not None)

    def fewest(self, bound: Bound) -> Point:
        """Return the point with the fewest heads before the bound is first exceeded."""
        last = self.points[0]
        for point in self.points[1:]:
            # The first point beyond the bound is the end: a later point can be within the bound
            # again by chance.
            if not point.within(bound, self.points[0]):
                break
            last = point
        return last


def importance(subject: Subject, examples: Sequence[AnsweredInput]) -> dict[str, float]:
    """Compute the importance of each head: E |dL/dξ| for a factor ξ = 1 on its output.

    One forward and backward pass over the corpus (Michel 2019, section 4.1); the expectation is
    over examples, the loss is per answer.

    Args:
        subject: the model.
        examples: examples of the corpus.

    Returns:
        The importance of each head in nats, by address.

    Raises:
        ModelError: when the model has no heads.
        DataError: when the examples have no answers.
    """
    attentions: dict[str, Any] = {
        part.address.partition(".head.")[0]: part.owner
        for part in all_parts(subject.model)
        if part.kind == "head"
    }
    if not attentions:
        raise _without_heads()
    sums = {place: torch.zeros(len(heads_of(module))) for place, module in attentions.items()}
    gated = {place: _Gated(module) for place, module in attentions.items()}

    def prepare(size: int) -> None:
        for each in gated.values():
            each.reset(size)

    def add(numbers: Sequence[int], losses: Tensor, right: Tensor) -> None:
        # Gradients of the factors alone; those of the weights are neither needed nor kept.
        gates = [each.gates for each in gated.values()]
        for place, gradient in zip(gated, torch.autograd.grad(losses.sum(), gates), strict=True):
            # Magnitudes per example [B, 1, H, 1]: signs of single examples would cancel in a sum.
            sums[place] += gradient.abs().sum((0, 1, 3)).cpu()

    # Factors go before the output projection, which mixes the heads.
    changes = [(module, "output", gated[place]) for place, module in attentions.items()]
    with set_attributes(changes), torch.enable_grad():
        for_each_batch(subject, examples, add, before=prepare)
    count = sum(example.num_answers for example in examples)
    return {
        f"{place}.head.{head}": float(total[index]) / count
        for place, total in sums.items()
        for index, head in enumerate(heads_of(attentions[place]))
    }


def by_importance(values: Mapping[str, float]) -> list[str]:
    """Sort heads from the least to the most important, after normalisation per attention.

    The importances of an attention are divided by their Euclidean norm (Molchanov 2017; Michel
    2019).

    Args:
        values: importances from `importance`.
    """
    # Gradients differ in size from layer to layer; without normalisation whole layers
    # would go first.
    squares: dict[str, float] = {}
    for address, value in values.items():
        place = address.partition(".head.")[0]
        squares[place] = squares.get(place, 0.0) + value**2
    return sorted(
        values, key=lambda a: values[a] / (squares[a.partition(".head.")[0]] ** 0.5 or 1.0)
    )


def prune(
    subject: Subject,
    examples: Sequence[AnsweredInput],
    method: Method = "greedy",
    *,
    heads_left: int = 0,
    bound: Bound | None = None,
    bleu: Bleu | None = None,
    progress: Progress = lambda done, total: None,
) -> Pruning:
    """Choose heads to prune one after the other, and score the model at each step.

    The model itself is not changed; `pruned` makes the smaller copy.

    Args:
        subject: the model.
        examples: examples of the corpus that heads are chosen on.
        method: `greedy` for one pass over the corpus per remaining head and step; `gradient` for
            the order of `by_importance`.
        heads_left: number of heads to keep.
        bound: largest decline in quality, at which pruning stops; None for no bound.
        bleu: settings of the BLEU score at every point; None to compute no BLEU.
        progress: function called with the number of pruned heads and its maximum.

    Raises:
        ModelError: when no head of the model can be pruned.
        ConfigError: when there is no such method, the model has fewer heads, or a bound on BLEU is
            set without settings of BLEU.
        DataError: when the examples have no answers.
    """
    everything = _prunable(subject)
    if method not in ("greedy", "gradient"):
        raise ConfigError(f"There is no method {method!r}", remedy="Choose greedy or gradient")
    if not 0 <= heads_left <= len(everything):
        raise ConfigError(f"The model has {len(everything)} heads, {heads_left} cannot be left")
    if bound is not None and bound.score == "bleu" and bleu is None:
        raise ConfigError("BLEU is bounded but not measured", remedy="Say how to translate")
    points = [_point(subject, examples, (), bleu)]
    removed: list[str] = []
    most = len(everything) - heads_left
    # The generator reads `removed`, which grows below, so each greedy step knows the earlier ones.
    order = _order(subject, examples, method, removed)
    while len(removed) < most:
        progress(len(removed), most)
        removed.append(next(order))
        points.append(_point(subject, examples, removed, bleu))
        if bound is not None and not points[-1].within(bound, points[0]):
            break
    progress(most, most)
    return Pruning(method, tuple(points))


def pruned(subject: Subject, removed: Iterable[str]) -> Subject:
    """Make a smaller and faster copy of a model without some of its heads.

    Its outputs are those of the model with these heads `ablated`.

    Args:
        subject: the model.
        removed: addresses of heads, or patterns such as `decoder.3.cross.head.*`.

    Raises:
        ModelError: when the model has no such head (near addresses are named), or an address is
            that of another part.
    """
    heads: dict[tuple[str, int, str], list[int]] = {}
    for part in parts_matching(subject.model, removed):
        if part.head is None:
            raise ModelError(
                "Only heads can be cut out of a model",
                where=part.address,
                remedy=f"For all heads of an attention, give {part.address}.head.*",
            )
        if not part.can_be_cut:
            raise _cannot_be_cut()
        # `decoder.3.cross.head.2` -> stack, block, and the block's attribute `cross_attention`.
        stack, layer, sublayer = part.address.split(".")[:3]
        heads.setdefault((stack, int(layer), f"{sublayer}_attention"), []).append(part.head)
    return replace(subject, model=without_heads(subject.model, heads))


def _cannot_be_cut() -> ModelError:
    return ModelError(
        "Heads of linear attention cannot be cut out of a model",
        remedy="See their effect by `heedful ablate`",
    )


def _without_heads() -> ModelError:
    return ModelError(
        "This model has no attention heads",
        remedy="See the effect of its sub-layers by `heedful ablate`",
    )


def _prunable(subject: Subject) -> list[str]:
    """Return addresses of the heads that can be pruned."""
    heads = [part for part in all_parts(subject.model) if part.kind == "head"]
    prunable = [part.address for part in heads if part.can_be_cut]
    if not prunable:
        raise _cannot_be_cut() if heads else _without_heads()
    return prunable


def _order(
    subject: Subject, examples: Sequence[AnsweredInput], method: Method, removed: Sequence[str]
) -> Iterator[str]:
    everything = _prunable(subject)
    if method == "gradient":
        ranked = by_importance(importance(subject, examples))
        # Linear attention has importances too, but its heads cannot be pruned.
        yield from (head for head in ranked if head in everything)
        return
    # H (H + 1) / 2 passes over the corpus in total, which takes minutes for models of usual size.
    while left := [head for head in everything if head not in removed]:
        # Measured without the heads removed so far: of two heads that can replace each other, one
        # must stay.
        losses = {head: _point(subject, examples, [*removed, head], None).loss for head in left}
        yield min(left, key=losses.__getitem__)


def _point(
    subject: Subject, examples: Sequence[AnsweredInput], removed: Sequence[str], bleu: Bleu | None
) -> Point:
    count = len(_prunable(subject)) - len(removed)
    with ablated(subject.model, removed):
        answers = answer(subject, examples)
        score = None if bleu is None else bleu.score(subject, examples)
    last = removed[-1] if removed else None
    return Point(last, count, answers.loss, answers.accuracy, score)


class _Gated(nn.Module):
    """An output projection with a factor of 1 on each head of each example.

    Args:
        attention: attention that the projection belongs to.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.inner = attention.output
        self.heads = len(heads_of(attention))
        self.gates: Tensor

    def reset(self, size: int) -> None:
        """Make factors [B, 1, H, 1] for a batch of B examples."""
        like = self.inner.weight
        # Each example has factors of its own: gradients of shared factors would be sums over the
        # batch, in which signs cancel.
        shape = (size, 1, self.heads, 1)
        self.gates = torch.ones(shape, dtype=like.dtype, device=like.device, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        """Project concatenated heads [B, L, H·E] to [B, L, D]."""
        mixed = x.unflatten(-1, (self.heads, -1)) * self.gates
        projected: Tensor = self.inner(mixed.flatten(-2))
        return projected


Heads = Mapping[tuple[str, int, str], Collection[int]]
"""Indices of heads by stack (`encoder`, `decoder`), layer and attention (`self_attention`,
`cross_attention`), counted in the model before any pruning."""


def without_heads(model: AnyModel, removed: Heads) -> AnyModel:
    """Return a copy of a model whose projections lack the columns and rows of some heads.

    The copy computes what the model would if these heads gave zeros. A key/value head is removed
    with the last of its query heads; an attention without heads outputs its bias.

    Args:
        model: model of any class.
        removed: heads to leave out.

    Returns:
        A model of the same class, in evaluation mode.
    """
    # Entries are replaced in a copy of the dictionary, so the tensors of the model do not change.
    weights = dict(canonical_weights(model))
    stacks = {
        name: _prune_stack(stack, getattr(model, name), name, removed, weights)
        for name, stack in model.spec.stacks().items()
    }
    spec: Any = model.spec.with_stacks(stacks)
    # Data types stay: a pruned bfloat16 model is also bfloat16.
    return build_around(spec, weights, where="pruning", dtype=None).eval()


def _prune_stack(
    spec: StackSpec, stack: Stack, name: str, removed: Heads, weights: dict[str, Tensor]
) -> StackSpec:
    """Prune the weights of a stack in place and return its spec with the heads that are left."""
    layers = []
    # From `spec.blocks` instead of the pattern: layers that shared a block spec may now differ.
    for number, (block, layer) in enumerate(zip(stack.blocks, spec.blocks, strict=True)):
        for which, described in layer.attentions().items():
            attention: Attention = getattr(block, which)
            pruned = set(removed.get((name, number, which), ()))
            assert pruned <= set(attention.kept.heads), (name, number, which, pruned)
            left = tuple(head for head in attention.kept.heads if head not in pruned)
            # `num_heads` is the number of heads before any pruning, including earlier calls.
            if len(left) < attention.num_heads:
                layer = layer.replace(**{which: described.model_copy(update={"kept_heads": left})})
            _prune_attention(attention, left, f"{name}.blocks.{number}.{which}.", weights)
        layers.append(layer)
    # Without pruned heads, the short pattern of equal blocks is kept.
    pattern = tuple(layers)
    return spec if pattern == spec.blocks else spec.model_copy(update={"pattern": pattern})


def _prune_attention(
    attention: Attention, left: tuple[int, ...], prefix: str, weights: dict[str, Tensor]
) -> None:
    """Remove the rows and columns of heads from an attention's weights, in place."""
    before, width = attention.kept, attention.head_width
    after = KeptHeads(left, before.total, before.shared)
    queries = _channels([before.heads.index(head) for head in after.heads], width)
    keys = _channels([before.key_heads.index(head) for head in after.key_heads], width)
    # Query, key and value matrices are [heads · E, D]: a head is a range of rows.
    rows = {"query": queries, "key": keys, "value": keys}
    for name, channels in rows.items():
        for kind in ("weight", "bias"):
            full = f"{prefix}{name}.{kind}"
            if full in weights:
                weights[full] = weights[full][channels]
    output = f"{prefix}output.weight"
    # The output matrix is [D, heads · E], so a head is a range of columns; its bias stays.
    weights[output] = weights[output][:, queries]


def _channels(places: list[int], width: int) -> Tensor:
    """Return the channel indices of heads, `width` for each head; `places` are head indices."""
    ranges = [range(place * width, (place + 1) * width) for place in places]
    return torch.tensor([channel for each in ranges for channel in each], dtype=torch.int64)
