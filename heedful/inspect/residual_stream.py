"""The residual stream: contributions of sub-layers to the stream and to logits, and the logit lens.

The contributions of a pass add up to its stream. A norm is treated as the linear map that it was in
this pass: its mean and deviation are constants, its bias is a part of its own. A pre-norm stack has
one such norm, the final one; a post-norm stack has one after every sub-layer. The decomposition
explains this pass; it does not predict the pass without a part, whose statistics would differ.

The logit lens shows the predictions of a model if each layer were its last (nostalgebraist 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heedful.errors import ConfigError, ModelError
from heedful.inspect.drawings import shaded_table
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
from heedful.nn.norms import norm_parts

EMBEDDING, NORMS = "embedding", "norms"


@dataclass(frozen=True, eq=False)
class Contributions(Result):
    """Decomposition of a stack's output into a sum of contributions.

    Args:
        rows: tokens of the stack.
        sublayers: names of the sub-layers, e.g. `0.self`, `0.cross`, `0.feedforward`, in the order
            of the pass.
        sizes: [sublayers, rows] float32 lengths of the vectors that are added to the stream.
        stream_sizes: [sublayers, rows] float32 lengths of the stream before the addition.
        cosines: [sublayers, rows] float32 cosines of the angles between the two.
        parts: names of the contributions: `embedding`, the sub-layers, and `norms` for the biases
            of the norms.
        vectors: [parts, rows, D] float32 contributions, whose sum is the stack's output.
        tokens: token at each row whose logit is decomposed; None for stacks without logits.
        scores: [parts, rows] float32 contributions to the logit of that token.
        bias: [rows] float32 bias of the output projection; the logit, before any soft cap, is the
            sum of the scores and the bias.
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
        """Shares [parts, rows] of the output's squared length, with a sum of 1 in each row.

        A share below 0 is that of a part that points away from the output.
        """
        parts = self.vectors.astype(np.float64)
        # |x|² is the sum over parts of part · x, so these shares add up exactly.
        whole = parts.sum(0)
        return np.asarray((parts * whole).sum(-1) / np.square(whole).sum(-1))


def contributions(
    subject: Subject,
    reading: ModelInput,
    stack: str | None = None,
    *,
    tokens: Sequence[int] | None = None,
) -> Contributions:
    """Decompose a stack's output, and logits of tokens, into contributions of its parts.

    Args:
        subject: the model.
        reading: input from `read` or `see`.
        stack: `encoder` or `decoder`; None for the decoder where the model has one.
        tokens: id at each row whose logit is decomposed; the most probable token if None.

    Raises:
        ModelError: when there is no such stack, or tokens are given for a stack without logits:
            only a translator's decoder and a language model project the stream to logits directly.
        ConfigError: when the numbers of tokens and rows differ.
    """
    name = stack or reading.last_stack
    module = stack_of(subject.model, name)
    places = [
        (f"{number}.{address}", sublayer)
        for number, block in enumerate(module.blocks)
        for address, sublayer in sublayers(block).items()
    ]
    # The residual sum is the input of a post-norm, whose mean and deviation are needed again.
    kinds = ("output", "residual", "stream")
    addresses = [f"{name}.{place}.{kind}" for place, _ in places for kind in kinds]
    capture = Capture([f"{name}.embedding", f"{name}.output", *addresses])
    run(subject.model, tensors(subject, [reading]), capture)
    values = {address.removeprefix(f"{name}."): v[0] for address, v in capture.found.items()}
    pieces, scores, bias = None, None, None
    with inference(subject.model):
        vectors = _split(module, places, values)
        # Heads of encoders have layers and activations of their own, so their logits are no sums
        # over the stream.
        if name == "decoder":
            ids, by_part, own = _scores(subject.model, vectors, values["output"], tokens)
            pieces = tuple(subject.target.pieces(ids))
            scores, bias = array(by_part.float()), array(own)
        elif tokens is not None:
            raise ModelError(
                "Scores of this stack are no sums over its parts",
                remedy="Look at a translator's decoder or at a language model",
            )
    # The stream before a sub-layer is the stream after the sub-layer below.
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
    """Return the contributions [parts, L, D] float64 to the stack's output."""
    stream = values["embedding"]
    # Parts are in float64, so that the decomposition adds no rounding; 2 more for embedding and
    # norms.
    parts = stream.new_zeros(len(places) + 2, *stream.shape, dtype=torch.float64)
    parts[0] = stream
    for number, (place, sublayer) in enumerate(places, start=1):
        if not sublayer.residual:
            # Without a residual connection the output replaces the stream and all that was in it.
            parts[:] = 0.0
        parts[number] = values[f"{place}.output"]
        parts *= sublayer.residual_scale  # of the sum, so of all that it was added up from
        stream = values[f"{place}.stream"]
        if sublayer.norms_sum and sublayer.norm is not None:
            parts = _linear_norm(sublayer.norm, values[f"{place}.residual"], parts)
    if stack.final_norm is not None:
        parts = _linear_norm(stack.final_norm, stream, parts)
    return parts


def _linear_norm(norm: nn.Module, at: Tensor, parts: Tensor) -> Tensor:
    """Apply a norm to the parts of a stream, with the stream's own mean and deviation.

    Args:
        norm: layer norm or RMS norm.
        at: [L, D] stream, the input of the norm.
        parts: [P, L, D] float64 parts with the sum `at`; the last one takes the norm's bias.

    Returns:
        [P, L, D] parts with the sum norm(at).
    """
    weight, bias, epsilon = norm_parts(norm)
    assert weight is not None
    wide = at.double()
    if isinstance(norm, nn.LayerNorm):
        # The mean is linear, so the means of the parts add up to the mean of the stream.
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
    """Return ids, their logits by part [parts, L], and the bias of the output projection [L]."""
    # T5 with tied embeddings multiplies states by D^-0.5 before the output projection.
    scale = getattr(model.spec, "output_scale", None) or 1.0
    if tokens is None:
        tokens = model.logits(states * scale).argmax(-1).tolist()
    elif len(tokens) != len(states):
        raise ConfigError(f"{len(tokens)} tokens for {len(states)} rows")
    ids = torch.tensor(tokens, device=states.device)
    # A logit is the dot product of a state and a row of the output projection: [L, D].
    directions = model.output_weight[ids] * scale
    scores = (vectors * directions).sum(-1)
    bias = model.output_bias
    return list(tokens), scores, torch.zeros(len(ids)) if bias is None else bias[ids]


_ROWS_AT_ONCE = 64
"""Rows whose logits [rows, V] are in float64 at a time: 25 MB for a vocabulary of 50,000."""


@dataclass(frozen=True, eq=False)
class Lens(Result):
    """Predictions after the embedding and after each layer.

    Args:
        rows: tokens with a prediction each; `image` for an image as a whole.
        layers: `embedding`, then the indices of the layers.
        pieces: most probable tokens for each layer and row, best first.
        probabilities: [layers, rows, top] float32 probabilities of these tokens.
        entropy: [layers, rows] float32 entropies of the predictions, in nats.
        rank: [layers, rows] int64 ranks, from 0, of the last layer's best token in each layer.
        divergence: [layers, rows] float32 Kullback-Leibler divergences, in nats, from the last
            layer's predictions to each layer's.
    """

    rows: tuple[str, ...]
    layers: tuple[str, ...]
    pieces: tuple[tuple[tuple[str, ...], ...], ...]
    probabilities: np.ndarray
    entropy: np.ndarray
    rank: np.ndarray
    divergence: np.ndarray

    def _repr_html_(self) -> str:
        """The most probable token by layer and row, as dark as its probability."""
        names = ["embedding", *(f"layer {int(each) + 1}" for each in self.layers[1:])]
        best = [
            (name, [(tokens[0], float(p)) for tokens, p in zip(pieces, shares, strict=True)])
            for name, pieces, shares in zip(
                names, self.pieces, self.probabilities[..., 0], strict=True
            )
        ]
        return shaded_table("after", self.rows, best)


def lens(subject: Subject, reading: ModelInput, *, top: int = 5) -> Lens:
    """Compute the logit lens: predictions from the stream after every layer.

    Args:
        subject: a model that predicts tokens, or classes of images.
        reading: input from `read` or `see`.
        top: number of most probable tokens per row.

    Raises:
        ModelError: when the model has no head for predictions.
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
    """Return functions that compute the logits [rows, V] of the embedding and of each layer.

    The logits of the last layer are the model's own, bit for bit.
    """
    model = subject.model
    stack = stack_of(model, reading.last_stack)
    places = [f"{stack.name}.embedding"]
    places += [f"{stack.name}.{layer}.output" for layer in range(len(stack.blocks))]
    capture = Capture(places)
    run(model, tensors(subject, [reading]), capture)

    # Computed when called: logits of all layers at once would be layers * rows * V floats.
    def logits_at(place: str) -> Tensor:
        stream = capture.found[place]
        with inference(model):
            # A post-norm stack has no final norm: its stream is normed after every sub-layer
            # already.
            states = stream if stack.final_norm is None else stack.final_norm(stream)
            logits = model.stream_logits(states)
        return logits.reshape(-1, logits.shape[-1]).cpu()

    return [partial(logits_at, place) for place in places]


def _names(
    subject: Subject, reading: ModelInput, size: int
) -> tuple[tuple[str, ...], int, Callable[[Sequence[int]], Sequence[str]]]:
    """Return the rows' names, the number of logits with a prediction, and what names these."""
    if reading.image is not None:
        classes = subject.model.spec.class_names
        return ("image",), size, lambda ids: [classes[id] for id in ids]
    # Embedding tables may be padded; logits beyond the vocabulary mean nothing.
    pieces = reading.tokens(reading.last_stack).pieces
    return pieces, min(subject.target.size, size), subject.target.pieces


def _figures(logits: Tensor, final: Tensor, top: int) -> tuple[Tensor, ...]:
    """Return ids, probabilities, entropy, rank and divergence of a layer's logits [rows, V]."""
    parts: list[tuple[Tensor, ...]] = []
    for first in range(0, len(logits), _ROWS_AT_ONCE):
        chunk = slice(first, first + _ROWS_AT_ONCE)
        # float64, since a divergence near 0 is a small difference of large sums.
        log_probs = logits[chunk].double().log_softmax(-1)
        finals = final[chunk].double().log_softmax(-1)
        best = log_probs.topk(min(top, log_probs.shape[-1]), dim=-1)
        answer = log_probs.gather(-1, finals.argmax(-1, keepdim=True))
        parts.append(
            (
                best.indices,
                best.values.exp().float(),
                -(log_probs.exp() * log_probs).sum(-1).float(),
                (log_probs > answer).sum(-1),  # ties share the better rank
                (finals.exp() * (finals - log_probs)).sum(-1).float(),
            )
        )
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))
