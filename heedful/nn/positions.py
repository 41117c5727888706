"""Positions and segments of tokens; sinusoidal, learned and rotary position encodings.

Masks and biases are functions of these positions, never of array indices. A token's position
travels with it, and −1 marks a slot that holds nothing; padding on any side, packed sequences, ring
caches and beams are then all the same case. Shapes: B batch, L length (Lq queries, Lk keys), D
model width, H heads, E head width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.nn.attention.masks import Mask, SameSegment, TokenPositions
from heedful.nn.spec import RotarySpec

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

NOTHING_HERE = -1

_QUERY_AXES = (slice(None), None, slice(None), None)
_KEY_AXES = (slice(None), None, None, slice(None))
"""Indices that give [B, L] the axes of scores, [B, H, Lq, Lk]."""

_T = TypeVar("_T")


def tokens_at(tokens: TokenPositions, index: Any) -> TokenPositions:
    """Return the positions and segments at an index of their tensors."""
    position, segment = tokens
    return TokenPositions(position[index], None if segment is None else segment[index])


_groups: list[ProcessGroup] = []
"""Groups of the entered contexts, the innermost last: a plain list, which compilers can read."""


@contextmanager
def context_parallel(group: ProcessGroup) -> Iterator[None]:
    """Divide sequences along their length among processes, within this context.

    Every process passes its share of the same sequences through the same model: equally many tokens
    each, with their positions in the whole sequence. Attention sends keys and values round a ring
    of the processes (Liu 2023). Only whole sequences can be passed, with gradients or without: no
    caches, and no captures of weights. The backward pass may run outside of the context.

    Args:
        group: processes in the order of the ring.
    """
    _groups.append(group)
    try:
        yield
    finally:
        _groups.pop()


def _current_group() -> ProcessGroup | None:
    return _groups[-1] if _groups else None


# eq=False: tensors compare element by element, so a generated `==` would raise.
@dataclass(frozen=True, eq=False)
class Positions:
    """Positions, and optionally segments, of the queries and keys of one attention.

    Derived results (a visibility mask, distances) are computed once and kept with the value, so all
    layers that share the value share the work.

    Args:
        query: [B, Lq] int64 positions of the queries; −1 marks padding.
        key: [B, Lk] int64 positions of the keys; −1 marks padding or an unused cache slot.
        query_segment: [B, Lq] int64, the packed sequence that each query belongs to.
        key_segment: [B, Lk] int64, the same for keys.
        lineage: [B, Lq, Lk] bool, for rows that several beams share: true where a key belongs to
            the past of the query's own beam.
        counted: flag of rows whose queries and keys are known, without reading them, to stand at
            0, 1, 2 …, none of them padding or of another sequence.

    Attributes:
        group: processes among which the sequences are divided, each with its own queries and
            keys; None where all tokens are in this process. It stays with the value, so that a
            block recomputed for its gradients, perhaps in another thread, is divided as well.
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
        """Make the positions of self-attention, whose queries are its keys.

        Args:
            positions: [B, L] int64, −1 for padding.
            segments: [B, L] int64, the packed sequence of each token.
        """
        return cls(positions, positions, segments, segments)

    @classmethod
    def counting(cls, batch: int, length: int, device: torch.device) -> Self:
        """Make the positions of self-attention over rows without padding, counted from 0.

        Args:
            batch: B.
            length: L.
            device: device of the positions.
        """
        positions = torch.arange(length, device=device).expand(batch, length)
        # Known without reading them, so FlashAttention gets a flag instead of a mask and
        # no device waits.
        return cls(positions, positions, counted=True)

    def at_queries(self, rows: slice | list[int] | Tensor) -> Self:
        """Keep only the queries with these array indices."""
        # `counted` and derived results are dropped: a selection need not begin at position 0.
        segment, lineage = self.query_segment, self.lineage
        return type(self)(
            self.query[:, rows],
            self.key,
            None if segment is None else segment[:, rows],
            self.key_segment,
            None if lineage is None else lineage[:, rows],
        )

    def at_keys(self, columns: slice | Tensor) -> Self:
        """Keep only the keys with these array indices."""
        segment, lineage = self.key_segment, self.lineage
        return type(self)(
            self.query,
            self.key[:, columns],
            self.query_segment,
            None if segment is None else segment[:, columns],
            None if lineage is None else lineage[:, :, columns],
        )

    def derive(self, name: Hashable, compute: Callable[[], _T]) -> _T:
        """Return the result of `compute`, made once for this value under `name`.

        `compute` must depend on nothing but this value and the settings in `name`.
        """
        # Kept here and not in a global cache, so that it is freed together with the batch.
        if name not in self._derived:
            return self.keep(name, compute())
        return cast("_T", self._derived[name])

    def keep(self, name: Hashable, value: _T) -> _T:
        """Keep a derived result under a name, and return it."""
        self._derived[name] = value
        return value

    def within_segments(self, mask: Mask) -> Mask:
        """Return a mask under which sequences that share a row do not see each other.

        It is the mask itself where each row is one sequence, or where it heeds segments already.
        """
        is_packed = self.query_segment is not None or self.key_segment is not None
        return mask & SameSegment() if is_packed and not mask.heeds_segments else mask

    def diagonals(self) -> Tensor | None:
        """Return the ascending distances of the diagonals [Lq + Lk − 1]; None if unknown."""
        if not self.counted:
            return None
        # Query i and key j stand on diagonal j − i, from 1 − Lq to Lk − 1.
        return torch.arange(1 - self.query.shape[1], self.key.shape[1], device=self.key.device)

    def distance(self) -> Tensor:
        """Return key minus query position, [B, Lq, Lk] int64; undefined where one is −1."""
        return self.derive("distance", lambda: self.key[:, None, :] - self.query[:, :, None])

    def visible(self, mask: Mask) -> Tensor:
        """Return the keys that each query may see: the mask allows them, and neither is padding.

        Returns:
            Bool [B|1, H|1, Lq, Lk].
        """
        name = ("visible", mask)
        if name not in self._derived:
            queries = tokens_at(TokenPositions(self.query, self.query_segment), _QUERY_AXES)
            keys = tokens_at(TokenPositions(self.key, self.key_segment), _KEY_AXES)
            # Padding and empty slots are hidden here, once, so that no mask has to know of them.
            real = (queries.position >= 0) & (keys.position >= 0)
            # Heads stay 1, as no mask differs by head.
            seen = real & mask.sees(queries, keys)
            # One more condition on pairs, so masks and biases know nothing of beams.
            if self.lineage is not None:
                seen = seen & self.lineage[:, None]
            return self.keep(name, seen)
        found: Tensor = self._derived[name]
        return found


def picture(mask: Mask, positions: Positions) -> str:
    """Draw a mask as text: a line per query, a column per key, ■ visible, · hidden.

    Args:
        mask: mask to draw.
        positions: positions of the tokens; only the first row of the batch is drawn.
    """
    visible = positions.visible(mask)[0, 0].tolist()
    return "\n".join("".join("■" if seen else "·" for seen in row) for row in visible)


class SinusoidalPositions(nn.Module):
    """Sines and cosines with wavelengths in a geometric progression (Vaswani 2017, section 3.5).

    Even channels hold sines and odd ones cosines, or the first half sines and the second cosines.
    Any position can be encoded, and there are no parameters.

    Args:
        width: model width D.
        layout: `pairs` for interleaved sines and cosines, `halves` for sines before cosines.
    """

    def __init__(self, width: int, layout: Literal["pairs", "halves"] = "pairs") -> None:
        super().__init__()
        self.width = width
        self.layout = layout

    def forward(self, positions: Tensor) -> Tensor:
        """Encode positions.

        Args:
            positions: [B, L] int64, −1 for padding.

        Returns:
            [B, L, D] float32; zeros for padding.
        """
        table = sinusoids(positions.flatten(), self.width, self.layout)
        encodings: Tensor = table.unflatten(0, positions.shape)
        return encodings.masked_fill((positions < 0)[..., None], 0.0)


class _PositionTable(nn.Module):
    """Base class of trained vectors for positions up to a last one.

    Args:
        max_length: number of positions.
        what: the positions in the sentence "Position 9 lies past …".
        remedy: advice to the user whose sequence is too long.
        unused_rows: rows of the table before that of position 0.
    """

    def __init__(self, max_length: int, what: str, remedy: str, unused_rows: int = 0) -> None:
        super().__init__()
        self.max_length = max_length
        self.unused_rows = unused_rows
        self._past = f"{what}, which end at {max_length - 1}", remedy

    def table(self) -> Tensor:
        """Return the vectors of all positions after `unused_rows` others, [P, D]."""
        raise NotImplementedError

    def forward(self, positions: Tensor) -> Tensor:
        """Look up the vectors of positions.

        Args:
            positions: [B, L] int64, −1 for padding.

        Returns:
            [B, L, D]; zeros for padding.

        Raises:
            ModelError: when a position lies past the table.
        """
        check_below(positions, self.max_length, *self._past)
        # Padding at −1 is no valid index: it looks up position 0, and its result is set to zero.
        rows = nn.functional.embedding(positions.clamp(min=0) + self.unused_rows, self.table())
        return rows.masked_fill((positions < 0)[..., None], 0.0)


class LearnedPositions(_PositionTable):
    """A trained vector for each position (Gehring 2017; Devlin 2019).

    Args:
        width: model width D.
        max_length: number of positions.
        unused_rows: rows of the table before that of position 0 (fairseq kept two for padding).
    """

    def __init__(self, width: int, max_length: int, unused_rows: int = 0) -> None:
        remedy = f"Use at most {max_length} tokens, or a model with sinusoidal or rotary positions"
        super().__init__(max_length, "the learned positions", remedy, unused_rows)
        self.weight = nn.Parameter(torch.empty(unused_rows + max_length, width))
        nn.init.normal_(self.weight, std=width**-0.5)

    def table(self) -> Tensor:
        """Return the parameter itself."""
        return self.weight


class AxisPositions(_PositionTable):
    """A trained vector for each coordinate: rows and columns of an image, or a place in a line.

    A sequence consists of fields of known sizes, one after the other. A position gives the place in
    its field, as an array index gives a place in an array in row-major order, and its vector is the
    sum of one for each of the place's coordinates (Parmar 2018, section 3).

    Args:
        width: model width D.
        axes: sizes of the axes of each field, in the order of the fields.
    """

    def __init__(self, width: int, axes: tuple[tuple[int, ...], ...]) -> None:
        length = sum(map(math.prod, axes))
        remedy = f"Give sequences of at most {length} tokens"
        super().__init__(length, "the fields of the sequence", remedy)
        self.axes = axes
        self.weight = nn.Parameter(torch.empty(sum(map(sum, axes)), width))
        # A place has about two coordinates, whose sum has the variance of one learned position.
        nn.init.normal_(self.weight, std=(2 * width) ** -0.5)

    def table(self) -> Tensor:
        """Return the vector of every position [P, D]."""
        fields, first = [], 0
        for sizes in self.axes:
            field = self.weight.new_zeros(*sizes, self.weight.shape[1])
            for axis, size in enumerate(sizes):
                # Broadcast along every axis of the field but its own.
                shape = [1] * len(sizes) + [-1]
                shape[axis] = size
                field = field + self.weight[first : first + size].reshape(shape)
                first += size
            fields.append(field.flatten(0, -2))
        return torch.cat(fields)


class Rotary(nn.Module):
    """Rotary position embedding: rotates pairs of channels by angles proportional to the position.

    A score then depends on the distance of query and key alone (Su 2021, section 3.2).

    Args:
        width: head width E.
        spec: base, layout of the pairs, rotated width, scaling.

    Raises:
        ConfigError: when the rotated width is odd or wider than a head.
    """

    def __init__(self, width: int, spec: RotarySpec | None = None) -> None:
        super().__init__()
        from heedful.nn.rotary_frequencies import frequencies  # not all models rotate

        spec = spec or RotarySpec()
        self.spec = spec
        self.layout = spec.layout
        # Python floats: buffers would lose precision when the model is cast to bfloat16.
        self.frequencies = frequencies(spec, width)
        self.temperature = spec.attention_factor()
        self.rotated = 2 * len(self.frequencies)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys.

        Args:
            x: [B, H, L, E].
            positions: [B, L] int64; the result is arbitrary but finite where they are −1.

        Returns:
            [B, H, L, E] in the dtype of x. The temperature multiplies the rotated channels, once
            of the queries and once of the keys.
        """
        cosine, sine = (each[:, None] for each in self.cos_sin(positions))  # [B, 1, L, pairs]
        to_rotate, untouched = x[..., : self.rotated], x[..., self.rotated :]
        # Multiplied in float32 and rounded once: bfloat16 would round each of the four terms.
        first, second = self._split(to_rotate.to(torch.promote_types(x.dtype, torch.float32)))
        rotated = self._join(
            first * cosine - second * sine,
            second * cosine + first * sine,
        ).to(x.dtype)
        return torch.cat([rotated, untouched], dim=-1) if untouched.shape[-1] else rotated

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the rotation angle of each pair, times the temperature.

        Args:
            positions: [B, L] int64.

        Returns:
            [B, L, rotated / 2] float32 each.
        """
        frequencies = constant(positions.device, self.frequencies)
        # float32 holds every position below 2²⁴ exactly.
        angles = positions[..., None].to(torch.float32) * frequencies
        return angles.cos() * self.temperature, angles.sin() * self.temperature

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and the second channel of each pair, [..., rotated / 2] each."""
        # RoFormer and GPT-J interleave the pairs; GPT-NeoX, and LLaMA as Hugging Face stores it,
        # split the head into halves.
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
    """Return numbers as a tensor on a device, cached: each copy to a GPU would wait for it."""
    # A cached tensor made in inference mode could not take part in a later training step.
    with torch.inference_mode(False):
        return torch.tensor(numbers, device=device)


def forget_constants() -> None:
    """Clear the cache of `constant`: tensors made while a graph is exported are only symbols."""
    constant.cache_clear()


def sinusoids(positions: Tensor, width: int, layout: Literal["pairs", "halves"]) -> Tensor:
    """Return sinusoids [n, D] float32 of positions [n], on a device that has float64."""
    even = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    frequencies = torch.exp(even * (-math.log(10_000.0) / width))
    # Angles of large positions, rounded to float32, would be off by more than sine and cosine may.
    angles = positions.to(torch.float64)[:, None] * frequencies
    parts = [angles.sin(), angles.cos()]
    table = torch.stack(parts, -1).flatten(-2) if layout == "pairs" else torch.cat(parts, -1)
    return table[:, :width].to(torch.float32)  # an odd width drops the last cosine


@torch.library.custom_op("heedful::check_below", mutates_args=())
def _check_below(positions: Tensor, limit: int, past: str, remedy: str) -> None:
    if positions.numel() and (last := int(positions.max())) >= limit:
        raise ModelError(f"Position {last} lies past {past}", remedy=remedy)


@_check_below.register_fake
def _check_nothing(positions: Tensor, limit: int, past: str, remedy: str) -> None:
    """Skip the check while a graph is traced: its tensors have shapes and no values."""


@_check_below.register_kernel("cuda")
def _check_later(positions: Tensor, limit: int, past: str, remedy: str) -> None:
    """Assert on the device, since reading the values would make the host wait for it."""
    torch._assert_async((positions < limit).all())


def check_below(positions: Tensor, limit: int, past: str, remedy: str) -> None:
    """Refuse positions past the end of a table.

    It is a custom operator, which compilers do not look into: they cannot read values.

    Args:
        positions: [...] int64.
        limit: number of positions in the table.
        past: end of the sentence "Position 9 lies past …".
        remedy: advice to the user whose sequence is too long.

    Raises:
        ModelError: when a position lies at the limit or past it.
    """
    _check_below(positions, limit, past, remedy)
