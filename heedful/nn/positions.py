"""Positions and segments of tokens, which masks and biases are made from; waves and rotations.

Attention never looks at array indices. A token's place is a number that travels with it, and −1
marks a slot that holds nothing; padding on any side, packed sequences, ring caches and beams are
then all the same case. Shapes: B batch, L length (Lq queries, Lk keys), D model width, H heads, E
head width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.nn.spec import RotarySpec

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from heedful.nn.attention.masks import Mask

NOTHING_HERE = -1

_FEWEST_ROWS = 64
_TABLE_ROWS = 1 << 14
"""Sinusoids of positions below are kept once computed: 67 MB for a width of 512 at most."""

_T = TypeVar("_T")

_group: ContextVar[ProcessGroup | None] = ContextVar("context-parallel group", default=None)


@contextmanager
def context_parallel(group: ProcessGroup) -> Iterator[None]:
    """A context in which sequences are divided along their length among processes.

    Every process passes its share of the same sequences through the same model: as many tokens as
    the others, with their positions in the whole. Attention sends keys and values round a ring of
    the processes (Liu 2023). Only whole sequences can be passed, with gradients or without: no
    caches, and no captures of weights. A backward pass may come later, outside.

    Args:
        group: the processes, in the order of the ring.
    """
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def _current_group() -> ProcessGroup | None:
    # A graph cannot read it. Blocks that are compiled are given positions made outside.
    return None if torch.compiler.is_compiling() else _group.get()


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions, and optionally segments, of the queries and keys of one attention.

    What is derived from a value (a visibility mask, distances) is computed once and kept with it,
    so all layers that share the value share the work.

    Args:
        query: [B, Lq] int64 positions of the queries; −1 marks padding.
        key: [B, Lk] int64 positions of the keys; −1 marks padding or an unused cache slot.
        query_segment: [B, Lq] int64 numbers of the packed sequence a query belongs to.
        key_segment: [B, Lk] int64, the same for keys.
        lineage: [B, Lq, Lk] bool, where a row holds several continuations of one text: which keys
            are of the past of the continuation that a query belongs to.

    Attributes:
        group: the processes among which the sequences are divided, each with its own queries and
            keys; None where all are here. It stays with the value, so that a pass that is repeated
            for its gradients, maybe in another thread, is divided too.
    """

    query: Tensor
    key: Tensor
    query_segment: Tensor | None = None
    key_segment: Tensor | None = None
    lineage: Tensor | None = None
    group: ProcessGroup | None = field(default_factory=_current_group, init=False, repr=False)
    _derived: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of_self(cls, positions: Tensor, segments: Tensor | None = None) -> Self:
        """Self-attention: the queries are the keys.

        Args:
            positions: [B, L] int64, −1 where there is nothing.
            segments: [B, L] int64, the packed sequence of each token.
        """
        return cls(positions, positions, segments, segments)

    def between_queries(self, start: int, stop: int) -> Self:
        """Only the queries with array indices from `start` up to `stop`."""
        return self.at_queries(slice(start, stop))

    def at_queries(self, rows: slice | list[int] | Tensor) -> Self:
        """Only the queries with these array indices."""
        segment, lineage = self.query_segment, self.lineage
        return type(self)(
            self.query[:, rows],
            self.key,
            None if segment is None else segment[:, rows],
            self.key_segment,
            None if lineage is None else lineage[:, rows],
        )

    def between_keys(self, start: int, stop: int) -> Self:
        """Only the keys with array indices from `start` up to `stop`."""
        return self.at_keys(slice(start, stop))

    def at_keys(self, columns: slice | Tensor) -> Self:
        """Only the keys with these array indices."""
        segment, lineage = self.key_segment, self.lineage
        return type(self)(
            self.query,
            self.key[:, columns],
            self.query_segment,
            None if segment is None else segment[:, columns],
            None if lineage is None else lineage[:, :, columns],
        )

    def derive(self, name: Hashable, compute: Callable[[], _T]) -> _T:
        """The result of `compute`, made once for this value under `name`.

        `compute` must depend on this value and on what `name` says, and on nothing else.
        """
        if torch.compiler.is_dynamo_compiling():  # the next block's graph would be another one
            return compute()
        if name not in self._derived:
            self._derived[name] = compute()
        return cast("_T", self._derived[name])

    def distance(self) -> Tensor:
        """Key position minus query position, [B, Lq, Lk] int64; meaningless where either is −1."""
        return self.derive("distance", lambda: self.key[:, None, :] - self.query[:, :, None])

    def visible(self, mask: Mask) -> Tensor:
        """Return the keys that each query may see: allowed by the mask, both of them really there.

        Returns:
            Bool [B|1, H|1, Lq, Lk].
        """
        return self.derive(("visible", mask), lambda: self._visible(mask))

    def shows_all(self, mask: Mask) -> bool:
        """Return whether every query is known to see every key, so that no mask is needed.

        On an accelerator it is not known: looking would wait for the device. Nor is it while a
        graph is made, which must serve any positions.
        """
        if not self._may_look():
            return False
        return self.derive(("shows all", mask), lambda: bool(self.visible(mask).all()))

    def may_have_blind_rows(self, mask: Mask) -> bool:
        """Return whether some query may see no key at all; on an accelerator, always."""
        if not self._may_look():
            return True
        return self.derive(("blind rows", mask), lambda: not bool(self.visible(mask).any(-1).all()))

    def _visible(self, mask: Mask) -> Tensor:
        real = (self.query >= 0)[:, None, :, None] & (self.key >= 0)[:, None, None, :]
        seen = real & mask.allow(self)
        return seen if self.lineage is None else seen & self.lineage[:, None]

    def _may_look(self) -> bool:
        return self.key.device.type == "cpu" and not torch.compiler.is_compiling()


class SinusoidalPositions(nn.Module):
    """Sine and cosine waves of geometrically growing length (Vaswani 2017, section 3.5).

    Even channels hold sines, odd ones cosines; or the first half sines, the second cosines. Any
    position can be computed; nothing is learned.

    Args:
        width: model width D.
        layout: `pairs` or `halves`.
    """

    def __init__(self, width: int, layout: Literal["pairs", "halves"] = "pairs") -> None:
        super().__init__()
        self.width = width
        self.layout = layout

    def forward(self, positions: Tensor) -> Tensor:
        """Encode positions.

        Args:
            positions: [B, L] int64, −1 where there is nothing.

        Returns:
            [B, L, D] float32; zeros where there is nothing.
        """
        table_and_first = self.table(positions)
        if table_and_first is not None:
            table, first = table_and_first
            return nn.functional.embedding(positions + first, table)
        if torch.compiler.is_dynamo_compiling():  # one kernel computes them all, and need not look
            waves = sinusoids(positions.flatten(), self.width, self.layout)
            waves = waves.unflatten(0, positions.shape)
        else:
            distinct, row = torch.unique(positions, return_inverse=True)
            waves = nn.functional.embedding(
                row, sinusoids(distinct.cpu(), self.width, self.layout).to(positions.device)
            )
        return waves.masked_fill((positions < 0)[..., None], 0.0)

    def table(self, positions: Tensor) -> tuple[Tensor, int] | None:
        """Encodings [P, D] of these positions among others, and the row of position 0.

        Before it there is a row of zeros. None where no table is kept for them.
        """
        if not positions.numel() or torch.compiler.is_compiling():  # a graph cannot look
            return None
        last = int(positions.max())
        if last >= _TABLE_ROWS:
            return None
        rows = 1 << max(last + 1, _FEWEST_ROWS).bit_length()
        return _sinusoid_table(self.width, self.layout, rows, positions.device), 1


class LearnedPositions(nn.Module):
    """A learned vector per position (Gehring 2017; Devlin 2019).

    Args:
        width: model width D.
        max_length: number of positions.
        unused_rows: rows of the table before that of position 0 (fairseq kept two for padding).
    """

    def __init__(self, width: int, max_length: int, unused_rows: int = 0) -> None:
        super().__init__()
        self.max_length = max_length
        self.unused_rows = unused_rows
        self.weight = nn.Parameter(torch.empty(unused_rows + max_length, width))
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, positions: Tensor) -> Tensor:
        """Look positions up.

        Args:
            positions: [B, L] int64, −1 where there is nothing.

        Returns:
            [B, L, D]; zeros where there is nothing.

        Raises:
            ModelError: when a position lies past the table.
        """
        padded = True
        if positions.numel() and not torch.compiler.is_compiling():  # a graph cannot look
            first, last = (int(bound) for bound in positions.aminmax())
            padded = first < 0
            if last >= self.max_length:
                raise ModelError(
                    f"Position {last} lies past the learned positions, "
                    f"which end at {self.max_length - 1}",
                    remedy=f"Use at most {self.max_length} tokens, "
                    "or a model with sinusoidal or rotary positions",
                )
        rows = nn.functional.embedding(positions.clamp(min=0) + self.unused_rows, self.weight)
        return rows.masked_fill((positions < 0)[..., None], 0.0) if padded else rows

    def table(self, positions: Tensor) -> tuple[Tensor, int]:
        """Its rows, and the row of position 0."""
        return self.weight, self.unused_rows


class Rotary(nn.Module):
    """Turns pairs of channels by angles proportional to the position. Nothing is learned.

    Args:
        width: head width E.
        spec: base, layout of the pairs, rotated width, scaling.

    Raises:
        ConfigError: when the rotated width is odd or wider than a head.
    """

    def __init__(self, width: int, spec: RotarySpec) -> None:
        super().__init__()
        self.spec = spec
        self.layout = spec.layout
        # Plain numbers: buffers would lose precision when the model is cast to bfloat16.
        self.frequencies = spec.frequencies(width)
        self.temperature = spec.attention_factor()
        self.rotated = 2 * len(self.frequencies)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys.

        Args:
            x: [B, H, L, E].
            positions: [B, L] int64; what stands at −1 comes out arbitrary, but finite.

        Returns:
            [B, H, L, E] in the type of x. The temperature is applied to the rotated channels, so
            it acts once on queries and once on keys.
        """
        cosine, sine = (each[:, None] for each in self.waves(positions))
        turned, untouched = x[..., : self.rotated], x[..., self.rotated :]
        first, second = self._split(turned.to(torch.promote_types(x.dtype, torch.float32)))
        rotated = self._join(
            first * cosine - second * sine,
            second * cosine + first * sine,
        ).to(x.dtype)
        return torch.cat([rotated, untouched], dim=-1) if untouched.shape[-1] else rotated

    def waves(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angle that each pair is turned by, times the temperature.

        Args:
            positions: [B, L] int64.

        Returns:
            [B, L, rotated / 2] float32 each.
        """
        frequencies = _on(positions.device, self.frequencies)
        angles = positions[..., None].to(torch.float32) * frequencies
        return angles.cos() * self.temperature, angles.sin() * self.temperature

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two channels of each pair."""
        if self.layout == "pairs":
            return x[..., 0::2], x[..., 1::2]
        half = self.rotated // 2
        return x[..., :half], x[..., half:]

    def _join(self, first: Tensor, second: Tensor) -> Tensor:
        if self.layout == "pairs":
            return torch.stack([first, second], dim=-1).flatten(-2)
        return torch.cat([first, second], dim=-1)


def _on(device: torch.device, frequencies: tuple[float, ...]) -> Tensor:
    """The frequencies there; to bring them to a GPU anew would wait for it."""
    if torch.compiler.is_compiling():
        return torch.tensor(frequencies, device=device)
    return _kept_on(device, frequencies)


@functools.lru_cache(maxsize=64)
def _kept_on(device: torch.device, frequencies: tuple[float, ...]) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(frequencies, device=device)


@functools.lru_cache(maxsize=8)
def _sinusoid_table(
    width: int, layout: Literal["pairs", "halves"], rows: int, device: torch.device
) -> Tensor:
    """[rows + 1, D]: zeros, for position −1, and the encodings of positions 0 to rows − 1."""
    with torch.inference_mode(False):
        waves = sinusoids(torch.arange(rows), width, layout)
        return torch.cat([waves.new_zeros(1, width), waves]).to(device)


def sinusoids(positions: Tensor, width: int, layout: Literal["pairs", "halves"]) -> Tensor:
    """[n, D] float32 for positions [n] on a device that has float64, as processors do."""
    even = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    frequencies = torch.exp(even * (-math.log(10_000.0) / width))
    # Float32 angles of large positions would be off by more than their waves may be.
    angles = positions.to(torch.float64)[:, None] * frequencies
    waves = [angles.sin(), angles.cos()]
    table = torch.stack(waves, -1).flatten(-2) if layout == "pairs" else torch.cat(waves, -1)
    return table[:, :width].to(torch.float32)
