"""The share of every batch on which each process trains: some of its examples, or of their tokens.

An update has the same batches for any number of processes. If the batches are as many as the
processes, or a multiple, each process takes whole ones; otherwise the examples of each batch are
divided into parts. Dropout is seeded by part, not by process, so a run can be resumed with another
number of processes and computes the same.

With context parallelism (Liu 2023) batches are divided along their length as well. Each process
gets the same share of every sequence and passes it through the whole model; attention alone looks
beyond it (`nn/attention/kernels/ring.py`). Losses stay sums over the tokens a process has, and
gradients of parameters are summed over the processes as in data parallelism. Under a causal mask
later tokens see more, so equal stretches would be unequal work: with four processes the last would
compute 7/16 of all scores. A sequence is cut into twice as many chunks as there are processes, and
each gets one from the front and its mirror image from the back (the zigzag of Megatron-LM and
ring-flash-attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.data.batches import NO_TARGET, PairBatch, RowBatch, WindowBatch, tensors_of
from heedful.errors import ConfigError, DataError
from heedful.nn.positions import NOTHING_HERE
from heedful.train.batch_source import Batch, DataPosition, Prefetched, Source, pin_batch
from heedful.train.objective import adds_penalties
from heedful.train.objective_settings import ObjectiveSettings
from heedful.train.splitting import BatchPart, stand_in

_Batch = TypeVar("_Batch", bound=Batch)

_FILLERS = {
    # Every mask hides this position, so filled slots need no code in attention.
    "positions": NOTHING_HERE,
    "source_positions": NOTHING_HERE,
    "target_positions": NOTHING_HERE,
    "targets": NO_TARGET,
}
"""Values that pad a sequence to a multiple of twice the processes; other tensors get 0."""

_DIVISIBLE = ("attention", "feedforward")
"""Kinds of parts that use token positions only, or look at single tokens.
Attention with global tokens is not among them: some shares would have no global token."""


@dataclass(frozen=True)
class Share:
    """The share of one process in every update.

    Args:
        index: index of the process among those that train on different examples.
        learners: number of processes that train on different examples.
        parts: number of parts of every batch.
        context: index of the process among those that share each sequence, and their number.
    """

    index: int = 0
    learners: int = 1
    parts: int = 1
    context: tuple[int, int] = (0, 1)

    def numbers(self, batches: int) -> list[int]:
        """Return the indices of an update's batches of which this process has a part."""
        return [micro for micro in range(batches) if self._of(micro)]

    def cut(self, batch: Batch, micro: int) -> list[BatchPart]:
        """Return this process's parts of a batch; none where it has too few examples.

        Args:
            batch: whole batch.
            micro: index of the batch in the update.
        """
        return [
            replace(part, batch=shard_batch(part.batch, *self.context))
            for part in self._whole(batch, micro)
        ]

    def _whole(self, batch: Batch, micro: int) -> list[BatchPart]:
        if self.parts == 1:
            return [BatchPart(batch, (micro,))]
        count = len(batch.indices)
        # Integer bounds: parts differ by one example at most, the same on every process.
        bounds = [count * part // self.parts for part in range(self.parts + 1)]
        return [
            BatchPart(batch.part(start, stop), (micro, start, stop))
            for start, stop in (bounds[part : part + 2] for part in self._of(micro))
            if stop > start
        ]

    def _of(self, micro: int) -> list[int]:
        return [
            part
            for part in range(self.parts)
            # Round robin over all parts of the update, the order in which `PartialSums` adds them.
            if (micro * self.parts + part) % self.learners == self.index
        ]


class UpdateParts:
    """Makes this process's parts of each update, one update ahead.

    Args:
        source: source of the batches.
        share: share of this process.
        batches: number of batches of an update.
        max_epochs: epoch limit of the run, at which the last update may have fewer batches.
        pin: use of page-locked memory, from which a GPU copies asynchronously.
    """

    def __init__(
        self,
        source: Source,
        share: Share,
        batches: int,
        max_epochs: int | None,
        *,
        pin: bool = False,
    ) -> None:
        self.pin = pin
        self.source = source
        self.share = share
        self.batches = batches
        self.max_epochs = max_epochs
        self._prefetched = Prefetched(self._from, lambda place: place.epoch == max_epochs)

    def take(self, place: DataPosition) -> tuple[list[BatchPart], DataPosition]:
        """Return the parts of the update that starts at a position, and the next position."""
        return self._prefetched.take(place)

    def lines(self, indices: Sequence[int]) -> list[str]:
        """Return the origins of examples ("file:line") by number."""
        return self.source.lines(indices)

    def close(self) -> None:
        """Stop reading ahead."""
        self._prefetched.close()
        self.source.close()

    def _from(self, place: DataPosition) -> tuple[list[BatchPart], DataPosition]:
        places: list[DataPosition] = []
        while len(places) < self.batches:
            places.append(place)
            place = self.source.after(place)
            if place.epoch == self.max_epochs:
                break
        parts = [
            part
            for micro in self.share.numbers(len(places))
            for part in self.share.cut(self.source.batch(*places[micro]), micro)
        ]
        # The last update of a run may have fewer batches than there are processes.
        if not parts:
            whole = shard_batch(self.source.batch(*places[0]), *self.share.context)
            # The process has to take part in the collectives, so it gets an example of weight 0.
            parts = [stand_in(whole)]
        if self.pin:
            parts = [replace(part, batch=pin_batch(part.batch)) for part in parts]
        return parts, place


def shard_batch(batch: _Batch, rank: int, size: int) -> _Batch:
    """Return one process's share of a batch, divided along the sequence length.

    Args:
        batch: whole sequences, the same on every process: pairs, windows of a stream, or rows
            with a target for each token.
        rank: index of the process among those that share the batch, from 0.
        size: number of processes that share the batch.

    Returns:
        A batch of the same sequences, whose tensors [B, L] are [B, L'] with
        L' = 2 · ⌈L / (2 · size)⌉, separately for sources and targets; `target_tokens` counts the
        real targets of the share.

    Raises:
        DataError: when the batch has no sequence length to divide.
    """
    if size == 1:
        return batch
    whole: Any = batch
    # Tables [B, L]; `indices` [B] belong to whole rows and stay as they are.
    tensors = {name: value for name, value in tensors_of(whole) if value.dim() == 2}
    # Exact types: `SegmentBatch` derives from `WindowBatch`, and its memory needs whole segments.
    plain = type(batch) in (PairBatch, RowBatch, WindowBatch)
    if not plain or (isinstance(batch, RowBatch) and "targets" not in tensors):
        raise DataError(
            "Only sequences with a target for each token can be divided among processes",
            where="parallel.context",
            remedy="Set it to 1 for this task",
        )
    fillers = dict(_FILLERS)
    if isinstance(batch, WindowBatch) and bool(batch.segments.any()):
        # Objectives drop segments that are all 0. A share may hold only zeros while another does
        # not, so numbers are shifted: all shares take the same route.
        tensors["segments"] = batch.segments + 1
        fillers["segments"] = 1
    shares: dict[str, Any] = {
        name: _share(value, rank, size, fillers.get(name, 0)) for name, value in tensors.items()
    }
    divided: Any = replace(whole, **shares)
    # The loss of a share is a sum over its own tokens; counts differ from share to share.
    real: _Batch = replace(divided, target_tokens=int((divided.targets != NO_TARGET).sum()))
    return real


def _share(tensor: Tensor, rank: int, size: int, filler: int) -> Tensor:
    """Return chunks `rank` and `2 · size − 1 − rank` of [B, L], filled up on the right."""
    # Zigzag: chunk i and its mirror image 2N − 1 − i together cost the same for every i (causal).
    chunks = 2 * size
    filled = F.pad(tensor, (0, -tensor.shape[1] % chunks), value=filler)
    front, back = (filled.chunk(chunks, 1)[number] for number in (rank, chunks - 1 - rank))
    return torch.cat([front, back], 1)


def check_context(model: nn.Module, size: int, objective: ObjectiveSettings | None = None) -> None:
    """Refuse a model that processes cannot train on shares of sequences.

    Args:
        model: model to train.
        size: number of processes that share a sequence; 1 is always accepted.
        objective: settings of the loss.

    Raises:
        ConfigError: when it is refused; every reason is listed with its address in the model.
    """
    if size == 1:
        return
    spec: Any = model.spec
    # All reasons are reported at once, so that a configuration can be fixed in one step.
    reasons = [
        f"{name} ({places[0]}{f' and {len(places) - 1} more' if places[1:] else ''}) "
        "knows tokens by more than their positions"
        for name, places in _indivisible(spec).items()
    ]
    if spec.reads == "images":
        reasons.append("images are not divided into shares")
    if getattr(spec, "memory", None) is not None:
        reasons.append("a memory of earlier segments holds whole segments")
    if adds_penalties(model):
        reasons.append("the balance of experts is measured over all tokens of a batch")
    if objective is not None and objective.scheduled_sampling:
        reasons.append("scheduled sampling reads the guess for the token before, in another share")
    if reasons:
        raise ConfigError(
            f"This model's sequences cannot be divided among {size} processes: "
            + "; ".join(reasons),
            where="parallel.context",
            remedy="Set it to 1, and use parallel.data or parallel.shard",
        )


def _indivisible(spec: Any) -> dict[str, list[str]]:
    """Return the addresses of parts that need whole sequences, grouped by kind."""
    found: dict[str, list[str]] = {}
    for name, stack in spec.stacks().items():
        for number, block in enumerate(stack.blocks):
            for sublayer in block.sublayers:
                kind = sublayer.part.kind
                if getattr(sublayer.part, "global_tokens", None):
                    kind = "global attention"
                if kind not in _DIVISIBLE:
                    found.setdefault(kind, []).append(f"{name}.{number}.{sublayer.name}")
    return found
