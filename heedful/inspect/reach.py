"""How far back a network feels: gradients of the last output by each token's embedding.

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
from heedful.inspect.reading import Reading, tensors
from heedful.inspect.subject import Subject, evaluating, stack_of
from heedful.models.block import Sight
from heedful.models.shape import TranslatorShape
from heedful.models.stack import Stack
from heedful.nn.capture import Capture
from heedful.nn.positions import Positions, SinusoidalPositions
from heedful.nn.recurrent import Cell, RecurrentEncoder

DIRECTIONS = 16
"""Directions of the output that gradients are taken of: enough for a picture."""

_building = threading.Lock()


@dataclass(frozen=True, eq=False)
class Reach:
    """Gradients by distance.

    Args:
        name: of the network.
        norms: [samples, distances] float64, the mean over the samples is `mean`; distance 0 is the
            last token itself. NaN where a sample is shorter.
    """

    name: str
    norms: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """[distances], over the samples that are as long."""
        mean: np.ndarray = np.nanmean(self.norms, axis=0)
        return mean

    @property
    def relative(self) -> np.ndarray:
        """[distances], against that of the last token itself in the same sample."""
        relative: np.ndarray = np.nanmean(self.norms / self.norms[:, :1], axis=0)
        return relative

    def plain(self) -> dict[str, Any]:
        """As JSON data: the means."""
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
    """Of new recurrent networks that read random vectors.

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
        return lambda x: encoder(x, _places(x))

    return _of_new(cell, build, (length, width), seeds, directions)


def transformer_reach(
    length: int,
    shape: TranslatorShape,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    directions: int = DIRECTIONS,
) -> Reach:
    """Of new Transformer encoders that read the same random vectors, with sinusoids added.

    Args:
        length: tokens.
        shape: the encoder's dials; its positions, vocabulary and dropout are not looked at.
        seeds: of weights and vectors, one sample each.
        directions: as in `model_reach`.
    """
    spec = shape.model_copy(update={"positions": "sinusoidal"}).expand(1, 1)

    def build() -> Callable[[Tensor], Tensor]:
        stack = Stack(spec.width, spec.encoder, "encoder").double().eval()
        waves = SinusoidalPositions(spec.width)

        def states(x: Tensor) -> Tensor:
            places = _places(x)
            read: Tensor = stack(x + waves(places), Sight(Positions.of_self(places)))[0]
            return read

        return states

    return _of_new("transformer", build, (length, spec.width), seeds, directions)


def model_reach(
    subject: Subject,
    readings: Sequence[Reading],
    stack: str | None = None,
    *,
    directions: int = DIRECTIONS,
) -> Reach:
    """Of a model with its own weights, for texts.

    Args:
        subject: the model.
        readings: from `read_all` or `see`, one sample each.
        stack: `encoder` or `decoder`; the decoder where there is one, if None. What a decoder
            feels of the encoder's tokens is not a part of this.
        directions: of the output, chosen at random but the same each time, from which the norm is
            estimated: the more, the closer; as many as the model is wide give it exactly.

    Raises:
        ModelError: when the model has no such stack.
        ConfigError: when there are no readings, or not at least one direction.
    """
    if not readings or directions < 1:
        raise ConfigError("There is nothing to measure", remedy="Give a text and a direction")
    first = readings[0]
    name = stack or ("encoder" if first.decoder is None else "decoder")
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
    """Of a network built anew for each seed; all kinds of network read the same vectors [L, D]."""
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
    """[L] by distance: one row of a batch for each direction."""
    inputs = [each.expand(len(directions), *each.shape[1:]) for each in tensors(subject, [reading])]
    capture = Capture([f"{name}.embedding", f"{name}.output"])
    with evaluating(subject.model), torch.enable_grad():
        subject.model(*inputs, capture=capture)
        embedded, states = (capture.found[f"{name}.{end}"] for end in ("embedding", "output"))
        return _norms(embedded, states, directions.to(states))


def _norms(embedded: Tensor, states: Tensor, directions: Tensor) -> np.ndarray:
    """[L] by distance: norms of the Jacobian, from P of its D rows' directions.

    For orthonormal directions drawn at random, D/P times the sum of squares has the whole norm's
    square as its mean, and is it when there are D.

    Args:
        embedded: [P, L, D], the same P times.
        states: [P, L, D], made of them.
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


def _places(x: Tensor) -> Tensor:
    """Positions [B, L] of rows without padding."""
    return torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Weights are drawn from PyTorch's own generator, which is put back to where it was."""
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
