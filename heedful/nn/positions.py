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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.nn.spec import RotarySpec

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

NOTHING_HERE = -1

_T = TypeVar("_T")


class Visibility(Protocol):
    """The protocol of a mask, as positions use it: hashable, since results are kept by it."""

    def allow(self, positions: Positions) -> Tensor:
        """Return the pairs that are allowed, bool [B|1, H|1, Lq, Lk]; see `masks.Mask`."""

    def __hash__(self) -> int:
        """Return the hash of kind and settings."""


_groups: list[ProcessGroup] = []
"""Of the contexts that are entered, the innermost last: a plain list, which compilers can read."""


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
    _groups.append(group)
    try:
        yield
    finally:
        _groups.pop()


def _current_group() -> ProcessGroup | None:
    return _groups[-1] if _groups else None


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
        counted: whether it is known, without looking, that queries and keys of each row stand at
            0, 1, 2 … and that none is padding or of another sequence.

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
    counted: bool = False
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

    @classmethod
    def counting(cls, batch: int, length: int, device: torch.device) -> Self:
        """Self-attention of whole rows: a token in every place, counted from 0.

        Args:
            batch: B.
            length: L.
            device: of the positions.
        """
        positions = torch.arange(length, device=device).expand(batch, length)
        return cls(positions, positions, counted=True)

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
        if name not in self._derived:
            return self.keep(name, compute())
        return cast("_T", self._derived[name])

    def keep(self, name: Hashable, value: _T) -> _T:
        """Keep what was derived of this value under a name, and return it."""
        self._derived[name] = value
        return value

    def diagonals(self) -> Tensor | None:
        """Distances of the diagonals [Lq + Lk − 1], lowest first; None unless they are known."""
        if not self.counted:
            return None
        return torch.arange(1 - self.query.shape[1], self.key.shape[1], device=self.key.device)

    def distance(self) -> Tensor:
        """Key position minus query position, [B, Lq, Lk] int64; meaningless where either is −1."""
        return self.derive("distance", lambda: self.key[:, None, :] - self.query[:, :, None])

    def visible(self, mask: Visibility) -> Tensor:
        """Return the keys that each query may see: allowed by the mask, both of them really there.

        Returns:
            Bool [B|1, H|1, Lq, Lk].
        """
        name = ("visible", mask)
        if name not in self._derived:
            real = (self.query >= 0)[:, None, :, None] & (self.key >= 0)[:, None, None, :]
            seen = real & mask.allow(self)
            if self.lineage is not None:
                seen = seen & self.lineage[:, None]
            return self.keep(name, seen)
        found: Tensor = self._derived[name]
        return found


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
        waves = sinusoids(positions.flatten(), self.width, self.layout)
        encodings: Tensor = waves.unflatten(0, positions.shape)
        return encodings.masked_fill((positions < 0)[..., None], 0.0)


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
        check_below(
            positions,
            self.max_length,
            f"the learned positions, which end at {self.max_length - 1}",
            f"Use at most {self.max_length} tokens, or a model with sinusoidal or rotary positions",
        )
        rows = nn.functional.embedding(positions.clamp(min=0) + self.unused_rows, self.weight)
        return rows.masked_fill((positions < 0)[..., None], 0.0)


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
        frequencies = constant(positions.device, self.frequencies)
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


@functools.lru_cache(maxsize=64)
def constant(device: torch.device, numbers: tuple[Any, ...]) -> Tensor:
    """Return numbers as a tensor on a device; to bring them to a GPU anew would wait for it."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, device=device)


def forget_constants() -> None:
    """Forget the tensors of `constant`: an exporter's stand for numbers, and hold none."""
    constant.cache_clear()


def sinusoids(positions: Tensor, width: int, layout: Literal["pairs", "halves"]) -> Tensor:
    """[n, D] float32 for positions [n] on a device that has float64, as processors do."""
    even = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    frequencies = torch.exp(even * (-math.log(10_000.0) / width))
    # Float32 angles of large positions would be off by more than their waves may be.
    angles = positions.to(torch.float64)[:, None] * frequencies
    waves = [angles.sin(), angles.cos()]
    table = torch.stack(waves, -1).flatten(-2) if layout == "pairs" else torch.cat(waves, -1)
    return table[:, :width].to(torch.float32)


@torch.library.custom_op("heedful::check_below", mutates_args=())
def _check_below(positions: Tensor, limit: int, past: str, remedy: str) -> None:
    if positions.numel() and (last := int(positions.max())) >= limit:
        raise ModelError(f"Position {last} lies past {past}", remedy=remedy)


@_check_below.register_fake
def _check_nothing(positions: Tensor, limit: int, past: str, remedy: str) -> None:
    """Check nothing while shapes alone are computed."""


@_check_below.register_kernel("cuda")
def _check_later(positions: Tensor, limit: int, past: str, remedy: str) -> None:
    """Let the device stop by itself: to read the values would wait for it."""
    torch._assert_async((positions < limit).all())


def check_below(positions: Tensor, limit: int, past: str, remedy: str) -> None:
    """Refuse positions past the end of a table.

    It is an operation of its own, so that compilers pass it by: they cannot look at values.

    Args:
        positions: [...] int64.
        limit: number of positions in the table.
        past: end of the sentence "Position 9 lies past …".
        remedy: for the person whose text is too long.

    Raises:
        ModelError: when a position lies at the limit or past it.
    """
    _check_below(positions, limit, past, remedy)
