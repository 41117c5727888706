"""How many bytes a model needs, to learn and to translate, counted from its spec.

Weights, gradients, optimiser moments and caches are exact. Activations are an estimate: the
tensors that the backward pass needs, without the allocator's slack and passing results.

Legend: D model width, H heads, K key/value heads, E head width, F feed-forward width, N layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from heedful.models.cost_parameters import (
    count_parameters,
    is_gated,
    key_value_width,
    norms_per_block,
    query_width,
)
from heedful.models.spec import BlockSpec, StackSpec, TranslatorSpec
from heedful.nn.spec import AttentionSpec, FeedForwardSpec, NormSpec

FLOAT32 = 4
"""Bytes of a float32; weights are trained in it at every precision."""

BFLOAT16 = 2
"""Bytes of a bfloat16 or float16."""

_LOGIT_CHUNK = 1 << 22
"""Logits that the fused loss holds at a time (`heedful.nn.losses`)."""


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes of a training step, by what they are for.

    Args:
        weights: the parameters.
        gradients: one number per parameter.
        moments: Adam's two running means per parameter.
        moving_average: an exponential moving average of the weights, if one is kept.
        activations: what the forward pass leaves for the backward pass; an estimate.
        loss: the chunk of logits and the gradients that the fused loss holds.
    """

    weights: int
    gradients: int
    moments: int
    moving_average: int
    activations: int
    loss: int

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the batch."""
        return self.weights + self.gradients + self.moments + self.moving_average

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.fixed + self.activations + self.loss


@dataclass(frozen=True, kw_only=True)
class DecodingMemory:
    """Bytes of decoding with a cache.

    Args:
        weights: the parameters.
        cross_per_source_token: keys and values of every layer for one source token; all
            hypotheses of a sentence share them.
        self_per_target_token: keys and values of every layer for one token of one hypothesis.
        cross_cache: of the whole batch.
        self_cache: of the whole batch.
    """

    weights: int
    cross_per_source_token: int
    self_per_target_token: int
    cross_cache: int
    self_cache: int

    @property
    def total(self) -> int:
        """Weights and caches, in bytes."""
        return self.weights + self.cross_cache + self.self_cache


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether something fits.

    Args:
        needed: bytes.
        available: bytes.
    """

    needed: int
    available: int

    @property
    def fits(self) -> bool:
        """Whether there is at least as much as is needed."""
        return self.needed <= self.available

    def describe(self) -> str:
        """A sentence for people."""
        verdict = "Fits" if self.fits else "Does not fit"
        return (
            f"{verdict}: {human_bytes(self.needed)} needed, {human_bytes(self.available)} available"
        )


def training_memory(
    spec: TranslatorSpec,
    source_tokens: int,
    target_tokens: int,
    *,
    activation_bytes: int = FLOAT32,
    moving_average: bool = False,
    kept_weights_length: int = 0,
) -> TrainingMemory:
    """Bytes of one training step with Adam.

    Args:
        spec: the model.
        source_tokens: source positions of a batch, padding among them.
        target_tokens: target positions of a batch, padding among them.
        activation_bytes: per number: `FLOAT32`, or `BFLOAT16` for mixed precision.
        moving_average: whether an average of the weights is kept beside them.
        kept_weights_length: longest sentence in tokens if the kernel keeps its attention weights
            (`reference`, `matmul`); 0 for kernels that recompute them (`sdpa`, `chunked`, `flex`).
    """
    parameters = count_parameters(spec) * FLOAT32
    encoder = _stack_kept(spec.encoder, spec.width, kept_weights_length)
    decoder = _stack_kept(spec.decoder, spec.width, kept_weights_length)
    embedding = _embedding_kept(spec)
    # Every layer's cross-attention keeps keys and values of the source.
    memory = _Kept(spec.decoder.num_layers * _memory_numbers(spec), 0)
    source = encoder.plus(embedding).plus(memory).bytes(activation_bytes)
    target = decoder.plus(embedding).bytes(activation_bytes)
    loss_rows = min(target_tokens, max(1, _LOGIT_CHUNK // spec.target_vocabulary))
    return TrainingMemory(
        weights=parameters,
        gradients=parameters,
        moments=2 * parameters,
        moving_average=parameters if moving_average else 0,
        activations=source_tokens * source + target_tokens * target,
        loss=FLOAT32
        * (
            loss_rows * spec.target_vocabulary
            + target_tokens * spec.width
            + spec.target_vocabulary * spec.width
        ),
    )


def largest_batch(
    spec: TranslatorSpec,
    available: int,
    *,
    activation_bytes: int = FLOAT32,
    moving_average: bool = False,
) -> int:
    """The most tokens on each side of a training batch that fit; 0 if not even one does.

    Args:
        spec: the model.
        available: bytes.
        activation_bytes: as for `training_memory`.
        moving_average: as for `training_memory`.
    """

    def fits(tokens: int) -> bool:
        memory = training_memory(
            spec,
            tokens,
            tokens,
            activation_bytes=activation_bytes,
            moving_average=moving_average,
        )
        return memory.total <= available

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def decoding_memory(
    spec: TranslatorSpec,
    source_tokens: int,
    target_tokens: int,
    *,
    sentences: int = 1,
    beam: int = 1,
    number_bytes: int = FLOAT32,
) -> DecodingMemory:
    """Bytes of translating `sentences` of these lengths together, with caches.

    Args:
        spec: the model.
        source_tokens: of each sentence, padding among them.
        target_tokens: of each hypothesis when it is longest.
        sentences: translated together.
        beam: hypotheses for each sentence.
        number_bytes: of weights and caches: `FLOAT32` or `BFLOAT16`.
    """
    block, layers = spec.decoder.block, spec.decoder.num_layers
    assert block.cross_attention is not None
    cross = 2 * layers * key_value_width(block.cross_attention, spec.width) * number_bytes
    own = 2 * layers * key_value_width(block.self_attention, spec.width) * number_bytes
    return DecodingMemory(
        weights=count_parameters(spec) * number_bytes,
        cross_per_source_token=cross,
        self_per_target_token=own,
        cross_cache=cross * sentences * source_tokens,
        self_cache=own * sentences * beam * target_tokens,
    )


def human_bytes(count: int) -> str:
    """Bytes with a decimal unit: 1 GB is 10⁹ bytes."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while abs(size) >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    digits = 0 if units[0] == "B" or abs(size) >= 99.95 else 1
    return f"{size:.{digits}f} {units[0]}"


class _Kept(NamedTuple):
    """What is kept per token: numbers, and the dropout's marks of a byte each."""

    numbers: int
    marks: int

    def plus(self, other: _Kept, times: int = 1) -> _Kept:
        return _Kept(self.numbers + times * other.numbers, self.marks + times * other.marks)

    def bytes(self, number_bytes: int) -> int:
        return self.numbers * number_bytes + self.marks


def _embedding_kept(spec: TranslatorSpec) -> _Kept:
    """Kept before the first block."""
    embedding = spec.embedding
    return _Kept(
        _norm_kept(embedding.norm, spec.width) if embedding.norm else 0,
        spec.width if embedding.dropout else 0,
    )


def _stack_kept(stack: StackSpec, width: int, length: int) -> _Kept:
    final = _Kept(_norm_kept(stack.final_norm, width) if stack.final_norm else 0, 0)
    return final.plus(_block_kept(stack.block, width, length), stack.num_layers)


def _block_kept(block: BlockSpec, width: int, length: int) -> _Kept:
    own, cross = block.self_attention, block.cross_attention
    kept = _attention_kept(own, width, length)
    kept = kept.plus(_Kept(2 * key_value_width(own, width), 0))
    if cross is not None:
        kept = kept.plus(_attention_kept(cross, width, length))
    kept = kept.plus(_feedforward_kept(block.feedforward))
    # Each part keeps its input, each norm what it normalises, each dropout its marks.
    part = _Kept(width + _norm_kept(block.norm, width), width if block.dropout else 0)
    return kept.plus(part, norms_per_block(block))


def _norm_kept(spec: NormSpec, width: int) -> int:
    """What comes in; the RMS norm, made of several operations, also the result before scaling."""
    return 2 * width if spec.kind == "rms" else width


def _feedforward_kept(spec: FeedForwardSpec) -> _Kept:
    # ReLU's derivative is read off its result; other activations need what went in as well.
    from_result = spec.activation in ("relu", "reglu")
    copies = (1 if from_result else 2) + (2 if is_gated(spec) else 0)
    # What goes into `down` is kept either way; only ReLU's result is then kept beside it.
    if spec.dropout and spec.activation == "relu":
        copies += 1
    return _Kept(copies * spec.width, spec.width if spec.dropout else 0)


def _attention_kept(spec: AttentionSpec, width: int, length: int) -> _Kept:
    """Queries, the heads' outputs, and the weights over `length` keys if they are kept."""
    weights = spec.num_heads * length
    if spec.dropout:
        return _Kept(2 * query_width(spec, width) + 2 * weights, weights)
    return _Kept(2 * query_width(spec, width) + weights, 0)


def _memory_numbers(spec: TranslatorSpec) -> int:
    cross = spec.decoder.block.cross_attention
    assert cross is not None
    return 2 * key_value_width(cross, spec.width)
