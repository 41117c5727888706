"""The block every architecture here is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.models.spec import BlockSpec, KeptHeadsSpec
from heedful.nn.attention import Attention, KeyValues
from heedful.nn.biases import Bias
from heedful.nn.cache import KeyValueCache
from heedful.nn.capture import Capture, offer
from heedful.nn.dropout import Dropout
from heedful.nn.feedforward import FeedForward
from heedful.nn.moe import MixtureOfExperts, build_feedforward
from heedful.nn.norms import build_norm
from heedful.nn.positions import Positions
from heedful.nn.residual import add_and_norm, add_residual, normed
from heedful.nn.sublayer import Ending
from heedful.nn.unpadding import RealRows


@dataclass(frozen=True)
class Sight:
    """What a stack's blocks have in common in one pass: who stands where, and what to keep.

    Args:
        self_positions: of the input, for self-attention.
        memory_positions: of the input's queries and the memory's keys, for cross-attention.
        biases: position biases all blocks share.
        capture: what to keep of the pass.
        rows: where the rows of the input stand, if it comes without its padding.
    """

    self_positions: Positions
    memory_positions: Positions | None = None
    biases: Sequence[Bias] = ()
    capture: Capture | None = None
    rows: RealRows | None = None


RunningBlock = Callable[
    [Tensor, Sight, KeyValues | None, KeyValueCache | None, str],
    tuple[Tensor, KeyValueCache | None],
]
"""Another way to compute a block that is not trained any more: of input, sight, memory, cache and
address. Of what may be captured it knows `SHOWN_RUNNING` alone."""

SHOWN_RUNNING = ("self.weights", "cross.weights")


class Block(nn.Module):
    """Self-attention, cross-attention where the spec has it, feed-forward; each with a residual.

    Args:
        width: model width D.
        spec: the parts, where the norms stand, dropout on each part's output.
        kept: the heads that pruning left; all if None.

    Attributes:
        cut: sub-layers (`self`, `cross`, `feedforward`) whose residual connection is taken away,
            to see what it is for.
        running: computes the block faster where no more is to be seen of its inside than it shows.
    """

    def __init__(self, width: int, spec: BlockSpec, kept: KeptHeadsSpec | None = None) -> None:
        super().__init__()
        kept = kept or KeptHeadsSpec()
        self.cut: frozenset[str] = frozenset()
        self.running: RunningBlock | None = None
        self.norm_first = spec.norm_placement == "pre"
        self.self_attention = Attention(width, spec.self_attention, kept=kept.self_attention)
        self.self_attention_norm = build_norm(spec.norm, width)
        self.cross_attention: Attention | None = None
        self.cross_attention_norm: nn.Module | None = None
        if spec.cross_attention is not None:
            self.cross_attention = Attention(
                width, spec.cross_attention, memory=True, kept=kept.cross_attention
            )
            self.cross_attention_norm = build_norm(spec.norm, width)
        self.feedforward = build_feedforward(width, spec.feedforward)
        self.feedforward_norm = build_norm(spec.norm, width)
        self.dropout = Dropout(spec.dropout)

    @property
    def runs_unpadded(self) -> bool:
        """Whether `running` computes this block, of rows without their padding too."""
        return (
            self.running is not None
            and not self.cut
            and self.self_attention.position_bias is None  # made for each slot
        )

    def forward(
        self,
        x: Tensor,
        sight: Sight,
        *,
        memory: KeyValues | None = None,
        cache: KeyValueCache | None = None,
        address: str = "",
    ) -> tuple[Tensor, KeyValueCache | None]:
        """Transform `x` [B, L, D].

        A capture may ask, at `{address}.self`, `.cross` and `.feedforward`, for [B, L, D]: the
        `input` that part reads, the `output` it adds to the stream, the `residual` that is their
        sum, and the `stream` that goes on, which is the sum, normed where norms come last.

        Self-attention has the rows of its positions. Where each of W beams has a row of its own
        there, x [B, W·n, D] with n new tokens of each is seen as [B·W, n, D]; elsewhere as it is.
        Without its padding x is [1, R, D], the R rows that the sight tells the places of.

        Returns:
            [B, L, D], and the cache with x's tokens appended (None if none was given).
        """
        capture = sight.capture
        looked_into = capture is not None and capture.concerns(address, besides=SHOWN_RUNNING)
        if self.running is not None and not looked_into and not self.cut:
            return self.running(x, sight, memory, cache, address)
        norms = self._norms()
        y = self._read(x, next(norms), capture)
        x, y, cache = self._attend(x, y, sight, next(norms), cache, f"{address}.self")
        if self.cross_attention is not None:
            assert memory is not None
            x, y = self._attend_over(x, y, sight, next(norms), memory, f"{address}.cross")
        return self._feed(x, y, sight, next(norms), f"{address}.feedforward"), cache

    def _attend(
        self,
        x: Tensor,
        y: Tensor,
        sight: Sight,
        norm: nn.Module | None,
        cache: KeyValueCache | None,
        place: str,
    ) -> tuple[Tensor, Tensor, KeyValueCache | None]:
        """Self-attention of y, and what follows: the stream, what is read of it next, the cache."""
        attention, positions = self.self_attention, sight.self_positions
        if cache is None and self._joins(sight):
            found = attention.joined(
                x, y, positions, self._ending(norm), biases=sight.biases, rows=sight.rows
            )
            if found is not None:
                return *found, None
        offer(sight.capture, f"{place}.input", y)
        if sight.rows is None:
            y = y.reshape(positions.query.shape[0], -1, y.shape[-1])
        attended, cache = attention(
            y,
            positions,
            rows=sight.rows,
            cache=cache,
            biases=sight.biases,
            capture=sight.capture,
            address=place,
        )
        return *self._add(x, attended.view_as(x), norm, sight.capture, place), cache

    def _attend_over(
        self,
        x: Tensor,
        y: Tensor,
        sight: Sight,
        norm: nn.Module | None,
        memory: KeyValues,
        place: str,
    ) -> tuple[Tensor, Tensor]:
        """Attention over a memory, and what follows: the stream and what is read of it next."""
        attention, positions, rows = self.cross_attention, sight.memory_positions, sight.rows
        assert attention is not None and positions is not None
        if self._joins(sight):
            ending = self._ending(norm)
            found = attention.joined(x, y, positions, ending, rows=rows, memory=memory)
            if found is not None:
                return found
        offer(sight.capture, f"{place}.input", y)
        seen = attention.over(y, memory, positions, rows=rows, capture=sight.capture, address=place)
        return self._add(x, seen, norm, sight.capture, place)

    def _feed(
        self, x: Tensor, y: Tensor, sight: Sight, norm: nn.Module | None, place: str
    ) -> Tensor:
        """The feed-forward network, and what follows: the stream."""
        network, capture = self.feedforward, sight.capture
        if self._joins(sight) and isinstance(network, FeedForward):
            found = network.joined(x, y, self._ending(norm))
            if found is not None:
                return found[0]
        offer(capture, f"{place}.input", y)
        if isinstance(network, MixtureOfExperts):
            positions = sight.self_positions.query if sight.rows is None else sight.rows.positions
            fed: Tensor = network(y, positions.reshape(y.shape[:2]), capture, place)
        else:
            fed = network(y, capture, place)
        return self._add(x, fed, norm, capture, place)[0]

    def _joins(self, sight: Sight) -> bool:
        """Whether a part may be one call with all that follows it up to the next."""
        if self.cut or sight.capture is not None or torch.compiler.is_compiling():
            return False
        return self.training

    def _ending(self, norm: nn.Module | None) -> Ending:
        return Ending(norm, self.dropout.probability, not self.norm_first)

    def _norms(self) -> Iterator[nn.Module | None]:
        """The norm ahead of the first part, then the one after each part's sum."""
        norms = (self.self_attention_norm, self.cross_attention_norm, self.feedforward_norm)
        present = [norm for norm in norms if norm is not None]
        return iter([*present, None] if self.norm_first else [None, *present])

    def _read(self, x: Tensor, norm: nn.Module | None, capture: Capture | None) -> Tensor:
        return x if norm is None else normed(x, norm, self.training and capture is None)

    def _add(
        self,
        x: Tensor,
        change: Tensor,
        norm: nn.Module | None,
        capture: Capture | None,
        place: str,
    ) -> tuple[Tensor, Tensor]:
        """The stream that goes on after a part, and what the next part reads of it."""
        if capture is None and not self.cut:
            if self.norm_first and norm is not None:
                return add_and_norm(x, change, self.dropout.probability, norm, self.training)
            x = add_residual(x, change, self.dropout.probability, norm, self.training)
            return x, x
        offer(capture, f"{place}.output", change)
        change = self.dropout(change)
        whole = not self.cut or place.rpartition(".")[2] not in self.cut
        x = x + change if whole else change
        offer(capture, f"{place}.residual", x)
        y: Tensor = x if norm is None else norm(x)
        stream = x if self.norm_first else y
        offer(capture, f"{place}.stream", stream)
        return stream, y
