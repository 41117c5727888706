"""A decoder's steps on memory at fixed addresses, so that a search runs as a CUDA graph.

Embedding, blocks, final norm and logits of a step read and write tensors that are made once, and
the number of the step is one of these tensors. A GPU then replays a whole step, with the search's
choice among its logits, as one CUDA graph: the host launches one graph instead of some hundred
kernels.

A search borrows a decoder of the size it needs, loads the state that a model's `start` returns, and
moves to another size when sentences are done or slots run out. All W continuations of a sentence
are in its row from the start, and `choose` only changes which slots are the past of which
continuation.

Shapes: B sentences, W continuations of each, C slots, M tokens of the source, K key/value heads, E
their width, V vocabulary.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.engines.class_exchange import become
from heedful.engines.host_parts import encoding_table
from heedful.engines.inference.cpu_block import split_states
from heedful.engines.inference.cuda_graphs import (
    STEP_TOKENS,
    GraphedStack,
    Record,
    Replay,
    Shape,
    empty_caches,
    empty_memory,
)
from heedful.engines.inference.fixed_attention import FixedPositions, fix_attention
from heedful.memory import ran_out
from heedful.models.stack import StackState
from heedful.nn.attention.beam_cache import BeamCache
from heedful.nn.attention.cache import KeyValues, StaticCache
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.mixer import Context
from heedful.nn.positions import NOTHING_HERE

MOST_KEPT = 64
"""Most programs kept for later searches; see `_KEPT_SHARE`."""

_KEPT_SHARE = 8
"""Keys and values of kept programs take at most one eighth of a GPU's memory. A program for 32
sentences and 256 slots of a base-size model has 100 MB in 16 bits."""

_SOURCE_MULTIPLE = 32
"""Lengths of the source are rounded up to multiples of this; each length costs a recording."""


class Program(Protocol):
    """A step of a search on fixed memory."""

    @property
    def bytes(self) -> int:
        """Size of the keys and values in bytes."""


P = TypeVar("P", bound=Program)


class DecoderState(Protocol):
    """The state that `start` of a translator or a language model returns."""

    @property
    def decoder(self) -> StackState:
        """States of the blocks."""


class DecoderModel(Protocol):
    """A translator or a language model."""

    def input_modules(self) -> dict[str, InputEmbedding]:
        """Return the module that embeds the tokens of each stack."""

    def stream_logits(self, hidden: Tensor) -> Tensor:
        """Scores [B, W, V] of the next token from final states [B, W, D]."""


class FixedSteps:
    """Fixed memory for the searches of one model.

    Args:
        model: translator or language model; an engine's copy.
        stack: decoder of the model.
        table: token embeddings of the decoder.
        record: recorder that turns a function that has run already into one that replays it.
    """

    def __init__(
        self,
        model: DecoderModel,
        stack: GraphedStack,
        table: TokenEmbedding,
        record: Record,
    ) -> None:
        self.model = model
        self.stack = stack
        self.table = table
        self.embedding = model.input_modules()["decoder"]
        self._record = record
        self._fails = False
        self._kept: OrderedDict[Hashable, list[Program]] = OrderedDict()
        self._kept_limit = math.inf
        if self.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.device).total_memory
            self._kept_limit = memory / _KEPT_SHARE
        self._lock = threading.Lock()
        fix_attention(stack)

    def refusal(self, state: DecoderState, steps: int, width: int) -> str | None:
        """Return why a search cannot run on fixed memory, as a clause; None where it can.

        Args:
            state: state from the model's `start`.
            steps: most steps of the search.
            width: number of continuations of a sentence, W.
        """
        caches = _caches(state)
        if self._fails or self.stack.by_definition:
            return "the definition was asked for, or steps cannot be recorded"
        if not caches or any(type(cache) not in (BeamCache, StaticCache) for cache in caches):
            return "not all blocks keep keys and values of all tokens"
        if any(block.cut for block in self._blocks):
            return "a residual connection was cut"
        # Autocast frees its copies of weights when it ends, and the graph would read them.
        if torch.is_autocast_enabled(self.device.type):
            return "weights are converted in every step"
        if state.decoder.width > 1:
            return "the search has begun"
        # Rows never drop slots that no continuation needs any more, and grow by W in each step.
        if width > STEP_TOKENS:
            return f"it has more than {STEP_TOKENS} continuations of a sentence"
        # Checked for the whole search beforehand: a graph cannot fall back in the middle of it.
        last = self.shape(state, 1, width, slots_of(state) + steps * width).slots
        table = getattr(self.embedding.positions, "max_length", None)
        if table is not None and int(next_positions(state).max()) + steps > table:
            return "learned positions end before the search"
        if self.embedding.positions is not None and _table(self.embedding, last, self) is None:
            return "no table holds the sinusoids of so many positions"
        return None

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.table.weight.device

    @property
    def _blocks(self) -> Iterable[Any]:
        return cast("Iterable[Any]", self.stack.blocks)

    def shape(self, state: DecoderState, rows: int, width: int, slots: int) -> Shape:
        """Return the smallest shape for these numbers of sentences, continuations and slots."""
        positions = state.decoder.memory_positions
        source = 0 if positions is None else positions.shape[1]
        source = -(-source // _SOURCE_MULTIPLE) * _SOURCE_MULTIPLE
        like = self.table.weight.new_empty(0).expand(rows, width, 0)
        return Shape.around(like, slots, source)

    def borrow(self, key: Hashable, build: Callable[[], P]) -> P:
        """Return a program for a key that no other search is using: a kept one or a new one.

        Raises:
            RuntimeError: when a new one does not fit in memory, even without those kept.
        """
        with self._lock:
            if self._kept.get(key):
                return cast("P", self._kept[key].pop())
        try:
            # Tensors made in inference mode could not be written outside of it later.
            with torch.inference_mode(False), torch.no_grad():
                return build()
        except RuntimeError as error:
            if not ran_out(error):
                raise
        # Kept programs are only a cache, so their memory can be freed.
        with self._lock:
            self._kept.clear()
        with torch.inference_mode(False), torch.no_grad():
            return build()

    def give_back(self, key: Hashable, program: Program) -> None:
        """Keep a program for another search; the least recently used ones make room for it."""
        with self._lock:
            # Several searches may have programs of one key at the same time.
            self._kept.setdefault(key, []).append(program)
            self._kept.move_to_end(key)
            while True:
                sizes = [each.bytes for kept in self._kept.values() for each in kept]
                # The latest one stays, however large: the next search is likely to want it.
                fits = len(sizes) == 1 or sum(sizes) <= self._kept_limit
                if fits and len(sizes) <= MOST_KEPT:
                    return
                oldest = next(iter(self._kept))
                self._kept[oldest].pop(0)
                if not self._kept[oldest]:
                    del self._kept[oldest]

    def recorded(self, compute: Callable[[], Tensor]) -> Replay:
        """Return a graph of a step that has run; the step itself if it cannot be recorded."""
        if self._fails:
            return compute
        try:
            return self._record(compute)
        except RuntimeError as error:
            # Memory may be free again later; any other failure comes from the model and would
            # recur.
            self._fails = self._fails or not ran_out(error)
            return compute


def next_positions(state: DecoderState) -> Tensor:
    """Return the positions of a step's input tokens [B, 1] int64."""
    # The state of a language model holds these positions, as its prompts differ in length; the
    # state of a translator holds the lengths of the prefixes.
    prompt_positions: Tensor | None = getattr(state, "next_positions", None)
    if prompt_positions is not None:
        return prompt_positions
    lengths: Tensor = cast("Any", state).lengths
    return lengths[:, None]


def _caches(state: DecoderState) -> list[Any]:
    return [cache for cache, _, _ in map(split_states, state.decoder.blocks)]


def _memory(state: DecoderState) -> list[KeyValues]:
    """Return keys and values of the source for each block with cross-attention."""
    read = [memory for _, _, memory in map(split_states, state.decoder.blocks)]
    return [memory for memory in read if memory is not None]


def slots_of(state: DecoderState) -> int:
    """Return the number of slots in use."""
    used: int = _caches(state)[0].used
    return used


class FixedDecoder:
    """One step of a decoder, and the memory it works on.

    Args:
        fixed: fixed memory of the model.
        shape: sizes of the memory, where W is the number of tokens.
        state: state of any sentences, for the number and size of its heads.

    Attributes:
        used: number of slots in use [1] int64.
    """

    def __init__(self, fixed: FixedSteps, shape: Shape, state: DecoderState) -> None:
        self.shape = shape
        self._stack, self._table, self._model = fixed.stack, fixed.table, fixed.model
        rows, width, slots, device = shape.rows, shape.tokens, shape.slots, fixed.device
        self._input = _with_table(fixed, slots)

        def no_positions(count: int) -> Tensor:
            return torch.full((rows, count), NOTHING_HERE, device=device)

        self._query, self._key, self._source = (
            no_positions(width),
            no_positions(slots),
            no_positions(shape.source),
        )
        # [B, W, C]: the slots that are the past of each continuation. One continuation owns all.
        self._lineage: Tensor | None = None
        if width > 1:
            self._lineage = torch.zeros((rows, width, slots), dtype=torch.bool, device=device)
        self._eye = torch.eye(width, dtype=torch.bool, device=device).expand(rows, -1, -1)
        # The number is a tensor: a recorded Python number would stay that of the recorded step.
        self.used = torch.zeros(1, dtype=torch.int64, device=device)
        self._beam = torch.arange(width, device=device)
        self._slots = self._beam.clone()
        blocks = list(cast("Iterable[Any]", fixed.stack.blocks))
        self._caches = empty_caches(blocks, shape, fixed.table.weight, self._slots)
        self._memory = empty_memory(_memory(state), shape)

    @property
    def bytes(self) -> int:
        """Size of the keys and values in bytes."""
        pairs = [(c.keys, c.values) for c in self._caches]
        pairs += [(m.keys, m.values) for m in self._memory]
        return sum(keys.nbytes + values.nbytes for keys, values in pairs)

    def load(self, state: DecoderState) -> None:
        """Load the state of sentences, at most one for each row."""
        used, rows = slots_of(state), len(next_positions(state))
        self._clear()
        self._query[:rows] = next_positions(state)
        caches = _caches(state)
        if used:
            lineage = state.decoder.lineage
            of_keys = caches[0].positions if lineage is None else lineage.positions
            self._key[:rows, :used] = of_keys[:, :used]
            for buffer, cache in zip(self._caches, caches, strict=True):
                buffer.keys[:rows, :, :used] = cache.keys[:, :, :used]
                buffer.values[:rows, :, :used] = cache.values[:, :, :used]
            if self._lineage is not None:
                self._lineage[:rows, :, :used] = True
        self.used.fill_(used)
        positions = state.decoder.memory_positions
        if positions is None:
            return
        length = positions.shape[1]
        self._source[:rows, :length] = positions
        for memory, read in zip(self._memory, _memory(state), strict=True):
            memory.keys[:rows, :, :length] = read.keys
            memory.values[:rows, :, :length] = read.values

    def take(self, other: FixedDecoder, rows: Tensor, used: int) -> None:
        """Copy rows [B'] of another decoder with their first `used` slots."""
        count = len(rows)
        self._clear()
        pairs = [(self._query, other._query), (self._source, other._source)]
        for mine, its in pairs:
            mine[:count] = its.index_select(0, rows)
        self._key[:count, :used] = other._key[:, :used].index_select(0, rows)
        if self._lineage is not None and other._lineage is not None:
            self._lineage[:count, :, :used] = other._lineage[..., :used].index_select(0, rows)
        for buffer, cache in zip(self._caches, other._caches, strict=True):
            buffer.keys[:count, :, :used] = cache.keys[:, :, :used].index_select(0, rows)
            buffer.values[:count, :, :used] = cache.values[:, :, :used].index_select(0, rows)
        for memory, read in zip(self._memory, other._memory, strict=True):
            memory.keys[:count] = read.keys.index_select(0, rows)
            memory.values[:count] = read.values.index_select(0, rows)
        self.used.fill_(used)

    def advance(self, tokens: Tensor) -> Tensor:
        """Append a token to every continuation [B, W]; return logits [B, W, V] of the next.

        Logits are float32. Rows without a sentence have positions of −1, which hide them as they
        hide padding.
        """
        # Every result goes into an existing tensor: a graph reads and writes the addresses it was
        # recorded with, and nothing here may depend on a value that the host knows.
        torch.add(self._beam, self.used, out=self._slots)
        self._key.index_copy_(1, self._slots, self._query)
        if self._lineage is not None:
            self._lineage.index_copy_(2, self._slots, self._eye)
        x = self._input(tokens, self._query, self._table)
        own = FixedPositions(self._query, self._key, lineage=self._lineage)
        over = FixedPositions(self._query, self._source) if self._memory else None
        memory: Sequence[tuple[KeyValues, ...]] = [(m,) for m in self._memory]
        states = [
            (cache, *read, None)
            for cache, read in zip(self._caches, memory or [()] * len(self._caches), strict=True)
        ]
        # Bypasses the stack's own graphs: the search records the whole step, blocks included.
        hidden = self._stack.step_in_place(x, Context(own, over), states)
        self.used += self.shape.tokens
        # Positions count up; the −1 of empty rows stays.
        self._query += self._query >= 0
        return self._model.stream_logits(hidden).float()

    def choose(self, parents: Tensor) -> None:
        """Go on with the continuations `parents` [B, W] int64; keys and values stay in place."""
        if self._lineage is not None:
            index = parents[..., None].expand_as(self._lineage)
            # Copied and not changed in place: a lineage may be needed again after its row was
            # overwritten.
            self._lineage.copy_(self._lineage.gather(1, index))

    def _clear(self) -> None:
        for places in (self._query, self._key, self._source):
            places.fill_(NOTHING_HERE)
        if self._lineage is not None:
            self._lineage.fill_(False)


class _TabledPositions(nn.Module):
    """Encodings of positions from a table that holds all of them, without a check of values.

    Args:
        table: encodings [P, D].
        first: row of position 0.
    """

    def __init__(self, table: Tensor, first: int) -> None:
        super().__init__()
        self.table = table
        self.first = first

    def forward(self, positions: Tensor) -> Tensor:
        """Map positions [B, L] int64 to vectors [B, L, D]; zeros for −1."""
        rows = F.embedding(positions.clamp(min=0) + self.first, self.table)
        return rows.masked_fill((positions < 0)[..., None], 0.0)


def _with_table(fixed: FixedSteps, slots: int) -> InputEmbedding:
    """Return the embedding of a step, with a table of as many positions as slots."""
    made = become(fixed.embedding, InputEmbedding)
    if made.positions is None:
        return made
    found = _table(made, slots, fixed)
    assert found is not None
    # A new dictionary, since `become` shares the attributes with the model's own embedding.
    made._modules = {**made._modules, "positions": _TabledPositions(*found)}
    return made


def _table(embedding: InputEmbedding, slots: int, fixed: FixedSteps) -> tuple[Tensor, int] | None:
    assert embedding.positions is not None
    found = encoding_table(embedding.positions, torch.full((1, 1), slots - 1))
    return None if found is None else (found[0].to(fixed.device), found[1])
