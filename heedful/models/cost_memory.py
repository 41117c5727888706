"""How many bytes a model needs, to learn and to translate, counted from its spec.

Weights, gradients, optimiser moments and caches are exact. Activations are an estimate: the
tensors that the backward pass needs. `heedful.models.cost_peak` adds what passes.

Legend: D model width, H heads, K key/value heads, E head width, F feed-forward width, N layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from heedful.kernels.library import has_row_kernels
from heedful.models.cost_parameters import (
    count_parameters,
    is_gated,
    key_value_width,
    layers_of,
    norms_per_block,
    query_width,
)
from heedful.models.family import CausalLMSpec, EncoderSpec, ModelSpec, VisionSpec
from heedful.models.spec import BlockSpec, StackSpec, TranslatorSpec
from heedful.nn.spec import AttentionSpec, FeedForwardSpec, NormSpec

FLOAT32 = 4
"""Bytes of a float32; weights are trained in it at every precision."""

BFLOAT16 = 2
"""Bytes of a bfloat16 or float16."""

_LOGIT_CHUNK = 1 << 22
"""Logits that the fused loss holds at a time, twice (`heedful.nn.losses`)."""


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
        casts: the weights as products of fewer bits read them.
    """

    weights: int
    gradients: int
    moments: int
    moving_average: int
    activations: int
    loss: int
    casts: int = 0

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the batch."""
        return self.weights + self.gradients + self.moments + self.moving_average

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.fixed + self.casts + self.activations + self.loss


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
    spec: ModelSpec,
    source_tokens: int,
    target_tokens: int,
    *,
    activation_bytes: int = FLOAT32,
    moving_average: bool = False,
    kept_weights_length: int = 0,
    parameters: int | None = None,
) -> TrainingMemory:
    """Bytes of one training step with Adam.

    Args:
        spec: the model.
        source_tokens: source positions of a batch, padding among them; of a translator only.
        target_tokens: target positions of a batch, or those of a model with a single stack.
        activation_bytes: per number: `FLOAT32`, or `BFLOAT16` for mixed precision.
        moving_average: whether an average of the weights is kept beside them.
        kept_weights_length: longest sentence in tokens if the kernel keeps its attention weights
            (`reference`, `matmul`); 0 for kernels that recompute them (`sdpa`, `chunked`, `flex`).
        parameters: learned numbers; counted if unset, which only a translator's can be here.
    """
    if parameters is None:
        assert isinstance(spec, TranslatorSpec)
        parameters = count_parameters(spec)
    weights = parameters * FLOAT32
    mixed = activation_bytes < FLOAT32
    activations = 0
    read = [source_tokens, target_tokens] if isinstance(spec, TranslatorSpec) else [target_tokens]
    for stack, tokens in zip(stacks_of(spec), read, strict=True):
        kept = _stack_kept(stack, spec.width, kept_weights_length, mixed=mixed)
        activations += tokens * kept.plus(_embedding_kept(spec)).bytes(activation_bytes)
    if isinstance(spec, TranslatorSpec):
        # Every layer's cross-attention keeps keys and values of the source, and, where products
        # have fewer bits, what it made them from.
        each = _memory_numbers(spec) + (spec.width if mixed else 0)
        activations += source_tokens * spec.decoder.num_layers * each * activation_bytes
    vocabulary = predicted_vocabulary(spec)
    tables = spec.width * vocabulary
    return TrainingMemory(
        weights=weights,
        gradients=weights,
        moments=2 * weights,
        moving_average=weights if moving_average else 0,
        activations=activations,
        loss=_loss_bytes(spec.width, vocabulary, target_tokens, activation_bytes),
        casts=max(0, parameters - tables) * activation_bytes if mixed else 0,
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
    cross = own = 0
    for block in layers_of(spec.decoder, spec.width):
        assert block.cross_attention is not None
        cross += 2 * key_value_width(block.cross_attention, spec.width) * number_bytes
        own += 2 * key_value_width(block.self_attention, spec.width) * number_bytes
    return DecodingMemory(
        weights=count_parameters(spec) * number_bytes,
        cross_per_source_token=cross,
        self_per_target_token=own,
        cross_cache=cross * sentences * source_tokens,
        self_cache=own * sentences * beam * target_tokens,
    )


def stacks_of(spec: ModelSpec) -> list[StackSpec]:
    """The stacks of a model: the encoder's first where there are two."""
    found = (getattr(spec, "encoder", None), getattr(spec, "decoder", None))
    return [stack for stack in found if stack is not None]


def predicted_vocabulary(spec: ModelSpec) -> int:
    """V of what is predicted; a model that labels predicts among too few to matter."""
    if isinstance(spec, TranslatorSpec):
        return spec.target_vocabulary
    if isinstance(spec, CausalLMSpec | EncoderSpec):
        return spec.vocabulary
    return 1


def human_bytes(count: int) -> str:
    """Bytes with a decimal unit: 1 GB is 10⁹ bytes."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while abs(size) >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    digits = 0 if units[0] == "B" or abs(size) >= 99.95 else 1
    return f"{size:.{digits}f} {units[0]}"


class _Kept(NamedTuple):
    """What is kept per token: numbers, those always in float32, dropout's marks of a byte each."""

    numbers: int
    marks: int
    wide: int = 0

    def plus(self, other: _Kept, times: int = 1) -> _Kept:
        return _Kept(*(mine + times * its for mine, its in zip(self, other, strict=True)))

    def bytes(self, number_bytes: int) -> int:
        return self.numbers * number_bytes + self.marks + self.wide * FLOAT32


def _loss_bytes(width: int, vocabulary: int, tokens: int, number_bytes: int) -> int:
    """Two chunks of logits, states and their gradients, the projection's gradients and casts."""
    rows = min(tokens, max(1, _LOGIT_CHUNK // vocabulary))
    chunks = 2 * rows * vocabulary * number_bytes
    states = tokens * width * (FLOAT32 + number_bytes)
    table = width * vocabulary
    cast = table * number_bytes if number_bytes < FLOAT32 else 0
    return chunks + states + table * (number_bytes + 2 * FLOAT32) + cast


def _embedding_kept(spec: ModelSpec) -> _Kept:
    """Kept before the first block."""
    if isinstance(spec, VisionSpec):
        return _Kept(0, spec.width if spec.dropout else 0, spec.width)
    embedding = spec.embedding
    return _Kept(
        0,
        spec.width if embedding.dropout else 0,
        _norm_kept(embedding.norm, spec.width) if embedding.norm else 0,
    )


def _stack_kept(stack: StackSpec, width: int, length: int, *, mixed: bool) -> _Kept:
    final = _Kept(0, 0, _norm_kept(stack.final_norm, width) if stack.final_norm else 0)
    own = stack.block.self_attention
    if own.position_bias is None:  # one that all blocks share is added as its own would be
        own = own.model_copy(update={"position_bias": stack.shared_position_bias})
    block = stack.block.replace(self_attention=own)
    return final.plus(_block_kept(block, width, length, mixed=mixed), stack.num_layers)


def _block_kept(block: BlockSpec, width: int, length: int, *, mixed: bool) -> _Kept:
    own, cross = block.self_attention, block.cross_attention
    kept = _attention_kept(own, width, length, mixed=mixed)
    kept = kept.plus(_Kept(2 * key_value_width(own, width), 0))
    if own.rotary is not None and _made_anew(own, width):
        # Values are read where the projection left them, beside what was turned since.
        kept = kept.plus(_Kept(query_width(own, width) + key_value_width(own, width), 0))
    if cross is not None:
        kept = kept.plus(_attention_kept(cross, width, length, mixed=mixed))
    kept = kept.plus(_feedforward_kept(block.feedforward))
    # Each part keeps its input, each norm what it normalises, each dropout its marks unless kernels
    # in C make them anew. Sums of the residual stream, and so what norms read, are float32 at every
    # precision.
    if has_row_kernels(width):
        part = _Kept(width, 0, width)
    else:
        part = _Kept(width, width if block.dropout else 0, _norm_kept(block.norm, width))
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


def _attention_kept(spec: AttentionSpec, width: int, length: int, *, mixed: bool) -> _Kept:
    """Queries, the heads' outputs, and the weights over `length` keys unless they are made anew.

    Softmax keeps its result in float32; the product with the values keeps what it reads.
    """
    weights = 0 if _made_anew(spec, width) else spec.num_heads * length
    copied = weights if mixed or spec.dropout else 0
    marks = weights if spec.dropout else 0
    return _Kept(2 * query_width(spec, width) + copied, marks, weights)


def _made_anew(spec: AttentionSpec, width: int) -> bool:
    """Whether kernels in C serve (`heedful.nn.kernels.native`), which keep no weights."""
    plain = not spec.dropout and spec.softcap is None and spec.position_bias is None
    return plain and has_row_kernels(spec.head_width or width // spec.num_heads)


def _memory_numbers(spec: TranslatorSpec) -> int:
    cross = spec.decoder.block.cross_attention
    assert cross is not None
    return 2 * key_value_width(cross, spec.width)
