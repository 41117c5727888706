"""Training batches of a corpus that is read as a stream, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from heedful.data.batch_plan import Indices
from heedful.data.block_workers import BlocksAhead
from heedful.data.shard_blocks import BlockPlace, Planner
from heedful.errors import ConfigError
from heedful.train.batch_source import Batch, DataPosition

_PER_BLOCK = 2**20
"""The batch of a place is the block times this, and the number of the batch in the block: a place
says where it is without the numbers of batches of all blocks before it."""


class BatchBlock(Protocol):
    """A part of an epoch with its batches."""

    @property
    def batches(self) -> list[Indices]:
        """Numbers that make each batch, in the order of training."""
        ...


T = TypeVar("T", bound=BatchBlock)


class _Opened(NamedTuple):
    """A block that is used: its batches, and what makes one of them."""

    batches: list[Indices]
    make: Callable[[Indices], Batch]


class StreamedBatches(Generic[T]):
    """A source of batches of which two blocks and those made ahead are in memory.

    Two, as processes that share an update may stand on both sides of where one block ends.

    Args:
        planner: makes a block.
        blocks: of an epoch.
        opened: called with each block that is used; makes a batch of it from the batch's numbers.
        line_of: the place of an example, such as "file:line", by its number.
        workers: processes that make blocks; 0 for a thread.
    """

    def __init__(
        self,
        planner: Planner[T],
        blocks: int,
        opened: Callable[[BlockPlace, T], Callable[[Indices], Batch]],
        line_of: Callable[[int], str],
        *,
        workers: int,
    ) -> None:
        self.blocks = blocks
        self.opened = opened
        self.line_of = line_of
        self._ahead = BlocksAhead(planner, self._following, workers)
        self._used: dict[BlockPlace, _Opened] = {}

    def count(self, epoch: int) -> int:
        """Batches of an epoch, estimated by those of its first block."""
        return self.blocks * len(self._block(BlockPlace(epoch, 0)).batches)

    def batch(self, epoch: int, number: int) -> Batch:
        block, of_block = divmod(number, _PER_BLOCK)
        content = self._block(BlockPlace(epoch, block))
        return content.make(content.batches[of_block])

    def after(self, place: DataPosition) -> DataPosition:
        epoch, number = place
        block, of_block = divmod(number, _PER_BLOCK)
        if of_block + 1 < len(self._block(BlockPlace(epoch, block)).batches):
            return DataPosition(epoch, number + 1)
        epoch, block = self._following(BlockPlace(epoch, block))
        return DataPosition(epoch, block * _PER_BLOCK)

    def sample(self, count: int) -> Iterator[Batch]:
        """About so many batches of the first block, spread evenly."""
        block = self._block(BlockPlace(0, 0))
        for numbers in block.batches[:: max(1, len(block.batches) // count)]:
            yield block.make(numbers)

    def lines(self, indices: Sequence[int]) -> list[str]:
        return [self.line_of(index) for index in indices]

    def close(self) -> None:
        self._ahead.close()

    def _following(self, place: BlockPlace) -> BlockPlace:
        epoch, block = place
        return BlockPlace(epoch, block + 1) if block + 1 < self.blocks else BlockPlace(epoch + 1, 0)

    def _block(self, place: BlockPlace) -> _Opened:
        if place not in self._used:
            while len(self._used) > 1:
                del self._used[next(iter(self._used))]
            block = self._ahead.take(place)
            if len(block.batches) > _PER_BLOCK:
                raise ConfigError(
                    f"A block has {len(block.batches):,} batches, more than {_PER_BLOCK:,}",
                    where="data.block_mb",
                    remedy="Lower it, or raise data.batch_tokens",
                )
            self._used[place] = _Opened(block.batches, self.opened(place, block))
        return self._used[place]
