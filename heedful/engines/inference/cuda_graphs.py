"""A stack's decoding steps as recorded CUDA graphs, each launched by one call of the host.

A step of a few tokens is some hundred kernels of a few microseconds, which a processor takes longer
to launch than a GPU to run: 107 sentences a second at beam 5 became 619 when the blocks of a step
were one graph (`transformer-big`, H100). A graph always runs the same kernels on the same memory.
So each shape of a step has a graph with memory of its own: batch and lengths are rounded up, and
surplus entries get positions of −1, which hide them as they hide padding.

Caches stay immutable values. A graph has a copy of their keys and values, which is current if the
caches that come in are those that its latest step returned; otherwise they are copied again.

Shapes: B sentences, W continuations of each, S slots in use, C slots of a graph, M tokens of the
source, K key/value heads, E their width, D model width.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor

from heedful.engines.class_exchange import EnginePart, become
from heedful.engines.inference.cpu_block import split_states
from heedful.memory import ran_out
from heedful.models.block import Block, BlockState
from heedful.models.stack import Stack
from heedful.nn.attention.beam_cache import BeamCache, Store
from heedful.nn.attention.cache import KeyValues
from heedful.nn.mixer import Context, Reordering
from heedful.nn.positions import NOTHING_HERE, Positions

MOST_GRAPHS = 24
"""Most graphs that are kept; the least recently used one is dropped for another."""

STEP_TOKENS = 16
"""Most tokens of a sentence in a step; a pass with more is a prompt, and has no graph."""

_FEWEST_SLOTS = 64
"""Slots of the smallest graph: 12 steps of a beam of 5, 64 of greedy search."""

_SOURCE_MULTIPLE = 16
"""Lengths of the source are rounded up to multiples of this."""


Replay = Callable[[], Tensor]
"""A recorded function, which runs with the present contents of its memory."""

Record = Callable[[Callable[[], Tensor]], Replay]
"""A recorder that turns a function without arguments into one that replays it."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the steps that a graph serves.

    Args:
        rows: number of sentences B, rounded up.
        tokens: number of tokens of each sentence in a step, W.
        slots: number of slots C.
        source: number of source tokens M, rounded up; 0 without a memory.
        dtype: dtype of the input.
    """

    rows: int
    tokens: int
    slots: int
    source: int
    dtype: torch.dtype

    @classmethod
    def around(cls, x: Tensor, slots: int, source: int) -> Self:
        """Return the smallest shape for x [B, W, D], slots in use and tokens of the source."""
        rows = x.shape[0]
        # Slots double: a search then meets few shapes, each of which costs a recording.
        return cls(
            1 << (rows - 1).bit_length() if rows < 8 else -(-rows // 8) * 8,
            x.shape[1],
            max(_FEWEST_SLOTS, 1 << (slots - 1).bit_length()),
            -(-source // _SOURCE_MULTIPLE) * _SOURCE_MULTIPLE,
            x.dtype,
        )


class GraphedStack(EnginePart, Stack):
    """A stack that runs decoding steps as graphs, and all other passes by the definition.

    A graph is recorded at the second step of its shape. If recording fails, as for experts, whose
    kernels depend on values, the definition runs all later steps.
    """

    _record: Record
    _graphs: OrderedDict[Shape, _Graph | None]
    _lock: threading.Lock
    _failed: bool

    @classmethod
    def of(cls, stack: Stack, record: Record) -> Self:
        """Make a stack of this class from that of an engine's copy.

        Args:
            stack: stack whose attributes are shared.
            record: recorder of the steps.
        """
        made = become(stack, cls)
        made._record = record
        made._graphs = OrderedDict()
        made._lock = threading.Lock()
        made._failed = False
        return made

    def step_in_place(self, x: Tensor, context: Context, states: Sequence[BlockState]) -> Tensor:
        """Pass tokens x [B, W, D] through all blocks and the final norm, with caches in place.

        Returns:
            Final states, shaped as x.
        """
        here = self._enter(x, context)
        return self._leave(self._run(x, here, states)[0], here)

    def _run(
        self, x: Tensor, here: Context, states: Sequence[BlockState]
    ) -> tuple[Tensor, tuple[BlockState, ...]]:
        result = None
        if here.capture is None and not self.by_definition:
            result = self._replay(x, here, states)
        return super()._run(x, here, states) if result is None else result

    def _replay(
        self, x: Tensor, context: Context, states: Sequence[BlockState]
    ) -> tuple[Tensor, tuple[BlockState, ...]] | None:
        """Run all blocks over embedded tokens x [B, W, D] as a graph.

        Returns:
            Output, shaped as x, and the states after x's tokens; None if no graph serves the pass.
        """
        positions = context.positions
        caches = [cache for cache, _, _ in map(split_states, states)]
        memory = [read for _, _, read in map(split_states, states) if read is not None]
        if self._failed or context.biases or not caches or torch.is_grad_enabled():
            return None
        # Inspection cut a residual connection; a graph was recorded with all of them.
        if any(block.cut for block in cast("Iterable[Block]", self.blocks)):
            return None
        if torch.is_autocast_enabled(x.device.type):
            # Autocast frees its copies of weights when it ends, and the graph would read them.
            return None
        # Rings and static caches lay out their slots in other ways.
        if any(type(cache) is not BeamCache for cache in caches):
            return None
        # Prompts are rare and large, so launching kernels is a small share of their time.
        if x.shape[1] > STEP_TOKENS or positions.query.shape != x.shape[:2]:
            return None
        source = 0 if context.memory_positions is None else context.memory_positions.key.shape[1]
        shape = Shape.around(x, positions.key.shape[1], source)
        # Threads share a graph's memory, so one step at a time.
        with self._lock:
            graph = self._graph(shape, x, memory)
            if graph is None:
                return None
            y, grown = graph.step(x, context, memory, cast("Sequence[BeamCache]", caches))
        return y, tuple((cache, *each[1:]) for cache, each in zip(grown, states, strict=True))

    def _graph(self, shape: Shape, x: Tensor, memory: Sequence[KeyValues]) -> _Graph | None:
        known = shape in self._graphs
        graph = self._graphs.get(shape)
        if graph is None and known:
            try:
                # Tensors made in inference mode could not be written outside of it later.
                with torch.inference_mode(False), torch.no_grad():
                    blocks = list(cast("Iterable[Block]", self.blocks))
                    graph = _Graph(blocks, shape, x, memory, self._record)
            except RuntimeError as error:
                # Memory may be free again for the next shape; other failures come from the model.
                if not ran_out(error):
                    self._failed = True
                    self._graphs.clear()
                return None
        # None marks a shape that occurred once: most shapes do not recur.
        self._graphs[shape] = graph
        self._graphs.move_to_end(shape)
        while len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return graph


class _Graph:
    """A step of one shape, and the memory it works on."""

    def __init__(
        self,
        blocks: Sequence[Block],
        shape: Shape,
        x: Tensor,
        memory: Sequence[KeyValues],
        record: Record,
    ) -> None:
        self.blocks = blocks
        rows, tokens, slots = shape.rows, shape.tokens, shape.slots

        def places(width: int) -> Tensor:
            return torch.full((rows, width), NOTHING_HERE, device=x.device)

        self.x = x.new_zeros(rows, tokens, x.shape[2])
        self.query, self.key, self.source = places(tokens), places(slots), places(shape.source)
        self.own = torch.zeros((rows, tokens, slots), dtype=torch.bool, device=x.device)
        self.slots = torch.arange(tokens, device=x.device)
        self.all_slots = torch.arange(slots, device=x.device)
        self.cache_buffers = empty_caches(blocks, shape, x, self.slots)
        self.memory = empty_memory(memory, shape)
        # Weak references: a graph must not keep the caches of a finished search alive.
        self._reads: list[weakref.ref[KeyValues]] = []
        self._follows: list[weakref.ref[Store]] = []
        self._used = 0
        self.replay = record(self._compute)

    def step(
        self, x: Tensor, context: Context, memory: Sequence[KeyValues], caches: Sequence[BeamCache]
    ) -> tuple[Tensor, tuple[BeamCache, ...]]:
        """Run one step of sentences and tokens that fit into the graph's sizes."""
        positions = context.positions
        rows, tokens = positions.query.shape
        stop = positions.key.shape[1]
        used = stop - tokens
        if stop < self._used:  # a shorter search: slots of the longer one must not be visible
            self.key.fill_(NOTHING_HERE)
        self._set_memory(rows, context, memory)
        claims = [
            cache.claim((rows, buffer.keys.shape[1], tokens, buffer.keys.shape[3]), self.x)
            for cache, buffer in zip(caches, self.cache_buffers, strict=True)
        ]
        stores = [store for _, store in claims]
        if not self._is_next(used, stores):
            for buffer, store in zip(self.cache_buffers, stores, strict=True):
                buffer.keys[:rows, :, :used] = store.keys[:, :, :used]
                buffer.values[:rows, :, :used] = store.values[:, :, :used]
        self.x[:rows] = x
        self.query[:rows] = positions.query
        self.key[:rows, :stop] = positions.key
        if positions.lineage is None:
            self.own[:rows] = True
        else:
            self.own[:rows, :, :stop] = positions.lineage
        # Slot numbers are inputs of the graph too, and are copied on the device.
        self.slots.copy_(self.all_slots[used:stop])
        # The next replay overwrites the result in place.
        y = self.replay()[:rows].clone()
        for buffer, store in zip(self.cache_buffers, stores, strict=True):
            store.keys[:, :, used:stop] = buffer.keys[:rows, :, used:stop]
            store.values[:, :, used:stop] = buffer.values[:rows, :, used:stop]
        self._follows, self._used = list(map(weakref.ref, stores)), stop
        return y, tuple(cache for cache, _ in claims)

    def _is_next(self, used: int, stores: Sequence[Store]) -> bool:
        """Return whether these stores hold the keys and values of this graph's latest step."""
        return used == self._used and _lead_to(self._follows, stores)

    def _set_memory(self, rows: int, context: Context, memory: Sequence[KeyValues]) -> None:
        if context.memory_positions is None:
            return
        length = context.memory_positions.key.shape[1]
        if _lead_to(self._reads, memory):
            return
        self.source.fill_(NOTHING_HERE)
        self.source[:rows, :length] = context.memory_positions.key
        for buffer, one in zip(self.memory, memory, strict=True):
            buffer.keys[:rows, :, :length] = one.keys
            buffer.values[:rows, :, :length] = one.values
        self._reads = list(map(weakref.ref, memory))

    def _compute(self) -> Tensor:
        own = Positions(self.query, self.key, lineage=self.own)
        over = Positions(self.query, self.source) if self.memory else None
        context, x = Context(own, over), self.x
        for number, block in enumerate(self.blocks):
            memory = (self.memory[number],) if self.memory else ()
            x, _ = block(x, context, (self.cache_buffers[number], *memory, None))
        return x


@dataclass(frozen=True, eq=False)
class SlotCache:
    """A cache of fixed slots, which puts new keys into `slots` [W] and returns all of them."""

    keys: Tensor
    values: Tensor
    slots: Tensor

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """See `KeyValueCache`; the positions are those of all slots already."""
        self.keys.index_copy_(2, self.slots, keys)
        self.values.index_copy_(2, self.slots, values)
        return self, positions

    def reorder(self, choice: Reordering) -> Self:
        """Raise an error, because a graph never chooses among beams."""
        raise NotImplementedError


def empty_caches(
    blocks: Sequence[Block], shape: Shape, like: Tensor, slots: Tensor
) -> list[SlotCache]:
    """Return a cache of zeros for the self-attention of each block, whose steps write `slots`."""
    attentions = [block.self_attention for block in blocks]
    sizes = [(shape.rows, a.key_heads_left, shape.slots, a.head_width) for a in attentions]
    return [SlotCache(like.new_zeros(size), like.new_zeros(size), slots) for size in sizes]


def empty_memory(memory: Sequence[KeyValues], shape: Shape) -> list[KeyValues]:
    """Return zeros for the keys and values of a memory, in rows and lengths of a shape."""

    def empty(part: Tensor) -> Tensor:
        return part.new_zeros(shape.rows, part.shape[1], shape.source, part.shape[3])

    return [KeyValues(empty(each.keys), empty(each.values)) for each in memory]


def _lead_to(references: Sequence[weakref.ref[Any]], objects: Sequence[object]) -> bool:
    """Return whether weak references lead to these very objects, in order."""
    return len(references) == len(objects) and all(
        reference() is each for reference, each in zip(references, objects, strict=True)
    )


def record_on_gpu(compute: Callable[[], Tensor], pool: Any) -> Replay:
    """Run a function once, so that all its constants exist; then record it by `record_once_run`."""
    # The warm-up runs on another stream, as PyTorch asks: allocations and plans happen here.
    ahead = torch.cuda.Stream()
    ahead.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(ahead):
        compute()
    torch.cuda.current_stream().wait_stream(ahead)
    return record_once_run(compute, pool)


def record_once_run(compute: Callable[[], Tensor], pool: Any) -> Replay:
    """Record a function that has run before as a CUDA graph; recording runs no kernel.

    Args:
        compute: function that launches kernels on the current device and reads no result.
        pool: memory pool, which graphs that are not replayed at the same time may share.

    Raises:
        RuntimeError: when the function reads a result on the host.
    """
    graph = torch.cuda.CUDAGraph()
    # Thread-local: another thread may allocate on the device during the capture.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = compute()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
