"""Ring attention: exact attention over a sequence that is divided among processes (Liu 2023).

Every process holds the queries, keys and values of its share of the tokens. Keys and values travel
round a ring: while a process attends to one share of keys, it sends them on and receives the next.
The softmax of its queries is updated from share to share, as the chunked kernel updates it from
block to block, so no process ever holds more than two shares of keys and one block of scores.

The backward pass goes round a second time. Gradients of keys and values travel one step behind
them, each process adds its part, and they come home after as many steps as there are processes.

Positions are gathered once for each pass, 8 bytes a token beside the thousands of its activations.
With them every process plans by itself which blocks to compute: masks and biases are functions of
positions, so all of them work here. Shapes: B batch, H heads, K key/value heads, Lq and Lk queries
and keys of this process, E width of a head, N processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from heedful.device import full_precision
from heedful.nn.attention.kernels.chunked import (
    GradientSums,
    SoftmaxGradient,
    add_gradients,
    attend_to_all,
)
from heedful.nn.attention.kernels.request import AttentionRequest
from heedful.nn.positions import Positions

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

# PyTorch has a ring, too (`torch.distributed.tensor.experimental`): without mask, bias or soft cap,
# and for the masks of FlexAttention it gathers all keys, which costs each process the memory of the
# whole sequence. ring-flash-attention (zhuzilin) has neither windows nor dropout.
name = "ring"


def unsupported(request: AttentionRequest) -> str | None:
    """Refuse attention within one process, and beams that share rows."""
    if request.positions.group is None:
        return "the sequence is not divided among processes"
    if request.positions.lineage is not None:
        return "beams share rows of a cache, which is in one process"
    return None


def run(request: AttentionRequest) -> Tensor:
    """Compute the outputs of this process's queries; all processes of the group take part."""
    group = request.positions.group
    assert group is not None
    # Drawn here and not in `forward`, so that the backward pass can draw the same masks again.
    seed = int(torch.randint(2**62, ())) if request.dropout else 0
    output: Tensor = _Ring.apply(  # type: ignore[no-untyped-call]
        request, Ring(group), seed, request.q, request.k, request.v, *request.learned
    )
    return output


def shares(positions: Positions) -> list[Positions]:
    """Return the positions of this process's queries with the keys of each process in turn.

    Args:
        positions: positions of this process's queries and keys, equally many in every process.

    Returns:
        N values: its own keys first, then those in the order in which they arrive.
    """
    group = positions.group
    assert group is not None
    return positions.derive(("shares", group), lambda: _gather(positions, Ring(group)))


def _gather(positions: Positions, ring: Ring) -> list[Positions]:
    own = [positions.key]
    if positions.key_segment is not None:
        own.append(positions.key_segment)
    # One collective for positions and segments.
    stacked = torch.stack(own)
    gathered = [torch.empty_like(stacked) for _ in range(ring.size)]
    dist.all_gather(gathered, stacked, group=ring.group)
    at_source = [gathered[source] for source in ring.sources()]
    return [
        Positions(positions.query, each[0], positions.query_segment, *each[1:])
        for each in at_source
    ]


class Ring:
    """The processes of a group, each of which sends to the next and receives from the one before.

    Args:
        group: processes in the order of the ring.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        neighbours = ((self.rank + step) % self.size for step in (1, -1))
        self._next, self._before = (dist.get_global_rank(group, each) for each in neighbours)

    def sources(self) -> Iterator[int]:
        """Return the processes whose keys are here at each step: this one, then those before it."""
        return ((self.rank - step) % self.size for step in range(self.size))

    def pass_on(self, tensors: Sequence[Tensor], channel: int) -> Arriving:
        """Begin to send tensors to the next process, and to receive as many from the one before.

        Args:
            tensors: tensors of equal shapes and dtypes in every process, unchanged until they left.
            channel: number that separates transfers which are on their way at the same time.
        """
        outgoing = [each.contiguous() for each in tensors]
        if self.size == 1:
            return Arriving(outgoing, outgoing, [])
        incoming = [torch.empty_like(each) for each in outgoing]
        # gloo matches messages by tag, and two transfers may be under way at once.
        tags = [channel * len(outgoing) + number for number in range(len(outgoing))]
        operations = [
            dist.P2POp(operation, tensor, peer, self.group, tag)
            for operation, peer, these in (
                (dist.isend, self._next, outgoing),
                (dist.irecv, self._before, incoming),
            )
            for tag, tensor in zip(tags, these, strict=True)
        ]
        # Sends and receives are one batch: a send before its receive could block both neighbours
        # with NCCL.
        return Arriving(incoming, outgoing, dist.batch_isend_irecv(operations))


@dataclass(frozen=True)
class Arriving:
    """Tensors on their way from the process before, and those that this one is sending.

    Args:
        tensors: received tensors, complete after `wait`.
        sent: sent tensors, kept alive until they have left.
        operations: pending transfers.
    """

    tensors: list[Tensor]
    sent: list[Tensor]
    operations: list[Work]

    def wait(self) -> list[Tensor]:
        """Wait for the transfers and return the received tensors."""
        for each in self.operations:
            each.wait()
        return self.tensors


_KEYS, _GRADIENTS = 0, 1
"""Channels of the ring."""

_SEED_STEP = 0x9E3779B1
"""Distance between the seeds of two pairs of processes; each block of a pair adds 1. Generators on
processors use only the lower 32 bits, in which multiples of the golden ratio lie far apart: a
million and more for 32 processes."""


def _round(
    request: AttentionRequest, ring: Ring, seed: int, k: Tensor, v: Tensor
) -> Iterator[tuple[AttentionRequest, int]]:
    """Yield the request with the keys and values of each process, while the next are on their way.

    Each comes with the seed of the dropout of its blocks, which no two pairs of processes share.
    """
    held = [k, v]
    for step, positions in enumerate(shares(request.positions)):
        last = step + 1 == ring.size
        arriving = None if last else ring.pass_on(held, _KEYS)
        part = replace(request, k=held[0], v=held[1], positions=positions)
        # The caller computes here, between sending and waiting: that hides the transfer.
        yield part, seed + _SEED_STEP * (ring.rank * ring.size + step)
        if arriving is not None:
            held = arriving.wait()


class _Ring(torch.autograd.Function):
    """Attention of this process's queries to the keys of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        request: AttentionRequest,
        ring: Ring,
        seed: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *_: Tensor,
    ) -> Tensor:
        ctx.request, ctx.ring, ctx.seed = request.without_inputs(), ring, seed
        # Only the logsumexp is kept, from which the second round recomputes the weights.
        output, logsumexp = attend_to_all(request, _round(request, ring, seed, k, v))
        ctx.save_for_backward(q, k, v, output, logsumexp)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, logsumexp = ctx.saved_tensors
        ring: Ring = ctx.ring
        request: AttentionRequest = replace(ctx.request, q=q, k=k, v=v)
        sums = GradientSums.zeros(request)
        arriving: Arriving | None = None
        with full_precision(q):
            whole = SoftmaxGradient.of(gradient, output, logsumexp)
            for part, seed in _round(request, ring, ctx.seed, k, v):
                if arriving is not None:  # the sums of the previous step are on their way
                    sums = replace(sums, k=torch.zeros_like(sums.k), v=torch.zeros_like(sums.v))
                # Computed while the sums of the other processes are in transit. Adding directly to
                # those would save a buffer, but hide no transfer.
                add_gradients(part, seed, whole, sums)
                if arriving is not None:
                    for own, others in zip((sums.k, sums.v), arriving.wait(), strict=True):
                        own += others
                    del arriving, others  # their memory is free before the next transfer
                arriving = ring.pass_on((sums.k, sums.v), _GRADIENTS)
            # After N steps the gradients are back at the process that owns the keys.
            assert arriving is not None
            to_k, to_v = arriving.wait()
        inputs = sums.q.to(q.dtype), to_k.to(k.dtype), to_v.to(v.dtype)
        return None, None, None, *inputs, *sums.learned
