"""How much arithmetic a model does, in floating-point operations, counted from its spec.

A multiply-add counts as two operations. Counted are the matrix products: with weights, between
queries and keys, between attention weights and values. Left out are norms, activations, softmax
and look-ups, which do work proportional to D per token where the products do D². Every pair of
query and key counts, also one that a mask hides, since that is what a dense kernel computes.

Legend: D model width, H heads, K key/value heads, E head width, V vocabulary, N layers,
S source tokens, T target tokens (its end token among them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heedful.models.cost_parameters import (
    is_gated,
    key_value_width,
    layers_of,
    query_width,
)
from heedful.models.family import VisionSpec
from heedful.models.spec import BlockSpec, StackSpec, TranslatorSpec
from heedful.nn.spec import AttentionSpec, FeedForwardSpec, RelativeKeysSpec

BACKWARD_PER_FORWARD = 2
"""Each product of the forward pass has two in the backward pass: one for each of its factors."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations by what causes them.

    Args:
        weights: products with the blocks' weight matrices; linear in the number of tokens.
        attention: products between tokens (scores, and sums of values); quadratic in length.
        output: the projection to the vocabulary.
    """

    weights: int = 0
    attention: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        """All operations."""
        return self.weights + self.attention + self.output

    def __add__(self, other: Work) -> Work:
        return Work(
            weights=self.weights + other.weights,
            attention=self.attention + other.attention,
            output=self.output + other.output,
        )

    def times(self, factor: int) -> Work:
        """The same work done `factor` times."""
        return Work(
            weights=self.weights * factor,
            attention=self.attention * factor,
            output=self.output * factor,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Operations for one sentence pair of a training batch.

    Args:
        source_tokens: S.
        target_tokens: T.
        encoder: forward work of the encoder.
        decoder: forward work of the decoder and the output layer.
    """

    source_tokens: int
    target_tokens: int
    encoder: Work
    decoder: Work

    @property
    def forward(self) -> Work:
        """Forward work for the pair."""
        return self.encoder + self.decoder

    @property
    def total(self) -> Work:
        """Forward and backward work for the pair."""
        return self.forward.times(1 + BACKWARD_PER_FORWARD)

    @property
    def per_target_token(self) -> float:
        """Forward and backward operations for the pair, divided by its target tokens."""
        return self.total.total / self.target_tokens


@dataclass(frozen=True, kw_only=True)
class DecodingCost:
    """Operations for translating one sentence with a cache.

    Args:
        source_tokens: S.
        target_tokens: T, which is also the number of steps.
        beam: hypotheses carried along.
        encoding: the encoder, and the keys and values that cross-attention reads; done once.
        first_step: the first step, all hypotheses together.
        last_step: the last step, all hypotheses together.
        steps: all steps together.
    """

    source_tokens: int
    target_tokens: int
    beam: int
    encoding: Work
    first_step: Work
    last_step: Work
    steps: Work

    @property
    def total(self) -> Work:
        """Everything for the sentence."""
        return self.encoding + self.steps


def training_cost(spec: TranslatorSpec, source_tokens: int, target_tokens: int) -> TrainingCost:
    """Operations to learn from one pair of these lengths, in tokens."""

    def work(block: BlockSpec) -> Work:
        assert block.cross_attention is not None
        own, cross = block.self_attention, block.cross_attention
        return Work(
            weights=2
            * (
                target_tokens
                * (
                    _query_side(own, spec.width)
                    + _key_side(own, spec.width)
                    + _query_side(cross, spec.width)
                    + _feedforward(block.feedforward, spec.width)
                )
                + source_tokens * _key_side(cross, spec.width)
            ),
            attention=_pairs(own, spec.width, target_tokens, target_tokens)
            + _pairs(cross, spec.width, target_tokens, source_tokens),
        )

    output = Work(output=2 * spec.width * spec.target_vocabulary * target_tokens)
    return TrainingCost(
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        encoder=encoding_work(spec, source_tokens),
        decoder=_of_layers(spec.decoder, spec.width, work) + output,
    )


def encoding_work(spec: TranslatorSpec, source_tokens: int) -> Work:
    """Forward work of the encoder for one sentence."""
    return _stack_work(spec.encoder, spec.width, source_tokens)


def image_work(spec: VisionSpec) -> Work:
    """Forward work for one image; `output` is the classifier with what is before it."""
    patches = spec.num_states - (spec.pooling == "first")
    cut = 2 * patches * spec.channels * spec.patch_size**2 * spec.width
    pooler = 2 * spec.width**2 if spec.pooler else 0
    output = Work(output=pooler + 2 * spec.width * len(spec.class_names))
    return Work(weights=cut) + _stack_work(spec.encoder, spec.width, spec.num_states) + output


def step_work(spec: TranslatorSpec, source_tokens: int, step: int, beam: int = 1) -> Work:
    """Forward work of one decoding step with a cache.

    Args:
        spec: the model.
        source_tokens: S, the keys of cross-attention.
        step: 1 for the first; the number of tokens that a hypothesis then has.
        beam: hypotheses. They share a row, whose tokens all are scored against all of them; in
            long searches somewhat fewer, as tokens that none needs any more are dropped.
    """

    def work(block: BlockSpec) -> Work:
        assert block.cross_attention is not None
        own, cross = block.self_attention, block.cross_attention
        per_token = (
            _query_side(own, spec.width)
            + _key_side(own, spec.width)
            + _query_side(cross, spec.width)
            + _feedforward(block.feedforward, spec.width)
        )
        pairs = _pairs(own, spec.width, 1, step * beam) + _pairs(
            cross, spec.width, 1, source_tokens
        )
        return Work(weights=2 * per_token, attention=pairs)

    output = Work(output=2 * spec.width * spec.target_vocabulary)
    return (_of_layers(spec.decoder, spec.width, work) + output).times(beam)


def decoding_cost(
    spec: TranslatorSpec, source_tokens: int, target_tokens: int, beam: int = 1
) -> DecodingCost:
    """Operations to translate one sentence of these lengths, in tokens, with a cache."""

    def memory(block: BlockSpec) -> Work:
        assert block.cross_attention is not None
        return Work(weights=2 * source_tokens * _key_side(block.cross_attention, spec.width))

    first = step_work(spec, source_tokens, 1, beam)
    last = step_work(spec, source_tokens, target_tokens, beam)
    # Steps differ only in the length of the past, so their sum is that of an arithmetic series.
    both = first + last
    return DecodingCost(
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        beam=beam,
        encoding=encoding_work(spec, source_tokens) + _of_layers(spec.decoder, spec.width, memory),
        first_step=first,
        last_step=last,
        steps=Work(
            weights=both.weights * target_tokens // 2,
            attention=both.attention * target_tokens // 2,
            output=both.output * target_tokens // 2,
        ),
    )


def _stack_work(stack: StackSpec, width: int, tokens: int) -> Work:
    """Forward work of a stack of self-attention for one sequence."""

    def work(block: BlockSpec) -> Work:
        own = block.self_attention
        per_token = (
            _query_side(own, width) + _key_side(own, width) + _feedforward(block.feedforward, width)
        )
        return Work(weights=2 * tokens * per_token, attention=_pairs(own, width, tokens, tokens))

    return _of_layers(stack, width, work)


def _of_layers(stack: StackSpec, width: int, work: Callable[[BlockSpec], Work]) -> Work:
    """The work of all layers, each with the heads it has."""
    return sum(map(work, layers_of(stack, width)), Work())


def _query_side(spec: AttentionSpec, width: int) -> int:
    """Multiply-adds per query token: its query, and the output projection."""
    return 2 * width * query_width(spec, width)


def _key_side(spec: AttentionSpec, width: int) -> int:
    """Multiply-adds per key token: its key and its value."""
    return 2 * width * key_value_width(spec, width)


def _feedforward(spec: FeedForwardSpec, width: int) -> int:
    """Multiply-adds per token; of experts, those that work on it, and the router."""
    each = (3 if is_gated(spec) else 2) * width * spec.width
    if spec.experts is None:
        return each
    return spec.experts.per_token * each + width * spec.experts.num_experts


def _pairs(spec: AttentionSpec, width: int, queries: int, keys: int) -> int:
    """Operations between tokens: a score and a weighted value for each pair of them."""
    per_query = 2 * query_width(spec, width)
    work = 2 * per_query * queries * keys
    if isinstance(spec.position_bias, RelativeKeysSpec):
        work += per_query * queries * (2 * spec.position_bias.max_distance + 1)
    return work
