"""A translator without PyTorch, for one sentence at a time.

`import torch` takes one to three and a half seconds and a sentence a few hundredths of one, and
most requests of a command line are a sentence. Here NumPy calls the kernels in C that PyTorch's
models run on. The results are those of a batch of one sentence, bit for bit.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.engines.inference.lowering import (
    Floats,
    Integers,
    StackProgram,
    Unsupported,
    WeightSource,
    address,
    aligned,
    empty,
    head_counts,
    lower_block,
    lower_memory,
    lower_norm,
    multiply,
    recurrent_width,
    stack_rotary,
    workspace,
)
from heedful.engines.inference.support import sentence_refusals
from heedful.kernels.library import kernels
from heedful.kernels.structs import AttentionArgs, Norm, StackArgs
from heedful.models.model_spec import TranslatorSpec
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import EmbeddingSpec

_FIRST_STEPS = 32
"""Steps that the first cache holds; a full cache is doubled."""

_COMPACT_FROM = 64
"""Number of slots in use from which it pays to look for slots that no continuation needs."""

_FIRST_SINUSOIDS = 64
"""Positions in the first table of sinusoids."""


class NumpyTranslator:
    """A translator of one sentence at a time; `Unsupported` is raised for what needs PyTorch."""

    def __init__(self, spec: TranslatorSpec, weights: WeightSource) -> None:
        if sentence_refusals(spec):  # checked before anything is read
            raise Unsupported
        self.spec = spec
        self._weights = weights  # keeps the arrays alive: kernels get only their addresses
        width, rows = spec.width, spec.target_vocabulary
        names = dict.fromkeys(("source_embedding", "target_embedding", "output_projection"))
        tables = {name: f"{name}.weight" for name in names}
        # State dicts name a tied table once, and the file holds it under that name.
        tables = {name: spec.ties().get(table, table) for name, table in tables.items()}
        # Tables are read first: a tied output projection packs the array that is in memory.
        target = weights.address(tables["target_embedding"], rows, width)
        source = weights.address(tables["source_embedding"], spec.source_vocabulary, width)
        self.source_input = _Input(
            weights, "source_input", spec.embedding, (source, spec.source_vocabulary, width)
        )
        self.target_input = _Input(weights, "target_input", spec.embedding, (target, rows, width))
        self.encoder = NumpyStack(weights, "encoder", spec.encoder, width)
        self.decoder = NumpyStack(weights, "decoder", spec.decoder, width)
        self.memory = [
            lower_memory(weights, f"decoder.blocks.{number}", block, width)
            for number, block in enumerate(spec.decoder.blocks)
        ]
        bias = "output_bias" if spec.output_bias else None
        self.output = weights.projection(tables["output_projection"], bias, rows, width)

    def begin(self, source: Sequence[int]) -> Continuations:
        """Encode ids [S], special tokens included, and return the only hypothesis, still empty."""
        return Continuations(self, self._read(source))

    def attention(self, source: Sequence[int], target: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the attention to the source in the step that follows each token of a target.

        It is that of `heedful.search.scoring.attention_of`: the mean over the heads of the upper
        half of the layers.

        Args:
            source: ids [S], special tokens included.
            target: ids [T] that the decoder reads, the begin token first.

        Returns:
            [T, S].
        """
        memory, stack = _Memory(self.decoder, self._read(source)), self.decoder
        ids, positions = np.array(target, np.int64), np.arange(len(target))
        x = self.target_input(ids, positions)
        causal = np.tri(len(ids), dtype=np.uint8)
        layers = [block.cross_attention for block in stack.spec.blocks]
        upper = range(len(layers) // 2, len(layers))
        total = np.zeros((len(ids), len(source)))
        for number in upper:
            attention = layers[number]
            assert attention is not None  # each layer reads the sentence
            weights = empty((head_counts(attention)[0], len(ids), len(source)))
            # A kernel writes the weights of its last layer, so the stack ends with this one.
            args = stack.begin(number + 1)
            args.self = AttentionArgs(
                batch=1,
                num_queries=len(ids),
                num_keys=len(ids),
                visible=address(causal),
                visible_query=len(ids),
            )
            args.recurrence.num_texts = 1
            memory.give(args, len(ids), weights)
            stack(x, positions, args)
            # Heads that were pruned count as zeros.
            total += weights.sum(0, dtype=np.float64) / attention.num_heads
        return total / len(upper)

    def _read(self, source: Sequence[int]) -> list[Floats]:
        """Return keys and values of the source for each layer, [S, 2 · K · E]."""
        ids = np.array(source, np.int64)
        positions = np.arange(len(ids))
        args = self.encoder.begin()
        args.self = AttentionArgs(batch=1, num_queries=len(ids), num_keys=len(ids))
        args.recurrence.num_texts = 1
        states = self.encoder(self.source_input(ids, positions), positions, args)
        # Keys and values of the source are projected once, for all steps and hypotheses.
        return [multiply(each, states) for each in self.memory]


class NumpyStack:
    """An encoder or a decoder by kernels in C.

    Attributes:
        state_widths: state size of each layer's recurrence; None for a layer with attention.
    """

    def __init__(self, weights: WeightSource, name: str, spec: StackSpec, width: int) -> None:
        self.spec = spec
        cross = spec.blocks[0].cross_attention  # head widths are equal in all layers
        self.memory_head_width = 0 if cross is None else cross.width_of_heads(width)
        self.state_widths = [recurrent_width(each, width) for each in spec.blocks]
        self.key_heads = self.head_width = 0
        for block in spec.blocks:
            if (own := block.attentions().get("self_attention")) is not None:
                self.key_heads, self.head_width = head_counts(own)[1], own.width_of_heads(width)
        layers = [
            lower_block(weights, f"{name}.blocks.{number}", each, width)
            for number, each in enumerate(spec.blocks)
        ]
        self._program = StackProgram(layers, stack_rotary(spec, width), weights)
        self._addresses = ctypes.c_void_p * len(layers)
        self._final_norm: Norm | None = None
        if spec.final_norm is not None:
            self._final_norm = lower_norm(weights, f"{name}.final_norm", spec.final_norm, width)

    def begin(self, depth: int | None = None) -> StackArgs:
        """Return the arguments of a pass, whose inputs are still to be set.

        Args:
            depth: number of layers from the first on; all if None.
        """
        args = self._program.begin()
        if depth is not None:
            args.num_layers = depth
        return args

    def of_layers(self, addresses: Iterable[int | None]) -> Any:
        """Return one address per layer as an array for the kernels."""
        return self._addresses(*addresses)

    def __call__(self, x: Floats, positions: Integers, args: StackArgs) -> Floats:
        """Run rows x [R, D] at positions [R] through every layer; `args` has keys and masks."""
        library, rows, y = kernels(), len(x), empty(x.shape)
        if self._program.rotary is not None:
            table = self._program.rotary.at(positions.ctypes.data, rows)
            args.rotary = table
        space = workspace(library.heedful_stack_workspace(args, rows))
        library.heedful_stack(args, address(x), rows, address(y), address(space))
        return y if self._final_norm is None else _norm_rows(y, self._final_norm)


class Continuations:
    """Hypotheses of one sentence, decoded side by side.

    Shapes: W continuations, S slots in use, C slots in all, N layers with attention, K heads, E
    their width.

    Args:
        translator: translator of the sentence.
        memory: keys of all heads and then their values, [tokens, 2 · K · E], of each layer.
    """

    def __init__(self, translator: NumpyTranslator, memory: Sequence[Floats]) -> None:
        self._translator = translator
        layers = translator.decoder
        self._memory = _Memory(layers, memory)
        self._length = 0
        self._slots = _Slots(layers) if None in layers.state_widths else None
        self._states = {
            number: np.zeros((1, width), np.float32)
            for number, width in enumerate(layers.state_widths)
            if width is not None
        }

    def step(self, tokens: Sequence[int]) -> Floats:
        """Append a token to each continuation.

        Args:
            tokens: token ids [W]; the beginning-of-sequence token in the first step.

        Returns:
            Logits of the next token [W, V], which the caller may overwrite.
        """
        width, translator = len(tokens), self._translator
        positions = np.full(width, self._length)
        x = translator.target_input(np.array(tokens, np.int64), positions)
        layers = translator.decoder
        args = layers.begin()
        if self._slots is not None:
            self._slots.append(width, args)
        after = {number: empty((width, each.shape[1])) for number, each in self._states.items()}
        # Attention sees the continuations as W queries of one row, a recurrence as W sequences.
        args.recurrence.num_texts = width
        args.states = self._state_places(self._states)
        args.next_states = self._state_places(after)
        self._memory.give(args, width)
        states = layers(x, positions, args)
        self._states, self._length = after, self._length + 1
        scale = translator.spec.output_scale
        scaled = states if scale is None else states * np.float32(scale)
        return multiply(translator.output, scaled)

    def choose(self, continuations: Sequence[int]) -> None:
        """Go on with the given continuations, W' in any order and possibly repeated."""
        chosen = list(continuations)
        if self._slots is not None:
            self._slots.choose(chosen)
        self._states = {number: each[chosen] for number, each in self._states.items()}

    def _state_places(self, states: Mapping[int, Floats]) -> Any:
        layers = self._translator.decoder
        return layers.of_layers(
            address(states.get(number)) for number in range(len(layers.state_widths))
        )


class _Memory:
    """Keys and values of a source, for cross-attention in every layer.

    Args:
        layers: the decoder.
        arrays: keys of all heads and then their values, [tokens, 2 · K · E], of each layer.
    """

    def __init__(self, layers: NumpyStack, arrays: Sequence[Floats]) -> None:
        self._arrays = arrays  # keeps them alive: kernels get only their addresses
        self._head_width = layers.memory_head_width
        keys = [each.ctypes.data for each in arrays]
        # Values follow the keys in each row, so their address is half a row further.
        values = arrays[0].shape[1] // 2 * arrays[0].itemsize
        self._keys = layers.of_layers(keys)
        self._values = layers.of_layers(at + values for at in keys)

    def give(self, args: StackArgs, queries: int, weights: Floats | None = None) -> None:
        """Set the arguments of cross-attention.

        Args:
            args: arguments of a pass.
            queries: number of rows that attend.
            weights: memory for the attention weights [H, queries, tokens], if they are wanted.
        """
        tokens, row = self._arrays[0].shape
        args.cross = AttentionArgs(
            batch=1,
            num_queries=queries,
            num_keys=tokens,
            key_head=self._head_width,
            key_slot=row,
            value_head=self._head_width,
            value_slot=row,
            weights=address(weights),
        )
        args.memory_keys, args.memory_values = self._keys, self._values


class _Slots:
    """Keys and values of continuations whose tokens share one row of slots.

    A mask marks the slots that are the past of each continuation, as in
    `heedful.nn.attention.beam_cache`. So choosing beams copies no keys or values.
    """

    def __init__(self, layers: NumpyStack) -> None:
        self._layers = layers
        self._mask: npt.NDArray[np.bool_] | None = None  # [W, S]; None until W > 1
        self._compact_at = _COMPACT_FROM
        attending = layers.state_widths.count(None)
        shape = (2, attending, layers.key_heads, 1 + _FIRST_STEPS, layers.head_width)
        self._cache = empty(shape)  # [keys and values, N, K, C, E]
        self._used = 0

    def append(self, width: int, args: StackArgs) -> None:
        """Set the arguments of attention from a new token of each continuation to its past."""
        if self._mask is not None:
            # A new token sees itself, and no new token of another continuation.
            self._mask = np.concatenate([self._mask, np.eye(width, dtype=np.bool_)], 1)
        stop = self._used + width
        self._reserve(stop)
        # Greedy search, and the first step, need no mask.
        visible = None if self._mask is None or self._mask.all() else self._mask.view(np.uint8)
        slot = self._layers.head_width
        head = slot * self._cache.shape[3]
        args.self = AttentionArgs(
            batch=1,
            num_queries=width,
            num_keys=stop,
            key_head=head,
            key_slot=slot,
            value_head=head,
            value_slot=slot,
            visible=address(visible),
            visible_query=stop,
        )
        args.keys, args.values = self._places(0), self._places(1)
        args.num_cached = self._used
        self._used = stop
        self._visible = visible  # keeps the mask alive: `args` has only its address

    def choose(self, continuations: list[int]) -> None:
        if self._mask is not None:
            self._mask = self._mask[continuations]
        elif len(continuations) > 1:
            self._mask = np.ones((len(continuations), self._used), np.bool_)
        if self._used < self._compact_at:
            return
        needed = np.ones(self._used, np.bool_) if self._mask is None else self._mask.any(0)
        count = int(needed.sum())
        # Dropping at least half keeps the copies proportional to the tokens that were appended.
        self._compact_at = max(_COMPACT_FROM, 2 * count)
        if 2 * count > self._used:
            self._compact_at *= 2
            return
        self._cache = aligned(self._cache[:, :, :, : self._used][:, :, :, needed])
        self._used = count
        if self._mask is not None:
            self._mask = self._mask[:, needed]

    def _reserve(self, slots: int) -> None:
        capacity = self._cache.shape[3]
        if slots <= capacity:
            return
        larger = empty((*self._cache.shape[:3], max(2 * capacity, slots), self._cache.shape[4]))
        larger[:, :, :, : self._used] = self._cache[:, :, :, : self._used]
        self._cache = larger

    def _places(self, kind: int) -> Any:
        """Return the addresses of each layer's first slot, for keys (0) or values (1)."""
        of_kind, of_layer = self._cache.strides[:2]
        at = self._cache.ctypes.data + kind * of_kind
        places: list[int | None] = []
        # Layers with a recurrence have no share of the cache.
        for width in self._layers.state_widths:
            places.append(at if width is None else None)
            at += of_layer if width is None else 0
        return self._layers.of_layers(places)


class _Input:
    """Input embedding of ids at positions.

    Args:
        weights: weights of the model by name.
        name: name of the module.
        spec: spec of the embedding.
        table: address of the embedding vectors, V and D.
    """

    def __init__(
        self, weights: WeightSource, name: str, spec: EmbeddingSpec, table: tuple[int, int, int]
    ) -> None:
        self.table = table
        width = table[2]
        self._scale = math.sqrt(width) if spec.scale else 1.0
        self._norm = lower_norm(weights, f"{name}.norm", spec.norm, width) if spec.norm else None
        self._positions = spec.positions
        self._sinusoids: Floats | None = None
        self._encodings: tuple[int | None, int, int] = None, 0, 0
        if spec.positions.kind == "learned":
            assert spec.positions.max_length is not None  # the spec checks it
            first = spec.positions.unused_rows
            rows = first + spec.positions.max_length
            at = weights.address(f"{name}.positions.weight", rows, width)
            self._encodings = at, rows, first

    def __call__(self, ids: Integers, positions: Integers) -> Floats:
        """Embed ids [R] at positions [R] as vectors [R, D]."""
        table, rows, width = self.table
        if self._positions.kind == "sinusoidal":
            self._extend_sinusoids(int(positions.max()) + 1)
        x = empty((len(ids), width))
        done = kernels().heedful_embed(
            *(address(ids), address(positions), len(ids)),
            *(table, rows, self._scale),
            *self._encodings,
            *(width, address(x)),
        )
        assert done, "ids and positions lie in their tables"
        return x if self._norm is None else _norm_rows(x, self._norm)

    def _extend_sinusoids(self, length: int) -> None:
        """Extend the table of sinusoids to all positions below a length."""
        if self._sinusoids is None or len(self._sinusoids) < length:
            # Powers of two, so that a growing sequence extends the table a few times only.
            rows = max(_FIRST_SINUSOIDS, 1 << (length - 1).bit_length())
            self._sinusoids = sinusoids(rows, self.table[2], self._positions.layout)
            self._encodings = address(self._sinusoids), rows, 0


def _norm_rows(x: Floats, norm: Norm) -> Floats:
    y = empty(x.shape)
    kernels().heedful_norm(norm, address(x), *x.shape, address(y))
    return y


def sinusoids(rows: int, width: int, layout: str) -> Floats:
    """Return the encodings of positions 0 to rows − 1, [rows, D] (Vaswani 2017, section 3.5).

    Args:
        rows: number of positions.
        width: width of the encodings, D.
        layout: `pairs` (interleaved sines and cosines) or `halves` (sines, then cosines).
    """
    # Computed in float64 and rounded once, which gives the same bits as PyTorch's table.
    even = np.arange(0, width, 2, dtype=np.float64)
    frequencies = np.exp(even * (-math.log(10_000.0) / width))
    angles = np.arange(rows, dtype=np.float64)[:, None] * frequencies
    waves = np.stack([np.sin(angles), np.cos(angles)], -1 if layout == "pairs" else 1)
    return aligned(waves.reshape(rows, -1)[:, :width].astype(np.float32))
