"""Path lengths between tokens by formula, and the influence of tokens by measurement.

Operations, sequential steps and path lengths of kinds of layers are the columns of Vaswani (2017,
table 1), with exact numbers instead of orders. Influence is measured on real networks: the
Frobenius norm of the Jacobian of the last token's output with respect to each token's embedding.
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

from heedful.config import Cell
from heedful.errors import ConfigError
from heedful.inspect.readings import ModelInput, tensors
from heedful.inspect.subject import Result, Subject, evaluating, stack_of
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.stack import Stack
from heedful.nn.capture import Capture
from heedful.nn.mixer import Context
from heedful.nn.mixers.recurrent import RecurrentEncoder
from heedful.nn.positions import Positions, SinusoidalPositions

LayerKind = Literal["attention", "recurrent", "window", "convolution", "dilated"]
"""Full attention, a recurrent layer, attention within a window, convolutions without and with
dilation that grows from layer to layer (van den Oord 2016)."""

KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
LONGEST_DRAWN = 128
"""Maximum number of tokens of a network that is drawn: full attention has n² connections."""


@dataclass(frozen=True, eq=False)
class Costs(Result):
    """Costs of one kind of layer by sequence length.

    Args:
        kind: kind of layer.
        lengths: [N] int64 sequence lengths in tokens.
        operations: [N] int64 multiply-adds of the layers' main matmuls.
        steps: [N] int64 sequential operations, which cannot run in parallel.
        path: [N] int64 connections on the shortest path from the first to the last token, in a
            network with enough layers to connect them.
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

    A layer of attention takes n² · d multiply-adds (n · r · d within a window), a recurrent layer
    n · d², a convolution k · n · d². Recurrent layers overlap: the second layer processes the first
    token while the first layer processes the second token.

    Args:
        lengths: sequence lengths n in tokens, at least 1 each.
        width: model width d.
        num_layers: number of stacked layers, for operations and steps.
        window: size r of windowed attention: number of tokens that a query attends to on each side,
            itself included, as in the mask `window(r)`.
        kernel: kernel width k of causal convolutions.

    Returns:
        The costs of each of `KINDS`, in that order.

    Raises:
        ConfigError: when a length is below 1, or a window or kernel is below 2 and connects no
            tokens.
    """
    _check(min(lengths, default=1), window, kernel)
    n = np.asarray(lengths, dtype=np.int64)
    once = np.full_like(n, num_layers)
    # As in the paper's table, projections of queries, keys, values and outputs are not counted.
    multiply_adds = {
        "attention": n * n * width,
        "recurrent": n * width**2,
        "window": _window_pairs(n, window) * width,
        "convolution": kernel * n * width**2,
        "dilated": kernel * n * width**2,
    }
    paths = {
        "attention": np.minimum(n - 1, 1),
        "recurrent": n - 1,
        # Ceiling of (n - 1) / (r - 1): negative floor division rounds up without floats.
        "window": -((1 - n) // (window - 1)),
        "convolution": -((1 - n) // (kernel - 1)),
        "dilated": np.array([_depth(length, kernel) for length in n.tolist()], dtype=np.int64),
    }
    return tuple(
        Costs(
            kind,
            n,
            num_layers * multiply_adds[kind],
            # Layers overlap in a wavefront: after n steps of the first layer, each further layer
            # needs one more.
            n + num_layers - 1 if kind == "recurrent" else once,
            paths[kind],
        )
        for kind in KINDS
    )


@dataclass(frozen=True)
class Network:
    """Connections of a network that is deep enough to connect its first and last token.

    Args:
        kind: kind of the layers.
        levels: number of rows of nodes, the row of input tokens included; a recurrent layer is a
            single row of states.
        length: number of nodes in a row.
        links: connections as pairs of nodes (level, token), lower node first.
        route: nodes of a shortest path from the first token to the last.
    """

    kind: LayerKind
    levels: int
    length: int
    links: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    route: tuple[tuple[int, int], ...]


def network(kind: LayerKind, length: int, *, window: int = 8, kernel: int = 3) -> Network:
    """Build the connections of a network for a drawing.

    Args:
        kind: kind of the layers.
        length: sequence length in tokens, 1 to `LONGEST_DRAWN`.
        window: size of windowed attention, see `costs`.
        kernel: kernel width of convolutions, see `costs`.

    Raises:
        ConfigError: when the sequence is too long for a drawing, or an argument is too small.
    """
    _check(length, window, kernel)
    if length > LONGEST_DRAWN:
        raise ConfigError(
            f"A network of {length:,} tokens has too many connections to be listed",
            remedy=f"Ask for at most {LONGEST_DRAWN}",
        )
    if kind == "recurrent":
        # A state reads the state before it in the same layer, so depth does not shorten its path.
        along = tuple(((0, token - 1), (0, token)) for token in range(1, length))
        return Network(kind, 1, length, along, tuple((0, token) for token in range(length)))
    depth = int(costs([length], window=window, kernel=kernel)[KINDS.index(kind)].path[0])
    links = tuple(
        ((level, before), (level + 1, token))
        for level in range(depth)
        for token in range(length)
        for before in _inputs_of(kind, level, token, length, window, kernel)
    )
    return Network(kind, depth + 1, length, links, _route(links, depth, length))


def _inputs_of(
    kind: LayerKind, level: int, token: int, length: int, window: int, kernel: int
) -> Sequence[int]:
    """Return the tokens of one level that a token of the next level is connected to."""
    if kind == "attention":
        return range(length)
    if kind == "window":
        return range(max(0, token - window + 1), min(length, token + window))
    # Dilation k^l: each layer multiplies the receptive field by k without reading a token twice.
    gap = kernel**level if kind == "dilated" else 1
    return [token - gap * place for place in range(kernel) if token >= gap * place]


def _route(
    links: Sequence[tuple[tuple[int, int], tuple[int, int]]], depth: int, length: int
) -> tuple[tuple[int, int], ...]:
    """Return a path from the first token to the last token of the top level."""
    # The path is built from the end with the leftmost inputs, so that long connections are at the
    # top.
    below: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for before, after in links:
        below.setdefault(after, []).append(before)
    reaching = {(0, 0)}
    # Links come in the order of levels, so one pass finds all nodes that the first token reaches.
    for before, after in links:
        if before in reaching:
            reaching.add(after)
    route = [(depth, length - 1)]
    while route[-1][0] > 0:
        route.append(min(node for node in below[route[-1]] if node in reaching))
    return tuple(reversed(route))


def _window_pairs(n: np.ndarray, window: int) -> np.ndarray:
    """Count the pairs of n tokens at a distance below the window, in both directions."""
    # n pairs on the diagonal, and n - j at each distance j up to the reach, twice.
    reach = np.minimum(window - 1, n - 1)
    return np.asarray(n + 2 * (n * reach - reach * (reach + 1) // 2))


def _depth(length: int, kernel: int) -> int:
    """Return ⌈log_k n⌉, the number of dilated layers until one state depends on all n tokens."""
    # Computed in integers, since a quotient of float logarithms can be off at exact powers of k.
    depth, receptive_field = 0, 1
    while receptive_field < length:
        depth, receptive_field = depth + 1, receptive_field * kernel
    return depth


def _check(length: int, window: int, kernel: int) -> None:
    for name, value, least in (("length", length, 1), ("window", window, 2), ("kernel", kernel, 2)):
        if value < least:
            raise ConfigError(f"A {name} of {value} connects nothing; at least {least} is needed")


DIRECTIONS = 16
"""Default number of output directions that are differentiated: enough for a plot."""

# Weights come from PyTorch's global generator, which threads of the studio share.
_building = threading.Lock()


@dataclass(frozen=True, eq=False)
class Reach(Result):
    """Gradient norms by distance from the last token.

    Args:
        name: name of the network.
        norms: [samples, distances] float64 Jacobian norms; distance 0 is the last token itself.
            NaN beyond the length of a sample.
    """

    name: str
    norms: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Means [distances] over the samples that are long enough."""
        return np.asarray(np.nanmean(self.norms, axis=0))

    @property
    def relative(self) -> np.ndarray:
        """Means [distances] of norms divided by the norm of the last token in the same sample."""
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
    """Measure newly initialised recurrent networks on random vectors.

    Args:
        cell: `rnn`, `lstm` or `gru`.
        length: sequence length in tokens.
        width: width D of inputs and states.
        num_layers: number of stacked layers.
        keep_bias: bias of the gate that keeps the state, see `RecurrentEncoder`.
        seeds: seeds of weights and vectors; each gives one sample.
        directions: number of differentiated directions, see `model_reach`.
    """

    def build() -> Callable[[Tensor], Tensor]:
        encoder = RecurrentEncoder(width, num_layers, cell, keep_bias=keep_bias).double()
        return lambda x: encoder(x, _positions(x))

    return _reach_of_new(cell, build, (length, width), seeds, directions)


def transformer_reach(
    length: int,
    shape: TranslatorShape,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    directions: int = DIRECTIONS,
) -> Reach:
    """Measure newly initialised Transformer encoders on the vectors of `recurrent_reach`.

    Sinusoidal position encodings are added to the vectors.

    Args:
        length: sequence length in tokens.
        shape: shape of the encoder; its positions, vocabulary and dropout are ignored.
        seeds: seeds of weights and vectors; each gives one sample.
        directions: number of differentiated directions, see `model_reach`.
    """
    # The vocabulary has one entry, since the network is given vectors instead of tokens.
    spec = translator_spec(shape.model_copy(update={"positions": "sinusoidal"}), 1, 1)

    def build() -> Callable[[Tensor], Tensor]:
        stack = Stack(spec.width, spec.encoder, "encoder").double().eval()
        sinusoids = SinusoidalPositions(spec.width)

        def states(x: Tensor) -> Tensor:
            positions = _positions(x)
            output: Tensor = stack(x + sinusoids(positions), Context(Positions.of_self(positions)))
            return output

        return states

    return _reach_of_new("transformer", build, (length, spec.width), seeds, directions)


def model_reach(
    subject: Subject,
    readings: Sequence[ModelInput],
    stack: str | None = None,
    *,
    directions: int = DIRECTIONS,
) -> Reach:
    """Measure a trained model on texts or images.

    Args:
        subject: the model.
        readings: inputs from `read_all` or `see`; each gives one sample.
        stack: `encoder` or `decoder`; None for the decoder where the model has one. The influence
            of the encoder's tokens on a decoder is not measured.
        directions: number of random output directions for the estimate of the norm, the same in
            every call; with as many directions as the model width the norm is exact.

    Raises:
        ModelError: when the model has no such stack.
        ConfigError: when there are no readings or no directions.
    """
    if not readings or directions < 1:
        raise ConfigError("There is nothing to measure", remedy="Give a text and a direction")
    name = stack or readings[0].last_stack
    stack_of(subject.model, name)
    chosen = _directions(subject.model.spec.width, directions)
    samples = [_norms_of_reading(subject, reading, name, chosen) for reading in readings]
    norms = np.full((len(samples), max(map(len, samples))), np.nan)
    for row, sample in zip(norms, samples, strict=True):
        row[: len(sample)] = sample
    return Reach(name, norms)


def _reach_of_new(
    name: str,
    build: Callable[[], Callable[[Tensor], Tensor]],
    shape: tuple[int, int],
    seeds: Sequence[int],
    directions: int,
) -> Reach:
    """Measure a network initialised with each seed; all networks get the same vectors [L, D]."""
    samples = []
    chosen = _directions(shape[1], directions)
    for seed in seeds:
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        with _seeded(seed):
            states_of = build()
        # Measured in float64: the gradient through a plain recurrent cell falls below the smallest
        # float32 within a hundred tokens.
        with torch.enable_grad():
            x = drawn.double().expand(len(chosen), -1, -1).clone().requires_grad_()
            samples.append(_norms(x, states_of(x), chosen))
    return Reach(name, np.stack(samples))


def _norms_of_reading(
    subject: Subject, reading: ModelInput, name: str, directions: Tensor
) -> np.ndarray:
    """Return norms [L] by distance; each direction is a row of one batch."""
    # Rows are independent, so one backward pass of P equal rows differentiates P directions.
    inputs = [each.expand(len(directions), *each.shape[1:]) for each in tensors(subject, [reading])]
    capture = Capture([f"{name}.embedding", f"{name}.output"])
    with evaluating(subject.model), torch.enable_grad():
        subject.model(*inputs, capture=capture)
        embedded, states = (capture.found[f"{name}.{end}"] for end in ("embedding", "output"))
        return _norms(embedded, states, directions.to(states))


def _norms(embedded: Tensor, states: Tensor, directions: Tensor) -> np.ndarray:
    """Return norms [L] of the Jacobian by distance, estimated from P of D output directions.

    For random orthonormal directions, D/P times the sum of squared gradients has the squared
    Frobenius norm as its expectation, and equals it for P = D.

    Args:
        embedded: [P, L, D] embeddings, the same in all P rows.
        states: [P, L, D] output of the stack.
        directions: [P, D] orthonormal directions.
    """
    # Projections of the output are differentiated, not its sum:
    # behind a layer norm the sum is constant and has no gradient.
    (gradient,) = torch.autograd.grad((states[:, -1] * directions).sum(), embedded)
    count, width = directions.shape
    squares = gradient.double().square().sum((0, 2)) * (width / count)
    return squares.sqrt().flip(0).cpu().numpy()


def _directions(width: int, count: int) -> Tensor:
    """Return random orthonormal rows [min(count, width), width], the same in every call."""
    source = torch.Generator().manual_seed(0)
    drawn = torch.randn((width, min(count, width)), generator=source, dtype=torch.float64)
    columns: Tensor = torch.linalg.qr(drawn).Q
    return columns.mT


def _positions(x: Tensor) -> Tensor:
    """Return positions [B, L] of sequences without padding."""
    return torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global generator for the initialisation of weights, and restore it."""
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
