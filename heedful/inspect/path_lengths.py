"""Paths between tokens: their lengths by formula, and the influence that reaches along them.

Operations, sequential steps and path lengths of kinds of layer are the rows of the complexity table
(Vaswani 2017, section 4), in exact numbers. Influence is measured on real networks: the Frobenius
norm of the Jacobian of the last token's output by the embedding of each token, over all directions
of both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ConfigError
from heedful.inspect.readings import ModelInput, tensors
from heedful.inspect.subject import Result, Subject, evaluating, stack_of
from heedful.models.shape import TranslatorShape
from heedful.models.stack import Stack
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context
from heedful.nn.mixer_spec import Cell
from heedful.nn.mixers.recurrent import RecurrentEncoder
from heedful.nn.positions import Positions, SinusoidalPositions

LayerKind = Literal["attention", "recurrent", "window", "convolution", "dilated"]
"""Full attention; a recurrent layer; attention to near tokens; convolutions side by side, and with
gaps that grow from layer to layer (van den Oord 2016)."""

KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
LONGEST_DRAWN = 64
"""Tokens of a network whose every connection is listed."""


@dataclass(frozen=True, eq=False)
class Costs(Result):
    """The costs of a kind of layer, by the number of tokens.

    Args:
        kind: of the layer.
        lengths: [N] int64 tokens.
        operations: [N] int64 multiply-adds of the layers' main products.
        steps: [N] int64 operations that must follow one another, on a machine that does all
            others at once.
        path: [N] int64 connections between the first and the last token, in a network of as many
            layers as it takes to connect them.
    """

    kind: LayerKind
    lengths: np.ndarray
    operations: np.ndarray
    steps: np.ndarray
    path: np.ndarray


def costs(
    lengths: Sequence[int],
    *,
    width: int = 512,
    num_layers: int = 1,
    window: int = 8,
    kernel: int = 3,
) -> tuple[Costs, ...]:
    """Compute operations, sequential steps and longest path of every kind of layer.

    A layer of attention takes n² · d multiply-adds (n · r · d within a window), a recurrent one
    n · d², a convolution k · n · d². Recurrent layers overlap: the second can read the first token
    while the first reads the second.

    Args:
        lengths: tokens n, at least 1 each.
        width: d.
        num_layers: on top of each other, for operations and steps.
        window: tokens r that a query of windowed attention sees on each side, itself among them,
            as in the mask `window(r)`.
        kernel: tokens k that a convolution reads: its own and those before it.

    Returns:
        One for each of `KINDS`, in that order.

    Raises:
        ConfigError: when a length is below 1, or a window or kernel below 2, which connects
            nothing.
    """
    _check(min(lengths, default=1), window, kernel)
    n = np.asarray(lengths, dtype=np.int64)
    once = np.full_like(n, num_layers)
    products = {
        "attention": n * n * width,
        "recurrent": n * width**2,
        "window": _window_pairs(n, window) * width,
        "convolution": kernel * n * width**2,
        "dilated": kernel * n * width**2,
    }
    paths = {
        "attention": np.minimum(n - 1, 1),
        "recurrent": n - 1,
        "window": -((1 - n) // (window - 1)),
        "convolution": -((1 - n) // (kernel - 1)),
        "dilated": np.array([_depth(length, kernel) for length in n.tolist()], dtype=np.int64),
    }
    return tuple(
        Costs(
            kind,
            n,
            num_layers * products[kind],
            n + num_layers - 1 if kind == "recurrent" else once,
            paths[kind],
        )
        for kind in KINDS
    )


@dataclass(frozen=True)
class Network:
    """The connections of a network that is deep enough to connect its first and last token.

    Args:
        kind: of its layers.
        levels: rows of nodes, the tokens themselves among them; a recurrent layer is one row of
            states, each of which reads its own token.
        length: nodes of a row.
        links: pairs of nodes (level, token), from the earlier to the later.
        route: the nodes of a shortest way from the first token to the last.
    """

    kind: LayerKind
    levels: int
    length: int
    links: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    route: tuple[tuple[int, int], ...]


def network(kind: LayerKind, length: int, *, window: int = 8, kernel: int = 3) -> Network:
    """Build a network to be drawn.

    Args:
        kind: of its layers.
        length: tokens, 1 to `LONGEST_DRAWN`.
        window: as in `costs`.
        kernel: as in `costs`.

    Raises:
        ConfigError: when it is too long to be drawn, or an argument is too small.
    """
    _check(length, window, kernel)
    if length > LONGEST_DRAWN:
        raise ConfigError(
            f"A network of {length:,} tokens has too many connections to be listed",
            remedy=f"Ask for at most {LONGEST_DRAWN}",
        )
    if kind == "recurrent":
        along = tuple(((0, token - 1), (0, token)) for token in range(1, length))
        return Network(kind, 1, length, along, tuple((0, token) for token in range(length)))
    depth = int(costs([length], window=window, kernel=kernel)[KINDS.index(kind)].path[0])
    links = tuple(
        ((level, before), (level + 1, token))
        for level in range(depth)
        for token in range(length)
        for before in _read(kind, level, token, length, window, kernel)
    )
    return Network(kind, depth + 1, length, links, _route(links, depth, length))


def _read(
    kind: LayerKind, level: int, token: int, length: int, window: int, kernel: int
) -> Sequence[int]:
    """Return the tokens of one level that a token of the next reads."""
    if kind == "attention":
        return range(length)
    if kind == "window":
        return range(max(0, token - window + 1), min(length, token + window))
    gap = kernel**level if kind == "dilated" else 1
    return [token - gap * place for place in range(kernel) if token >= gap * place]


def _route(
    links: Sequence[tuple[tuple[int, int], tuple[int, int]]], depth: int, length: int
) -> tuple[tuple[int, int], ...]:
    """Return a path from the first token to the last one of the top level, longest leaps first."""
    # From the end, so that leaps are long where a reader begins to look.
    below: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for before, after in links:
        below.setdefault(after, []).append(before)
    reaching = {(0, 0)}
    for before, after in links:  # in the order of levels
        if before in reaching:
            reaching.add(after)
    route = [(depth, length - 1)]
    while route[-1][0] > 0:
        route.append(min(node for node in below[route[-1]] if node in reaching))
    return tuple(reversed(route))


def _window_pairs(n: np.ndarray, window: int) -> np.ndarray:
    """Count the pairs of n tokens at a distance below the window, in both directions."""
    reach = np.minimum(window - 1, n - 1)
    return np.asarray(n + 2 * (n * reach - reach * (reach + 1) // 2))


def _depth(length: int, kernel: int) -> int:
    """Count the dilated layers after which one state has read all tokens: ⌈log_k n⌉, exactly."""
    depth, read = 0, 1
    while read < length:
        depth, read = depth + 1, read * kernel
    return depth


def _check(length: int, window: int, kernel: int) -> None:
    for name, value, least in (("length", length, 1), ("window", window, 2), ("kernel", kernel, 2)):
        if value < least:
            raise ConfigError(f"A {name} of {value} connects nothing; at least {least} is needed")


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
        return np.asarray(np.nanmean(self.norms, axis=0))

    @property
    def relative(self) -> np.ndarray:
        """Means [distances] relative to the last token itself in the same sample."""
        return np.asarray(np.nanmean(self.norms / self.norms[:, :1], axis=0))

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
    readings: Sequence[ModelInput],
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


def _of_reading(subject: Subject, reading: ModelInput, name: str, directions: Tensor) -> np.ndarray:
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
    source = torch.Generator().manual_seed(0)
    drawn = torch.randn((width, min(count, width)), generator=source, dtype=torch.float64)
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
