"""Context parallelism: batches divided along their length among processes (Liu 2023).

Each process gets the same share of every sequence of a batch and passes it through the whole model.
Attention alone looks beyond it (`nn/attention/kernels/ring.py`). Losses stay sums over the tokens a
process has, and gradients of parameters are summed over the processes as in data parallelism.

Under a causal mask later tokens see more, so equal stretches would be unequal work: with four
processes the last would compute 7/16 of all scores. A sequence is cut into twice as many chunks as
there are processes, and each gets one from the front and its mirror image from the back (the
zigzag of Megatron-LM and ring-flash-attention).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.data.batches import NO_TARGET, PairBatch, RowBatch, WindowBatch, tensors_of
from heedful.errors import ConfigError, DataError
from heedful.nn.positions import NOTHING_HERE, context_parallel
from heedful.train.batch_source import Batch
from heedful.train.objective import adds_penalties

if TYPE_CHECKING:
    from heedful.train.run_settings import ObjectiveSettings

__all__ = ["check_context", "context_parallel", "shard_batch"]

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
    # The loss of a share is a sum over its own tokens; counts differ from share to share.
    if isinstance(batch, PairBatch):
        real = shares["target_positions"] != NOTHING_HERE
    else:
        real = shares["targets"] != NO_TARGET
    divided: _Batch = replace(whole, target_tokens=int(real.sum()), **shares)
    return divided


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
