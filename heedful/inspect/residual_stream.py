"""The residual stream: contributions of sub-layers to it and to scores, and the logit lens.

The parts of a pass always add up to its stream. A norm on the way is taken as the linear map that
it was in this pass: its mean and deviation are kept, its bias is a part by itself. With norms first
there is one such norm, the last; with norms last there is one after every sub-layer. So this
accounts for the pass that was; it does not predict the pass without a part.

The lens shows the predictions of a model if each layer were its last (nostalgebraist 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heedful.engines.training.residual_norm import norm_parts
from heedful.errors import ConfigError, ModelError
from heedful.inspect.readings import ModelInput, tensors
from heedful.inspect.subject import (
    InspectedSubLayer,
    Result,
    Subject,
    array,
    inference,
    run,
    stack_of,
    sublayers,
)
from heedful.models.stack import Stack
from heedful.nn.capture import Capture

EMBEDDING, NORMS = "embedding", "norms"


@dataclass(frozen=True, eq=False)
class Contributions(Result):
    """The parts that a stack's states are the sum of.

    Args:
        rows: the tokens of the stack.
        sublayers: such as `0.self`, `0.cross`, `0.feedforward`, in the order of the pass.
        sizes: length of the vector that each adds to the stream, [sublayers, rows] float32.
        stream_sizes: length of the stream it is added to, [sublayers, rows] float32.
        cosines: of the angle between the two, [sublayers, rows] float32.
        parts: `embedding`, the sub-layers, and `norms`: the biases of the norms.
        vectors: [parts, rows, D] float32; they add up to the stack's output.
        tokens: the piece at each row whose score is split up; None where none can be.
        scores: [parts, rows] float32, the share of each part in the score of that token.
        bias: [rows] float32, the output's own bias; the score, before a soft cap of logits, is the
            sum of all.
    """

    rows: tuple[str, ...]
    sublayers: tuple[str, ...]
    sizes: np.ndarray
    stream_sizes: np.ndarray
    cosines: np.ndarray
    parts: tuple[str, ...]
    vectors: np.ndarray
    tokens: tuple[str, ...] | None
    scores: np.ndarray | None
    bias: np.ndarray | None

    left_out = ("vectors",)

    @property
    def shares(self) -> np.ndarray:
        """Shares [parts, rows] of the output's squared length.

        They add up to 1 in each row; below 0 are parts that point away from the output.
        """
        parts = self.vectors.astype(np.float64)
        whole = parts.sum(0)
        return np.asarray((parts * whole).sum(-1) / np.square(whole).sum(-1))


def contributions(
    subject: Subject,
    reading: ModelInput,
    stack: str | None = None,
    *,
    tokens: Sequence[int] | None = None,
) -> Contributions:
    """Split a stack's output, and scores of tokens, into the parts they were added up from.

    Args:
        subject: the model.
        reading: from `read` or `see`.
        stack: `encoder` or `decoder`; the decoder where there is one, if None.
        tokens: for each row the id whose score is split up; the model's best if None.

    Raises:
        ModelError: when there is no such stack, or tokens are named where scores are no sums: only
            a translator's decoder and a language model compute them from the stream directly.
        ConfigError: when there are not as many tokens as rows.
    """
    name = stack or reading.last_stack
    module = stack_of(subject.model, name)
    places = [
        (f"{number}.{address}", sublayer)
        for number, block in enumerate(module.blocks)
        for address, sublayer in sublayers(block).items()
    ]
    kinds = ("output", "residual", "stream")
    addresses = [f"{name}.{place}.{kind}" for place, _ in places for kind in kinds]
    capture = Capture([f"{name}.embedding", f"{name}.output", *addresses])
    run(subject.model, tensors(subject, [reading]), capture)
    values = {address.removeprefix(f"{name}."): v[0] for address, v in capture.found.items()}
    pieces, scores, bias = None, None, None
    with inference(subject.model):
        vectors = _split(module, places, values)
        if name == "decoder":
            ids, by_part, own = _scores(subject.model, vectors, values["output"], tokens)
            pieces = tuple(subject.target.pieces(ids))
            scores, bias = array(by_part.float()), array(own)
        elif tokens is not None:
            raise ModelError(
                "Scores of this stack are no sums over its parts",
                remedy="Look at a translator's decoder or at a language model",
            )
    before = [values["embedding"], *(values[f"{place}.stream"] for place, _ in places[:-1])]
    added = torch.stack([values[f"{place}.output"] for place, _ in places])
    streams = torch.stack(before)
    names = tuple(place for place, _ in places)
    return Contributions(
        reading.tokens(name).pieces,
        names,
        array(added.norm(dim=-1)),
        array(streams.norm(dim=-1)),
        array(torch.cosine_similarity(added, streams, dim=-1)),
        (EMBEDDING, *names, NORMS),
        array(vectors.float()),
        pieces,
        scores,
        bias,
    )


def _split(
    stack: Stack, places: Sequence[tuple[str, InspectedSubLayer]], values: dict[str, Tensor]
) -> Tensor:
    """Parts [parts, L, D] float64 of the stack's output."""
    stream = values["embedding"]
    # In float64, so that splitting adds no rounding of its own.
    parts = stream.new_zeros(len(places) + 2, *stream.shape, dtype=torch.float64)
    parts[0] = stream
    for number, (place, sublayer) in enumerate(places, start=1):
        if not sublayer.residual:
            parts[:] = 0.0
        parts[number] = values[f"{place}.output"]
        stream = values[f"{place}.stream"]
        if sublayer.norms_sum and sublayer.norm is not None:
            parts = _linear_norm(sublayer.norm, values[f"{place}.residual"], parts)
    if stack.final_norm is not None:
        parts = _linear_norm(stack.final_norm, stream, parts)
    return parts


def _linear_norm(norm: nn.Module, at: Tensor, parts: Tensor) -> Tensor:
    """Apply a norm to the parts of a stream as the linear map that it is there.

    Args:
        norm: with mean and deviation of `at`.
        at: the stream [L, D].
        parts: [P, L, D] float64 with the sum `at`; the last takes the norm's bias.

    Returns:
        [P, L, D] with the sum norm(at).
    """
    weight, bias, epsilon = norm_parts(norm)
    assert weight is not None
    wide = at.double()
    if isinstance(norm, nn.LayerNorm):
        parts = parts - parts.mean(-1, keepdim=True)
        variance = wide.var(-1, unbiased=False, keepdim=True)
    else:
        variance = wide.square().mean(-1, keepdim=True)
    parts = parts / (variance + epsilon).sqrt() * weight.double()
    if bias is not None:
        parts[-1] += bias
    return parts


def _scores(
    model: Any, vectors: Tensor, states: Tensor, tokens: Sequence[int] | None
) -> tuple[list[int], Tensor, Tensor]:
    """Ids, their scores by part [parts, L], and the output's own bias [L]."""
    scale = getattr(model.spec, "output_scale", None) or 1.0
    if tokens is None:
        tokens = model.logits(states * scale).argmax(-1).tolist()
    elif len(tokens) != len(states):
        raise ConfigError(f"{len(tokens)} tokens for {len(states)} rows")
    ids = torch.tensor(tokens, device=states.device)
    directions = model.output_weight[ids] * scale
    scores = (vectors * directions).sum(-1)
    bias = model.output_bias
    return list(tokens), scores, torch.zeros(len(ids)) if bias is None else bias[ids]


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


def lens(subject: Subject, reading: ModelInput, *, top: int = 5) -> Lens:
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


def layer_logits(subject: Subject, reading: ModelInput) -> list[Callable[[], Tensor]]:
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
    subject: Subject, reading: ModelInput, size: int
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
