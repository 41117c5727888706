"""Parts of batches and their random seeds; smaller parts where memory runs out.

When memory runs out, a batch is split and the update starts again. The loss is a sum over tokens
divided by their number in the whole update, so the gradients of parts add up to those of the batch.
A failed attempt leaves nothing behind: gradients and sums start from zero. A whole batch is seeded
by its place in the update, a part by its place and its rows: its dropout is another draw from the
same distribution, and the same one whenever the batch is split in the same way. Where the loss is
not a plain sum (the balance of experts and batch normalisation measure a batch), parts count as
batches.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.data.batches import numbers_in, positions_in
from heedful.memory import ran_out, release
from heedful.train.batch_source import Batch
from heedful.train.parallel.team import Team


def derive_seed(*parts: int) -> int:
    """Return a random seed in [0, 2**63) that depends on all parts and their order.

    Seeds are a function of the position in a run, so no random state has to be saved.

    Args:
        parts: integers, such as the run's seed, the step and the micro-batch.
    """
    text = ",".join(map(str, parts)).encode()
    # A hash, as sums of small numbers would collide; 63 bits fit a signed integer.
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


# Share of the positions of a failed part that is tried next. Its halves are smaller still.
_RETRY_SHARE = 0.75


@dataclass(frozen=True)
class BatchPart:
    """A batch of an update, or a part of one.

    Args:
        batch: batch with the examples of this part.
        place: seed numbers: index of the batch in the update and, for a part, index of its first
            example and of the one after its last.
        counts: false for a stand-in, whose gradient has weight 0.
    """

    batch: Batch
    place: tuple[int, ...]
    counts: bool = True

    @property
    def tokens(self) -> int:
        """Number of target tokens that are trained on."""
        return self.batch.target_tokens if self.counts else 0

    @property
    def positions(self) -> int:
        """Number of positions of the longer side, padding included."""
        whole: Any = self.batch
        return positions_in(whole)

    @property
    def examples(self) -> int:
        return len(self.batch.indices)

    def numbers(self, rows: Sequence[int] = ()) -> Tensor:
        """Return the example numbers [n] of some rows; of all rows if none are given."""
        indices = self.batch.indices
        return numbers_in(indices[list(rows)] if rows else indices)

    def halves(self) -> list[BatchPart]:
        # The place of a whole batch is only its index: its rows start at 0.
        micro, start, *_ = (*self.place, 0)
        middle, end = self.examples // 2, self.examples
        return [
            BatchPart(
                self.batch.part(first, last), (micro, start + first, start + last), self.counts
            )
            for first, last in ((0, middle), (middle, end))
        ]


def parts_of(batches: Sequence[Batch | BatchPart]) -> list[BatchPart]:
    """Wrap whole batches of an update as parts; leave parts as they are."""
    return [
        each if isinstance(each, BatchPart) else BatchPart(each, (micro,))
        for micro, each in enumerate(batches)
    ]


def stand_in(batch: Batch) -> BatchPart:
    """Make a part for a process that has none in an update: one example of weight 0.

    The process must take part in the exchange of gradients, for which the others wait.
    """
    return BatchPart(batch.part(0, 1), (0, 0, 1), counts=False)


class OutOfMemoryElsewhere(Exception):
    """Memory ran out for a part of another process."""


class OneTooLarge(Exception):
    """There is not enough memory for a single example.

    Args:
        numbers: [1] number of the example, or [P] numbers of the pairs of a packed row.
        positions: number of its positions.
    """

    def __init__(self, numbers: Tensor, positions: int) -> None:
        super().__init__(f"{positions} positions")
        self.numbers = numbers
        self.positions = positions


class PartialSums:
    """Sums gradients of parts in an order that several processes can reproduce.

    Floating-point sums depend on their order. Parts are added to several sums in rotation; then the
    first half of the sums is added to the second half until one is left. A process that has every
    second or fourth part holds some of these sums, and the pairwise exchange between processes
    continues as one process would with all of them.

    Args:
        parameters: trainable parameters.
        most: largest number of sums, each as large as the gradient; a power of two. With 1 every
            part is added to its predecessors.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], most: int) -> None:
        self.parameters = parameters
        self.most = most
        self.begin(1)

    def begin(self, parts: int) -> None:
        """Start an update with this number of parts."""
        # Every sum gets the same number of parts: otherwise one process would add other pairs of
        # parts than several processes do, and round differently.
        count = math.gcd(parts, self.most)
        # If every sum had one part, half as many sums give the same pairs in half the memory.
        if count == parts:
            count = max(1, count // 2)
        self._sums: list[list[Tensor | None]] = [[None] * len(self.parameters)] * count
        self._next = 0

    @contextmanager
    def adding(self, last: bool) -> Iterator[None]:
        """A context for the backward pass of the next part.

        Args:
            last: flag of the update's last part, after which parameters have the whole gradient.
        """
        if len(self._sums) == 1:
            yield
            return
        # Autograd adds to the gradient that a parameter holds, so the present sum is put there.
        self._set_gradients(self._sums[self._next])
        yield
        self._sums[self._next] = [parameter.grad for parameter in self.parameters]
        self._next = (self._next + 1) % len(self._sums)
        if last:
            self._set_gradients(_in_pairs(self._sums))
            self.begin(1)

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient


def _in_pairs(sums: list[list[Tensor | None]]) -> list[Tensor | None]:
    """Add gradients pairwise: the first half to the second half, until one sum is left."""
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [
            [_sum(*each) for each in zip(first, second, strict=True)]
            for first, second in zip(sums[:half], sums[half:], strict=True)
        ]
    return sums[0]


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    # Parameters that a part did not use, such as an expert's, have no gradient.
    if first is None or second is None:
        return second if first is None else first
    return first.add_(second)


class Splitting:
    """Runs the batches of an update, in smaller parts where memory runs out.

    For the rest of the process's life, batches nearly as large as a failed one are split untried:
    all batches fill the same budget, and each would fail first.

    Args:
        team: processes of the run, which repeat an update together; None for one process.
        alone: true if passes through the model need no other process. Otherwise an update cannot
            be repeated, as the others wait within the pass.

    Attributes:
        most: largest number of positions of a part that is tried; None for no limit.
        stuck: part of this attempt that ran out of memory, here or on another process; None so far.
        failed: (positions, examples) of each part of this update that ran out of memory.
    """

    def __init__(self, team: Team | None = None, *, alone: bool = True) -> None:
        self.team = team
        self.alone = alone
        self.most: int | None = None
        self.stuck: BatchPart | OutOfMemoryElsewhere | None = None
        self.failed: tuple[tuple[int, int], ...] = ()
        self._agreed = False

    def attempts(
        self, parts: Sequence[BatchPart], begin: Callable[[], None]
    ) -> Iterator[list[BatchPart]]:
        """Yield all parts of an update, again and smaller as long as one runs out of memory.

        The caller passes each part through the model within `trying`, and asks for the next
        attempt once `stuck` is set. With several processes it calls `agree` in the last part,
        before gradients are exchanged.

        Args:
            parts: parts of one update, in order.
            begin: function that resets gradients and sums of this update.

        Raises:
            OneTooLarge: when a part of one example is too large.
            RunError: when it is too large on another process.
        """
        self.failed = ()
        while True:
            # Split again at every attempt: the limit has fallen since.
            parts = [small for part in parts for small in self._split_to_fit(part)]
            begin()
            self._restart()
            yield list(parts)
            if self.stuck is None:
                return
            begin()
            # Memory is released after `begin` has dropped the gradients, so that theirs is freed
            # too.
            release()
            self._split(self.stuck)

    def _restart(self) -> None:
        # Done in a method, as type checkers would take `stuck` for None after the yield.
        self._agreed, self.stuck = False, None

    @contextmanager
    def trying(self, part: BatchPart) -> Iterator[None]:
        """A context for the passes of a part; where memory runs out, it sets `stuck` and ends.

        The passes belong in a function of their own: a traceback or a local variable that outlives
        them would hold the failed pass's tensors.
        """
        try:
            yield
        except OutOfMemoryElsewhere as elsewhere:
            self.stuck = elsewhere.with_traceback(None)
        except (MemoryError, RuntimeError) as error:
            # After the agreement the other processes wait for gradients of this pass.
            if self._agreed or not self.alone or not ran_out(error):
                raise
            if self.team is not None:
                # Answers the call of `agree` that the others make in their last part.
                self.team.any(True)
            self.stuck = part

    def agree(self) -> None:
        """Go on if no process ran out of memory.

        Raises:
            OutOfMemoryElsewhere: if another process did.
        """
        if self.team is not None:
            self._agreed = True
            if self.team.any(False):
                raise OutOfMemoryElsewhere

    def _split(self, stuck: BatchPart | OutOfMemoryElsewhere) -> None:
        """Lower `most` to the same number on all processes."""
        too_large = None
        if isinstance(stuck, BatchPart):
            if stuck.examples == 1:
                too_large = OneTooLarge(stuck.numbers(), stuck.positions)
            self.failed = (*self.failed, (stuck.positions, stuck.examples))
            self.most = round(_RETRY_SHARE * stuck.positions)
        if self.team is not None:
            self.team.check(too_large)
            most = float("inf") if self.most is None else float(self.most)
            # The tightest limit for all: every process splits its batches alike, so parts stay
            # comparable.
            self.most = round(self.team.least(most))
        elif too_large is not None:
            raise too_large

    def _split_to_fit(self, part: BatchPart) -> list[BatchPart]:
        if self.most is None or part.examples == 1 or part.positions <= self.most:
            return [part]
        return [small for half in part.halves() for small in self._split_to_fit(half)]


class PassBuffers:
    """Buffers that a pass changes, such as the running statistics of batch normalisation.

    Weights change when an update is made, these with every pass. A failed attempt, a cancelled or
    skipped update and a pass that only looks put the values from before back.

    Args:
        model: model to train; most have no such buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [
            buffer
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]
        self._kept: list[Tensor] = []

    def keep(self) -> None:
        """Remember the present values."""
        self._kept = [buffer.clone() for buffer in self._buffers]

    def restore(self, where: Tensor | None = None) -> None:
        """Put the remembered values back.

        Args:
            where: [] on the device, not 0 if they are put back; always if None.
        """
        with torch.no_grad():
            for buffer, kept in zip(self._buffers, self._kept, strict=True):
                # Chosen on the device: reading the flag would wait for the update.
                buffer.copy_(kept if where is None else torch.where(where != 0, kept, buffer))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context whose passes leave the buffers as they were."""
        self.keep()
        try:
            yield
        finally:
            self.restore()
