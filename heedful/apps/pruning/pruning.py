"""Effects of ablations with confidence intervals, and pruning of attention heads.

Effects are differences in loss, accuracy and BLEU. Heads are pruned greedily (each step prunes the
head whose removal raises the loss least) or by importance (Michel 2019): the magnitude of the
derivative of the loss with respect to a factor on each head, from one pass over a corpus. Voita
(2019) trains such factors instead, which is not implemented here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from heedful.apps.pruning.ablation import (
    AblationMode,
    ablated,
    all_parts,
    parts_matching,
    set_attributes,
)
from heedful.apps.pruning.examples import AnsweredInput, Answers, answer, for_each_batch
from heedful.apps.pruning.head_pruning import without_heads
from heedful.errors import ConfigError, ModelError
from heedful.evaluate.bootstrap import PairedScore, paired_bootstrap, paired_ratios
from heedful.evaluate.corpus_metrics import AUTO, corpus_scores
from heedful.inspect.readings import read_all
from heedful.inspect.subject import Result, Subject, heads_of
from heedful.search.search_settings import SearchSettings

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Bleu:
    """Settings of BLEU: the search for translations and the comparison with references.

    Args:
        search: settings of the search.
        sentences: number of examples to translate, from the first; all if None.
        tokenize: tokenizer of sacreBLEU.
        lowercase: comparison without regard to case.
    """

    search: SearchSettings = field(default_factory=SearchSettings)
    sentences: int | None = None
    tokenize: str = AUTO
    lowercase: bool = False

    def translate(self, subject: Subject, examples: Sequence[AnsweredInput]) -> list[str]:
        """Translate a corpus.

        Raises:
            ModelError: when the model is no translator.
        """
        if subject.model.spec.reads != "pairs":
            raise ModelError("Only translators have a BLEU", remedy="Look at loss and accuracy")
        texts = [example.reading.text for example in examples[: self.sentences]]
        return [reading.target or "" for reading in read_all(subject, texts, search=self.search)]

    def references(self, examples: Sequence[AnsweredInput]) -> list[str]:
        """Return the reference translations."""
        return [example.reading.target or "" for example in examples[: self.sentences]]

    def score(self, subject: Subject, examples: Sequence[AnsweredInput]) -> float:
        """Return the BLEU of a corpus, from 0 to 100."""
        scores = corpus_scores(
            self.translate(subject, examples),
            self.references(examples),
            ["bleu"],
            tokenize=self.tokenize,
            lowercase=self.lowercase,
        )
        return scores["bleu"].score


@dataclass(frozen=True)
class Effect(Result):
    """Effect of an ablation on the scores of a corpus.

    Args:
        what: addresses of the parts that were ablated together.
        how: mode of the ablation.
        scores: `loss`, `accuracy` and optionally `bleu`, each for the whole model (a), for the
            ablated model (b) and as their difference, with bootstrap intervals.
    """

    what: tuple[str, ...]
    how: AblationMode
    scores: Mapping[str, PairedScore]


def effects(
    subject: Subject,
    examples: Sequence[AnsweredInput],
    ablations: Sequence[str | Iterable[str]],
    how: AblationMode = "off",
    *,
    means: Mapping[str, Tensor] | None = None,
    bleu: Bleu | None = None,
    samples: int = 1000,
    progress: Progress = lambda done, total: None,
) -> list[Effect]:
    """Measure the effect of each of several ablations on a corpus.

    Args:
        subject: the model.
        examples: examples of the corpus, e.g. from `examples_of_text`.
        ablations: addresses or patterns as for `ablated`; the parts of one entry are ablated
            together.
        how: mode of the ablations.
        means: mean outputs from `mean_outputs`, for the mode `mean`.
        bleu: settings of BLEU, for a translator; None for no BLEU.
        samples: resamples of the paired bootstrap.
        progress: function called with the numbers of finished and of all ablations.

    Raises:
        ModelError: when the model has no such part, or BLEU is asked of another model than a
            translator.
        ConfigError: when a part does not support the mode.
        DataError: when the examples have no answers.
    """
    whole = answer(subject, examples)
    translated = None if bleu is None else bleu.translate(subject, examples)
    measured = []
    for number, what in enumerate(ablations):
        progress(number, len(ablations))
        with ablated(subject.model, what, how, means=means) as addresses:
            without = answer(subject, examples)
            # Translated within the context, since the search must run without the parts as well.
            texts = None if bleu is None else bleu.translate(subject, examples)
        # Paired: both models are resampled on the same
        # sentences, so differences of difficulty cancel.
        scores = _compared(whole, without, samples)
        if bleu is not None and translated is not None and texts is not None:
            scores |= paired_bootstrap(
                translated,
                texts,
                bleu.references(examples),
                ["bleu"],
                samples=samples,
                tokenize=bleu.tokenize,
                lowercase=bleu.lowercase,
            )
        measured.append(Effect(addresses, how, scores))
    progress(len(ablations), len(ablations))
    return measured


def _compared(whole: Answers, without: Answers, samples: int) -> dict[str, PairedScore]:
    counts = whole.counts.tolist()
    sums = {"loss": (whole.losses, without.losses), "accuracy": (whole.right, without.right)}
    return {
        name: paired_ratios(name, a.tolist(), b.tolist(), counts, samples=samples)
        for name, (a, b) in sums.items()
    }


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
        by: largest difference in the unit of the measure.
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
            # The first point beyond the bound is the end: a later
            # point can be within the bound again by chance.
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
        raise ModelError("This model has no attention heads")
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
    # Gradients differ in size from layer to layer; without
    # normalisation whole layers would go first.
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
        bleu: settings of a BLEU at every point; None for no BLEU.
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
        remedy="See their effect by `ablated`",
    )


def _prunable(subject: Subject) -> list[str]:
    """Return addresses of the heads that can be pruned."""
    heads = [part for part in all_parts(subject.model) if part.kind == "head"]
    prunable = [part.address for part in heads if part.can_be_cut]
    if heads and not prunable:
        raise _cannot_be_cut()
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
    # H (H + 1) / 2 passes over the corpus in all: minutes at the sizes that people prune.
    while left := [head for head in everything if head not in removed]:
        # Measured without all heads removed so far: heads that
        # stand in for each other are not both dispensable.
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
        # Each example has factors of its own: gradients of shared
        # factors would be sums over the batch, in which signs cancel.
        shape = (size, 1, self.heads, 1)
        self.gates = torch.ones(shape, dtype=like.dtype, device=like.device, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        """Project heads side by side [B, L, H·E] to [B, L, D]."""
        mixed = x.unflatten(-1, (self.heads, -1)) * self.gates
        projected: Tensor = self.inner(mixed.flatten(-2))
        return projected
