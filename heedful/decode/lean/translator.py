"""An encoder-decoder Transformer that reads a sentence and continues its translations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heedful.decode.lean.arrays import Floats, Integers, address, aligned, empty
from heedful.decode.lean.layers import Layers, Norm, check_stack
from heedful.decode.lean.weights import AnyWeights, Unserved
from heedful.models.spec import TranslatorSpec
from heedful.nn.native.library import kernels, multiplies_int8
from heedful.nn.native.structures import Seen
from heedful.nn.spec import EmbeddingSpec

_ROOM = 32
"""Steps that there is room for at first; where it is full, twice as much is taken."""

_CROWDED = 64
"""Slots from which on it is worth looking for some that no continuation needs any more."""


class LeanTranslator:
    """A translator that is not trained.

    Args:
        spec: of the model.
        weights: its own.
        int8: whether products are of 8-bit integers.

    Raises:
        Unserved: when the model needs PyTorch, or its weights do not fit it.
    """

    def __init__(self, spec: TranslatorSpec, weights: AnyWeights, *, int8: bool) -> None:
        if int8 and not multiplies_int8():
            raise Unserved
        masks = [
            each.kind
            for block in (spec.encoder.block, spec.decoder.block)
            for attention in (block.self_attention, block.cross_attention)
            if attention is not None
            for each in [attention.mask]
        ]
        if masks != ["everything", "causal", "everything"]:
            raise Unserved
        for stack in (spec.encoder, spec.decoder):  # before anything is read
            check_stack(stack, spec.width)
        self.spec = spec
        width, share = spec.width, spec.share_embeddings
        target = weights.take("target_embedding.weight", spec.target_vocabulary, width)
        source = output = target
        if share in ("target", "none"):
            source = weights.take("source_embedding.weight", spec.source_vocabulary, width)
        if share in ("inputs", "none"):
            output = weights.take("output_projection.weight", spec.target_vocabulary, width)
        bias = None
        if spec.output_bias:
            bias = weights.take("output_bias", spec.target_vocabulary)
        self.source_input = _Input(weights, "source_input", spec.embedding, source)
        self.target_input = _Input(weights, "target_input", spec.embedding, target)
        self.encoder = Layers(weights, "encoder", spec.encoder, width, int8=int8)
        self.decoder = Layers(weights, "decoder", spec.decoder, width, int8=int8)
        self.output = weights.output(output, bias, int8=int8)

    def begin(self, source: Sequence[int]) -> Continuations:
        """Read a sentence.

        Args:
            source: ids [S], special tokens included.
        """
        ids = np.array(source, np.int64)
        positions = np.arange(len(ids))
        states = self.encoder(
            self.source_input(ids, positions),
            positions,
            Seen(batch=1, num_queries=len(ids), num_keys=len(ids)),
        )
        return Continuations(self, [each(states) for each in self.decoder.memory_maps])


class Continuations:
    """What has been written of one sentence's translation, in several ways side by side.

    All of them stand in one row of slots, as in `heedful.nn.beam_cache`; which are whose past is
    told to attention. Shapes: W continuations, S slots in use, N layers, K heads, E their width.

    Args:
        translator: which writes.
        memory: of each layer [tokens, 2 · K · E], the keys of all heads, then their values.
    """

    def __init__(self, translator: LeanTranslator, memory: Sequence[Floats]) -> None:
        self._translator = translator
        self._memory = memory  # held, as its addresses are
        keys = [each.ctypes.data for each in memory]
        values = memory[0].shape[1] // 2 * memory[0].itemsize
        self._over = keys, [at + values for at in keys]
        self._length = 0
        self._own: npt.NDArray[np.bool_] | None = None  # [W, S]; None while there is one
        self._crowded = _CROWDED
        layers = translator.decoder
        shape = (2, layers.count, layers.key_heads, 1 + _ROOM, layers.head_width)
        self._held = empty(shape)
        self._used = 0

    def step(self, tokens: Sequence[int]) -> Floats:
        """Append a token to each continuation.

        Args:
            tokens: [W], the beginning of a sequence at first.

        Returns:
            The scores of what may follow, [W, V], which may be overwritten.
        """
        width, translator = len(tokens), self._translator
        if self._own is not None:
            self._own = np.concatenate([self._own, np.eye(width, dtype=np.bool_)], 1)
        stop = self._used + width
        self._make_room(stop)
        positions = np.full(width, self._length)
        x = translator.target_input(np.array(tokens, np.int64), positions)
        visible = None if self._own is None or self._own.all() else self._own.view(np.uint8)
        layers = translator.decoder
        slot = layers.head_width
        head = slot * self._held.shape[3]
        own = Seen(
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
        tokens_read, both = self._memory[0].shape
        cross = Seen(
            batch=1,
            num_queries=width,
            num_keys=tokens_read,
            key_head=layers.memory_head_width,
            key_slot=both,
            value_head=layers.memory_head_width,
            value_slot=both,
        )
        keys, values = (self._places(kind) for kind in range(2))
        states = layers(x, positions, own, (keys, values), self._used, cross, self._over)
        self._used, self._length = stop, self._length + 1
        scale = translator.spec.output_scale
        return translator.output(states if scale is None else states * np.float32(scale))

    def choose(self, continuations: Sequence[int]) -> None:
        """Go on with these of them, W' in any order; some perhaps several times."""
        if self._own is not None:
            self._own = self._own[list(continuations)]
        elif len(continuations) > 1:
            self._own = np.ones((len(continuations), self._used), np.bool_)
        if self._used < self._crowded:
            return
        needed = np.ones(self._used, np.bool_) if self._own is None else self._own.any(0)
        count = int(needed.sum())
        self._crowded = max(_CROWDED, 2 * count)
        if 2 * count > self._used:
            self._crowded *= 2
            return
        self._held = aligned(self._held[:, :, :, : self._used][:, :, :, needed])
        self._used = count
        if self._own is not None:
            self._own = self._own[:, needed]

    def _make_room(self, slots: int) -> None:
        room = self._held.shape[3]
        if slots <= room:
            return
        larger = empty((*self._held.shape[:3], max(2 * room, slots), self._held.shape[4]))
        larger[:, :, :, : self._used] = self._held[:, :, :, : self._used]
        self._held = larger

    def _places(self, kind: int) -> list[int]:
        """Where the slots of each layer's keys, or values, begin."""
        of_kind, of_layer = self._held.strides[:2]
        first = self._held.ctypes.data + kind * of_kind
        return [first + layer * of_layer for layer in range(self._held.shape[1])]


class _Input:
    """Ids at positions as vectors.

    Args:
        weights: where its own are.
        name: theirs.
        spec: which parts there are.
        table: of the vocabulary, [V, D].
    """

    def __init__(self, weights: AnyWeights, name: str, spec: EmbeddingSpec, table: Floats) -> None:
        width = table.shape[1]
        self.table = table
        self.scale = math.sqrt(width) if spec.scale else 1.0
        self.norm = Norm(weights, f"{name}.norm", spec.norm, width) if spec.norm else None
        self.spec = spec.positions
        self.first = 0
        self.places: Floats | None = None
        if self.spec.kind == "learned":
            assert self.spec.max_length is not None  # the spec checks it
            self.first = self.spec.unused_rows
            rows = self.first + self.spec.max_length
            self.places = weights.take(f"{name}.positions.weight", rows, width)

    def __call__(self, ids: Integers, positions: Integers) -> Floats:
        """[R] each to [R, D]."""
        width = self.table.shape[1]
        if self.spec.kind == "sinusoidal":
            needed = int(positions.max()) + 1
            if self.places is None or len(self.places) < needed:
                rows = max(_CROWDED, 1 << (needed - 1).bit_length())
                self.places = sinusoids(rows, width, self.spec.layout)
        x = empty((len(ids), width))
        done = kernels().heedful_embed(
            *(address(ids), address(positions), len(ids)),
            *(address(self.table), len(self.table), self.scale),
            *(address(self.places), 0 if self.places is None else len(self.places), self.first),
            *(width, address(x)),
        )
        assert done, "ids and positions lie in their tables"
        return x if self.norm is None else self.norm(x)


def sinusoids(rows: int, width: int, layout: str) -> Floats:
    """Encodings of positions 0 to rows − 1, [rows, D] (Vaswani 2017, section 3.5).

    Args:
        rows: how many.
        width: D.
        layout: `pairs` (sines and cosines take turns) or `halves`.
    """
    even = np.arange(0, width, 2, dtype=np.float64)
    frequencies = np.exp(even * (-math.log(10_000.0) / width))
    angles = np.arange(rows, dtype=np.float64)[:, None] * frequencies
    waves = np.stack([np.sin(angles), np.cos(angles)], -1 if layout == "pairs" else 1)
    return aligned(waves.reshape(rows, -1)[:, :width].astype(np.float32))
