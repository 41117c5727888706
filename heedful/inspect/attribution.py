"""Attribution: the tokens and heads on which the prediction of one token rests.

Two ways to share it out among the tokens. `silence` hides one token after the other from all
attention, at its own place, and measures what the prediction loses: exact, one pass for all.
`gradients` are integrated (Sundararajan 2017): the vectors of the tokens go in a straight line from
a baseline, in which every word is unknown, to those of the text; the gradients on the way, times
the change of a token's vector, add up to the change of the prediction. Heads have one gradient,
that of the text itself: to first order, what the prediction would lose without the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from heedful.errors import DataError
from heedful.inspect.readings import ModelInput, tensors
from heedful.inspect.subject import Result, Subject, array, evaluating, inference
from heedful.nn.capture import Capture

STEPS = 64
"""Number of points between baseline and text: of 26 sentences of `en-de` half then add up to 1 %,
nine in ten to 3 % (docs/design/log.md)."""

Way = Literal["silence", "gradients"]


@dataclass(frozen=True, eq=False)
class Attribution(Result):
    """Shares of tokens and heads in one prediction.

    Args:
        value: log-probability of the token; with a contrast, its logit minus the other token's.
        baseline: the same value with unknown words alone; None by silence.
        scores: shares of each token by stack, [L] float32. By silence, what the value loses without
            the token; 0 for the last one, whose own query asks. By gradients, they add up to
            value − baseline, but for the error of a sum over a few points.
    """

    value: float
    baseline: float | None
    scores: dict[str, np.ndarray]


def attribute(
    subject: Subject,
    reading: ModelInput,
    token: int,
    *,
    against: int | None = None,
    way: Way = "silence",
    steps: int = STEPS,
) -> Attribution:
    """Attribute the prediction after the last token of a decoder to the tokens it has read.

    Args:
        subject: a translator or a language model.
        reading: input, such as that of `next_token`.
        token: id of the predicted token.
        against: id of a token to compare with; None for the probability alone.
        way: kind of attribution, silence or integrated gradients.
        steps: number of points of the integral.

    Raises:
        DataError: when an id is not in the vocabulary.
    """
    model: Any = subject.model
    size = len(model.output_weight)
    for id in (token, against):
        if id is not None and not 0 <= id < size:
            raise DataError(
                f"There is no token {id}", where="token", remedy=f"Take one below {size}"
            )
    if way == "silence":
        return _by_silence(subject, reading, token, against)
    return _by_gradients(subject, reading, token, against, steps)


def _by_silence(
    subject: Subject, reading: ModelInput, token: int, against: int | None
) -> Attribution:
    model: Any = subject.model
    inputs = tensors(subject, [reading])
    names = [*model.stacks()]
    # A row for each token of each stack, and the text itself as the first one.
    lengths = [inputs[2 * i].shape[1] for i in range(len(names))]
    count = 1 + sum(lengths)
    rows = [each.repeat(count, 1) for each in inputs]
    start = 1
    for i, length in enumerate(lengths):
        own = torch.arange(length)
        # A token at −1 is padding: nobody attends to it, and the others keep their positions.
        rows[2 * i + 1][start + own, own] = -1
        start += length
    # The last token asks the question, so it stays.
    rows[-1][-1, -1] = inputs[-1][0, -1]
    with inference(model):
        values = _values(model.logits(model(*rows)[:, -1]).float(), token, against)
    lost = array(values[0] - values[1:])
    ends = np.cumsum(lengths)
    return Attribution(
        float(values[0]), None, dict(zip(names, np.split(lost, ends[:-1]), strict=True))
    )


def _by_gradients(
    subject: Subject, reading: ModelInput, token: int, against: int | None, steps: int
) -> Attribution:
    model: Any = subject.model
    # Midpoints of equal parts of the way, between both of its ends.
    middle = (torch.arange(steps, device=subject.device) + 0.5) / steps
    way = torch.cat([middle.new_zeros(1), middle, middle.new_ones(1)])
    changes: dict[str, Tensor] = {}
    points: dict[str, Tensor] = {}

    def mix(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
            base, text = output[0].detach(), output[-1].detach()
            changes[name] = text - base
            points[name] = (base + way[:, None, None] * changes[name]).requires_grad_()
            return points[name]

        return hook

    # Ids and positions of each stack in turn; the first row of ids is the baseline.
    inputs = [each.repeat(len(way), 1) for each in tensors(subject, [reading])]
    for ids in inputs[::2]:
        tokenizer = subject.source if ids is inputs[0] and len(inputs) > 2 else subject.target
        kept = (tokenizer.pad, tokenizer.bos, tokenizer.eos)
        words = torch.stack([ids[0] != id for id in kept]).all(0)
        ids[0, words] = tokenizer.unk
    hooks = [each.register_forward_hook(mix(name)) for name, each in model.input_modules().items()]
    try:
        with evaluating(model), torch.enable_grad():
            logits = model.logits(model(*inputs)[:, -1]).float()
            values = _values(logits, token, against)
            slopes = torch.autograd.grad(values.sum(), [*points.values()])
    finally:
        for each in hooks:
            each.remove()
    # The ends of the way only say what the shares add up to.
    scores = {
        name: array((changes[name] * slope[1:-1].mean(0)).sum(-1))
        for name, slope in zip(points, slopes, strict=True)
    }
    ends = values.detach()
    return Attribution(float(ends[-1]), float(ends[0]), scores)


def _values(logits: Tensor, token: int, against: int | None) -> Tensor:
    """Return the values [R] of a prediction from logits [R, V]."""
    if against is None:
        return logits.log_softmax(-1)[:, token]
    return logits[:, token] - logits[:, against]


def head_effects(
    subject: Subject, reading: ModelInput, token: int, *, against: int | None = None
) -> dict[str, float]:
    """Return what each head brings to a prediction by its address, to first order.

    Args:
        subject: a translator or a language model.
        reading: input, such as that of `next_token`.
        token: id of the predicted token.
        against: id of a token to compare with; None for the probability alone.
    """
    model: Any = subject.model
    capture = Capture(["*.*.*.context"])
    with evaluating(model), torch.enable_grad():
        states = model(*tensors(subject, [reading]), capture=capture)[:, -1]
        value = _values(model.logits(states).float(), token, against)
        # Heads of a mixer without a softmax keep nothing that a gradient could reach.
        contexts = {name: each for name, each in capture.found.items() if each.requires_grad}
        slopes = torch.autograd.grad(value.sum(), [*contexts.values()], allow_unused=True)
    found: dict[str, float] = {}
    for (name, context), slope in zip(contexts.items(), slopes, strict=True):
        if slope is not None:
            brings = (context[0] * slope[0]).sum((-2, -1)).tolist()
            place = name.removesuffix(".context")
            found |= {f"{place}.head.{head}": value for head, value in enumerate(brings)}
    return found
