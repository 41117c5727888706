"""A stack's decoding steps as recorded graphs, which a GPU replays without being told each kernel.

A step of a few tokens is some hundred kernels of a few microseconds, which a processor takes longer
to start than a GPU to run. A CUDA graph starts them all at once, but always the same ones, on the
same memory. So each shape of a step has a graph with memory of its own: batch and lengths are
rounded up, and surplus entries get positions of −1, which hide them as they hide padding.

Caches stay the values they are. A graph has a copy of their keys and values, which is up to date as
long as its own latest step is what comes in again; else it is made anew.

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

from heedful.engines.inference.cpu_block import split_states
from heedful.engines.inference.engine_parts import EnginePart, become
from heedful.memory import ran_out
from heedful.models.block import Block, BlockState
from heedful.models.stack import Stack
from heedful.nn.attention.beam_cache import BeamCache, Store
from heedful.nn.attention.cache import KeyValues
from heedful.nn.mixer import Context, Reordering
from heedful.nn.positions import NOTHING_HERE, Positions

MOST_GRAPHS = 24
"""Graphs that are kept; the one that was not used for longest makes room for another."""

STEP_TOKENS = 16
"""Most tokens of a sentence that count as a step."""

_FEWEST_SLOTS = 64
"""Slots of the smallest graph: 12 steps of a beam of 5, 64 of greedy search."""

_SOURCE_MULTIPLE = 16
"""Lengths of the source are rounded up to multiples of it."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the steps that a graph serves.

    Args:
        rows: B, rounded up.
        tokens: W, the tokens of each sentence in a step.
        slots: C.
        source: M, rounded up; 0 without a memory.
        dtype: of what goes in.
    """

    rows: int
    tokens: int
    slots: int
    source: int
    dtype: torch.dtype

    @classmethod
    def around(cls, x: Tensor, slots: int, source: int) -> Self:
        """The smallest that x [B, W, D] fits into, with so many slots and tokens of the source."""
        rows = x.shape[0]
        return cls(
            1 << (rows - 1).bit_length() if rows < 8 else -(-rows // 8) * 8,
            x.shape[1],
            max(_FEWEST_SLOTS, 1 << (slots - 1).bit_length()),
            -(-source // _SOURCE_MULTIPLE) * _SOURCE_MULTIPLE,
            x.dtype,
        )


class GraphedStack(EnginePart, Stack):
    """A stack that runs decoding steps as graphs, and all else by the definition.

    A graph is recorded when its shape comes for the second time. Where recording fails, as for
    experts, whose work depends on the numbers, the definition runs all steps from then on.
    """

    _record: Callable[[Callable[[], Tensor]], Replay]
    _graphs: OrderedDict[Shape, _Graph | None]
    _lock: threading.Lock
    _failed: bool

    @classmethod
    def of(cls, stack: Stack, record: Callable[[Callable[[], Tensor]], Replay]) -> Self:
        """A stack of an engine's copy of a model as one of this class.

        Args:
            stack: its attributes are shared.
            record: makes of a function of no arguments another that does the same again.
        """
        made = become(stack, cls)
        made._record = record
        made._graphs = OrderedDict()
        made._lock = threading.Lock()
        made._failed = False
        return made

    def step_in_place(self, x: Tensor, context: Context, states: Sequence[BlockState]) -> Tensor:
        """Pass tokens x [B, W, D] through every block and the final norm, by the definition.

        Args:
            x: embedded.
            context: positions of the pass.
            states: of each block, with caches that are written in place.

        Returns:
            As x.
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
        """Run all blocks as a graph.

        Args:
            x: [B, W, D].
            context: positions of the pass.
            states: of each block.

        Returns:
            As x, and the states after x's tokens; None where there is no graph for this pass.
        """
        positions = context.positions
        caches = [cache for cache, _, _ in map(split_states, states)]
        memory = [read for _, _, read in map(split_states, states) if read is not None]
        if self._failed or context.biases or not caches or torch.is_grad_enabled():
            return None
        if any(block.cut for block in cast("Iterable[Block]", self.blocks)):
            return None
        if torch.is_autocast_enabled(x.device.type):  # whose copies of weights do not last
            return None
        if any(type(cache) is not BeamCache for cache in caches):
            return None
        if x.shape[1] > STEP_TOKENS or positions.query.shape != x.shape[:2]:
            return None
        source = 0 if context.memory_positions is None else context.memory_positions.key.shape[1]
        shape = Shape.around(x, positions.key.shape[1], source)
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
                with torch.inference_mode(False), torch.no_grad():
                    blocks = list(cast("Iterable[Block]", self.blocks))
                    graph = _Graph(blocks, shape, x, memory, self._record)
            except RuntimeError as error:
                if not ran_out(error):
                    self._failed = True
                    self._graphs.clear()
                return None
        self._graphs[shape] = graph
        self._graphs.move_to_end(shape)
        while len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return graph


Replay = Callable[[], Tensor]
"""Does what was recorded, with what stands in its memory now."""

Record = Callable[[Callable[[], Tensor]], Replay]
"""Makes of a function of no arguments another that does the same again."""


class _Graph:
    """A step of one shape, and the memory it works on."""

    def __init__(
        self,
        blocks: Sequence[Block],
        shape: Shape,
        x: Tensor,
        memory: Sequence[KeyValues],
        record: Callable[[Callable[[], Tensor]], Replay],
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
        attentions = [block.self_attention for block in blocks]
        shapes = [(rows, a.key_heads_left, slots, a.head_width) for a in attentions]
        self.cache_buffers = [SlotCache(x.new_zeros(s), x.new_zeros(s), self.slots) for s in shapes]
        self.memory = [
            KeyValues(
                *(
                    t.new_zeros(rows, t.shape[1], shape.source, t.shape[3])
                    for t in (m.keys, m.values)
                )
            )
            for m in memory
        ]
        self._reads: list[weakref.ref[KeyValues]] = []
        self._follows: list[weakref.ref[Store]] = []
        self._used = 0
        self.replay = record(self._compute)

    def step(
        self, x: Tensor, context: Context, memory: Sequence[KeyValues], caches: Sequence[BeamCache]
    ) -> tuple[Tensor, tuple[BeamCache, ...]]:
        """Run one step of at most as many sentences and tokens as the graph's sizes."""
        positions = context.positions
        rows, tokens = positions.query.shape
        stop = positions.key.shape[1]
        used = stop - tokens
        if stop < self._used:  # so nothing stands beyond what is in use
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
        self.slots.copy_(self.all_slots[used:stop])
        y = self.replay()[:rows].clone()
        for buffer, store in zip(self.cache_buffers, stores, strict=True):
            store.keys[:, :, used:stop] = buffer.keys[:rows, :, used:stop]
            store.values[:, :, used:stop] = buffer.values[:rows, :, used:stop]
        self._follows, self._used = list(map(weakref.ref, stores)), stop
        return y, tuple(cache for cache, _ in claims)

    def _is_next(self, used: int, stores: Sequence[Store]) -> bool:
        """Return whether these are the keys and values of this graph's latest step."""
        if used != self._used or len(stores) != len(self._follows):
            return False
        return all(of() is store for of, store in zip(self._follows, stores, strict=True))

    def _set_memory(self, rows: int, context: Context, memory: Sequence[KeyValues]) -> None:
        if context.memory_positions is None:
            return
        length = context.memory_positions.key.shape[1]
        known = len(self._reads) == len(memory)
        if known and all(of() is one for of, one in zip(self._reads, memory, strict=True)):
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
    """A cache of fixed slots: what comes is put where `slots` [W] says, and all are attended to."""

    keys: Tensor
    values: Tensor
    slots: Tensor

    def extend(self, keys: Tensor, values: Tensor, positions: Positions) -> tuple[Self, Positions]:
        """See `KeyValueCache`; the positions are of all slots already."""
        self.keys.index_copy_(2, self.slots, keys)
        self.values.index_copy_(2, self.slots, values)
        return self, positions

    def reorder(self, choice: Reordering) -> Self:
        """Refuse: a graph never chooses among beams."""
        raise NotImplementedError


def record_on_gpu(compute: Callable[[], Tensor], pool: Any) -> Replay:
    """A CUDA graph of a function, once it has run so that all it needs is made.

    Args:
        compute: starts kernels on the current device, and looks at nothing they give.
        pool: a handle of memory, which graphs that are not replayed at the same time may share.

    Raises:
        RuntimeError: when it does look.
    """
    ahead = torch.cuda.Stream()
    ahead.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(ahead):
        compute()
    torch.cuda.current_stream().wait_stream(ahead)
    return record_once_run(compute, pool)


def record_once_run(compute: Callable[[], Tensor], pool: Any) -> Replay:
    """A CUDA graph of a function that has run before; recording it runs nothing.

    Args:
        compute: starts kernels on the current device, and looks at nothing they give.
        pool: a handle of memory, which graphs that are not replayed at the same time may share.

    Raises:
        RuntimeError: when it does look.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = compute()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
