"""The logit lens: the predictions of a model if each layer were its last (nostalgebraist 2020)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ConfigError
from heedful.inspect.captures import run
from heedful.inspect.readings import Reading, tensors
from heedful.inspect.result import Result
from heedful.inspect.subject import Subject, inference, stack_of
from heedful.nn.capture import Capture

_ROWS_AT_ONCE = 64
"""Rows whose logits over a whole vocabulary are in float64 at a time."""


@dataclass(frozen=True, eq=False)
class Lens(Result):
    """Predictions after the embedding and after each layer.

    Args:
        rows: the tokens with a prediction each; `image` for an image as a whole.
        layers: `embedding`, then numbers of the layers.
        pieces: for each layer and row, the likeliest predictions, best first.
        probabilities: of these pieces, [layers, rows, top] float32.
        entropy: of all predictions, in nats, [layers, rows] float32.
        rank: of the last layer's best prediction in each layer, from 0, [layers, rows] int64.
        divergence: Kullback-Leibler divergence of each layer's predictions from the last layer's,
            in nats, [layers, rows] float32.
    """

    rows: tuple[str, ...]
    layers: tuple[str, ...]
    pieces: tuple[tuple[tuple[str, ...], ...], ...]
    probabilities: np.ndarray
    entropy: np.ndarray
    rank: np.ndarray
    divergence: np.ndarray


def lens(subject: Subject, reading: Reading, *, top: int = 5) -> Lens:
    """Read predictions off every layer.

    Args:
        subject: a model that predicts pieces, or classes of images.
        reading: from `read` or `see`.
        top: predictions of each row.

    Raises:
        ModelError: when the model has no head that predicts them.
        ConfigError: when `top` is below 1.
    """
    if top < 1:
        raise ConfigError("At least one prediction is needed", where=f"top = {top}")
    *layers, last = layer_logits(subject, reading)
    final = last()
    rows, size, name = _names(subject, reading, final.shape[-1])
    final = final[:, :size]
    figures = [_figures(layer()[:, :size], final, top) for layer in layers]
    figures.append(_figures(final, final, top))
    ids, *numbers = (torch.stack(column) for column in zip(*figures, strict=True))
    return Lens(
        rows,
        ("embedding", *map(str, range(len(layers)))),
        tuple(tuple(tuple(name(row)) for row in layer) for layer in ids.tolist()),
        *(each.numpy() for each in numbers),
    )


def layer_logits(subject: Subject, reading: Reading) -> list[Callable[[], Tensor]]:
    """Scores [rows, V] of the embedding and of each layer, each computed when it is called.

    The last are the model's own.
    """
    model = subject.model
    stack = stack_of(model, reading.last_stack)
    places = [f"{stack.name}.embedding"]
    places += [f"{stack.name}.{layer}.output" for layer in range(len(stack.blocks))]
    capture = Capture(places)
    run(model, tensors(subject, [reading]), capture)

    def logits_at(place: str) -> Tensor:
        stream = capture.found[place]
        with inference(model):
            states = stream if stack.final_norm is None else stack.final_norm(stream)
            logits = model.stream_logits(states)
        return logits.reshape(-1, logits.shape[-1]).cpu()

    return [partial(logits_at, place) for place in places]


def _names(
    subject: Subject, reading: Reading, size: int
) -> tuple[tuple[str, ...], int, Callable[[Sequence[int]], Sequence[str]]]:
    """Names of the rows, how many of `size` scores are predictions, and a function to name them."""
    if reading.image is not None:
        classes = subject.model.spec.class_names
        return ("image",), size, lambda ids: [classes[id] for id in ids]
    # Rows of the table past the tokenizer's pieces are no predictions.
    pieces = reading.tokens(reading.last_stack).pieces
    return pieces, min(subject.target.size, size), subject.target.pieces


def _figures(logits: Tensor, final: Tensor, top: int) -> tuple[Tensor, ...]:
    """Ids, probabilities, entropy, rank and divergence of a layer's logits [rows, V]."""
    parts: list[tuple[Tensor, ...]] = []
    for first in range(0, len(logits), _ROWS_AT_ONCE):
        chunk = slice(first, first + _ROWS_AT_ONCE)
        log_probs = logits[chunk].double().log_softmax(-1)
        finals = final[chunk].double().log_softmax(-1)
        best = log_probs.topk(min(top, log_probs.shape[-1]), dim=-1)
        answer = log_probs.gather(-1, finals.argmax(-1, keepdim=True))
        parts.append(
            (
                best.indices,
                best.values.exp().float(),
                -(log_probs.exp() * log_probs).sum(-1).float(),
                (log_probs > answer).sum(-1),
                (finals.exp() * (finals - log_probs)).sum(-1).float(),
            )
        )
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))
