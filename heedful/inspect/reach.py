"""The influence of earlier tokens: gradients of the last output by each token's embedding.

The measure is the Frobenius norm of the Jacobian of the last token's output by the embedding of
each token: how much the output changes with that embedding, over all directions of both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ConfigError
from heedful.inspect.readings import Reading, tensors
from heedful.inspect.result import Result
from heedful.inspect.subject import Subject, evaluating, stack_of
from heedful.models.shape import TranslatorShape
from heedful.models.stack import Stack
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context
from heedful.nn.positions import Positions, SinusoidalPositions
from heedful.nn.recurrent import Cell, RecurrentEncoder

DIRECTIONS = 16
"""Directions of the output that are differentiated: enough for a picture."""

_building = threading.Lock()


@dataclass(frozen=True, eq=False)
class Reach(Result):
    """Gradients by distance.

    Args:
        name: of the network.
        norms: [samples, distances] float64; distance 0 is the last token itself. NaN where a
            sample is shorter.
    """

    name: str
    norms: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Means [distances] over the samples that are as long."""
        mean: np.ndarray = np.nanmean(self.norms, axis=0)
        return mean

    @property
    def relative(self) -> np.ndarray:
        """Means [distances] relative to the last token itself in the same sample."""
        relative: np.ndarray = np.nanmean(self.norms / self.norms[:, :1], axis=0)
        return relative

    def plain(self) -> dict[str, Any]:
        """Return the means as JSON data."""
        return {
            "name": self.name,
            "samples": len(self.norms),
            "mean": self.mean.tolist(),
            "relative": self.relative.tolist(),
        }


def recurrent_reach(
    cell: Cell,
    length: int,
    *,
    width: int = 64,
    num_layers: int = 2,
    keep_bias: float = 1.0,
    seeds: Sequence[int] = (1, 2, 3),
    directions: int = DIRECTIONS,
) -> Reach:
    """Measure new recurrent networks that read random vectors.

    Args:
        cell: `rnn`, `lstm` or `gru`.
        length: tokens.
        width: of tokens and states, D.
        num_layers: on top of each other.
        keep_bias: of the gate that keeps the state; see `RecurrentEncoder`.
        seeds: of weights and vectors, one sample each.
        directions: as in `model_reach`.
    """

    def build() -> Callable[[Tensor], Tensor]:
        encoder = RecurrentEncoder(width, num_layers, cell, keep_bias=keep_bias).double()
        return lambda x: encoder(x, _positions(x))

    return _of_new(cell, build, (length, width), seeds, directions)


def transformer_reach(
    length: int,
    shape: TranslatorShape,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    directions: int = DIRECTIONS,
) -> Reach:
    """Measure new Transformer encoders on the same random vectors, with sinusoids added.

    Args:
        length: tokens.
        shape: of the encoder; its positions, vocabulary and dropout are not used.
        seeds: of weights and vectors, one sample each.
        directions: as in `model_reach`.
    """
    spec = shape.model_copy(update={"positions": "sinusoidal"}).expand(1, 1)

    def build() -> Callable[[Tensor], Tensor]:
        stack = Stack(spec.width, spec.encoder, "encoder").double().eval()
        sinusoids = SinusoidalPositions(spec.width)

        def states(x: Tensor) -> Tensor:
            positions = _positions(x)
            output: Tensor = stack(x + sinusoids(positions), Context(Positions.of_self(positions)))
            return output

        return states

    return _of_new("transformer", build, (length, spec.width), seeds, directions)


def model_reach(
    subject: Subject,
    readings: Sequence[Reading],
    stack: str | None = None,
    *,
    directions: int = DIRECTIONS,
) -> Reach:
    """Measure a model with its own weights on texts.

    Args:
        subject: the model.
        readings: from `read_all` or `see`, one sample each.
        stack: `encoder` or `decoder`; the decoder where there is one, if None. The influence of
            the encoder's tokens on a decoder is not measured.
        directions: of the output, random but the same each time, from which the norm is estimated:
            the more, the closer; as many as the model is wide give it exactly.

    Raises:
        ModelError: when the model has no such stack.
        ConfigError: when there are no readings, or not at least one direction.
    """
    if not readings or directions < 1:
        raise ConfigError("There is nothing to measure", remedy="Give a text and a direction")
    name = stack or readings[0].last_stack
    stack_of(subject.model, name)
    chosen = _directions(subject.model.spec.width, directions)
    samples = [_of_reading(subject, reading, name, chosen) for reading in readings]
    norms = np.full((len(samples), max(map(len, samples))), np.nan)
    for row, sample in zip(norms, samples, strict=True):
        row[: len(sample)] = sample
    return Reach(name, norms)


def _of_new(
    name: str,
    build: Callable[[], Callable[[Tensor], Tensor]],
    shape: tuple[int, int],
    seeds: Sequence[int],
    directions: int,
) -> Reach:
    """Measure a network built anew for each seed; all kinds read the same vectors [L, D]."""
    samples = []
    chosen = _directions(shape[1], directions)
    for seed in seeds:
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        with _seeded(seed):
            states_of = build()
        # In float64, for what a plain cell passes on soon falls below the smallest float32.
        with torch.enable_grad():
            x = drawn.double().expand(len(chosen), -1, -1).clone().requires_grad_()
            samples.append(_norms(x, states_of(x), chosen))
    return Reach(name, np.stack(samples))


def _of_reading(subject: Subject, reading: Reading, name: str, directions: Tensor) -> np.ndarray:
    """Norms [L] by distance, with one row of a batch for each direction."""
    inputs = [each.expand(len(directions), *each.shape[1:]) for each in tensors(subject, [reading])]
    capture = Capture([f"{name}.embedding", f"{name}.output"])
    with evaluating(subject.model), torch.enable_grad():
        subject.model(*inputs, capture=capture)
        embedded, states = (capture.found[f"{name}.{end}"] for end in ("embedding", "output"))
        return _norms(embedded, states, directions.to(states))


def _norms(embedded: Tensor, states: Tensor, directions: Tensor) -> np.ndarray:
    """Norms [L] of the Jacobian by distance, from P directions of its D rows.

    For orthonormal directions drawn at random, D/P times the sum of squares has the whole norm's
    square as its mean, and is it when there are D.

    Args:
        embedded: [P, L, D], the same P times.
        states: [P, L, D], computed from them.
        directions: [P, D], orthonormal.
    """
    (gradient,) = torch.autograd.grad((states[:, -1] * directions).sum(), embedded)
    count, width = directions.shape
    squares = gradient.double().square().sum((0, 2)) * (width / count)
    return squares.sqrt().flip(0).cpu().numpy()


def _directions(width: int, count: int) -> Tensor:
    """Orthonormal rows [min(count, width), width], drawn at random but always the same."""
    drawn = torch.randn(
        (width, min(count, width)),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    columns: Tensor = torch.linalg.qr(drawn).Q
    return columns.mT


def _positions(x: Tensor) -> Tensor:
    """Positions [B, L] of rows without padding."""
    return torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's own generator, which weights are drawn from, and restore it afterwards."""
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
