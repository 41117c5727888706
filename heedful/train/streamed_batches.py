"""Training batches of a streamed corpus, read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from heedful.data.batch_plan import Indices
from heedful.data.block_workers import BlocksAhead
from heedful.data.shard_blocks import BlockPlace, PairBlock, Planner, TextBlock
from heedful.errors import ConfigError
from heedful.train.batch_source import Batch, DataPosition

# A batch number is block × this + index within the block, so a position can be found without
# counting the batches of earlier blocks.
_PER_BLOCK = 2**20


T = TypeVar("T", bound=PairBlock | TextBlock)


class _OpenBlock(NamedTuple):
    """A block in use: its batches, and the function that makes one of them."""

    batches: list[Indices]
    make: Callable[[Indices], Batch]


class StreamedBatches(Generic[T]):
    """A source of batches that holds two blocks, and those read ahead, in memory.

    Two blocks, because the batches of one update may lie on both sides of a block's end.

    Args:
        planner: maker of blocks.
        blocks: number of blocks of an epoch.
        open_block: function from a block to the maker of its batches.
        line_of: function from an example's number to its origin, such as "file:line".
        workers: number of processes that make blocks; 0 for a thread.
    """

    def __init__(
        self,
        planner: Planner[T],
        blocks: int,
        open_block: Callable[[BlockPlace, T], Callable[[Indices], Batch]],
        line_of: Callable[[int], str],
        *,
        workers: int,
    ) -> None:
        self.blocks = blocks
        self.open_block = open_block
        self.line_of = line_of
        self._ahead = BlocksAhead(planner, self._following, workers)
        self._used: dict[BlockPlace, _OpenBlock] = {}

    def count(self, epoch: int) -> int:
        """Estimate the batches of an epoch from those of its first block."""
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
        # Index 0 of the next block: batch numbers ascend with gaps.
        epoch, block = self._following(BlockPlace(epoch, block))
        return DataPosition(epoch, block * _PER_BLOCK)

    def sample(self, count: int) -> Iterator[Batch]:
        """Yield roughly `count` batches of the first block, spread evenly."""
        # Other blocks would have to be read and tokenised, which takes 1.8 seconds of a core for
        # each block of 4 MB.
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

    def _block(self, place: BlockPlace) -> _OpenBlock:
        if place not in self._used:
            # Dicts keep insertion order: the block opened first is dropped.
            while len(self._used) > 1:
                del self._used[next(iter(self._used))]
            block = self._ahead.take(place)
            if len(block.batches) > _PER_BLOCK:
                raise ConfigError(
                    f"A block has {len(block.batches):,} batches, more than {_PER_BLOCK:,}",
                    where="data.block_mb",
                    remedy="Lower it, or raise data.batch_tokens",
                )
            self._used[place] = _OpenBlock(block.batches, self.open_block(place, block))
        return self._used[place]
