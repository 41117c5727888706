"""How many parameters a model has, and where they sit: counted from its spec, without building it.

Legend: D model width, H heads, K key/value heads, E head width, F feed-forward width,
V vocabulary, N layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.models.spec import BlockSpec, StackSpec, TranslatorSpec
from heedful.nn.spec import (
    AttentionSpec,
    BiasSpec,
    FeedForwardSpec,
    NormSpec,
    RelativeKeysSpec,
    T5BiasSpec,
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a parameter table.

    Args:
        part: embeddings, encoder, decoder or output.
        component: what is counted.
        each: parameters (numbers, not bytes) of one such component.
        count: how many of them the model has; 0 for a component that is another one's tensor.
        note: a remark for people, such as what a tensor is shared with.
    """

    part: str
    component: str
    each: int
    count: int = 1
    note: str = ""

    @property
    def total(self) -> int:
        """Parameters of all of them together."""
        return self.each * self.count


def count_parameters(spec: TranslatorSpec) -> int:
    """The exact number of parameters of a model; a shared tensor counts once.

    Fixed tables (sinusoids, rotary frequencies, ALiBi slopes) are not parameters.
    """
    return sum(row.total for row in parameter_table(spec))


def parameter_table(spec: TranslatorSpec) -> list[Row]:
    """Every component of a model with its parameters; the totals add up to the model's."""
    return [
        *_embedding_rows(spec),
        *_stack_rows("encoder", spec.encoder, spec.width),
        *_stack_rows("decoder", spec.decoder, spec.width),
        *_output_rows(spec),
    ]


def _embedding_rows(spec: TranslatorSpec) -> list[Row]:
    source, target = spec.source_vocabulary * spec.width, spec.target_vocabulary * spec.width
    if spec.share_embeddings in ("all", "inputs"):
        rows = [Row(part="embeddings", component="source and target pieces", each=source)]
    else:
        rows = [
            Row(part="embeddings", component="source pieces", each=source),
            Row(part="embeddings", component="target pieces", each=target),
        ]
    # Encoder and decoder embed positions and normalise on their own, even with shared pieces.
    positions = spec.embedding.positions
    if positions.kind == "learned":
        assert positions.max_length is not None
        table = (positions.unused_rows + positions.max_length) * spec.width
        rows.append(Row(part="embeddings", component="learned positions", each=table, count=2))
    elif positions.kind == "sinusoidal":
        rows.append(
            Row(part="embeddings", component="sinusoidal positions", each=0, count=2, note="fixed")
        )
    if spec.embedding.num_segments is not None:
        each = spec.embedding.num_segments * spec.width
        rows.append(Row(part="embeddings", component="segments", each=each, count=2))
    if spec.embedding.norm is not None:
        each = norm_parameters(spec.embedding.norm, spec.width)
        rows.append(Row(part="embeddings", component="norms", each=each, count=2))
    return rows


def _output_rows(spec: TranslatorSpec) -> list[Row]:
    shared = spec.share_embeddings in ("all", "target")
    projection = Row(
        part="output",
        component="output projection",
        each=spec.target_vocabulary * spec.width,
        count=0 if shared else 1,
        note="the target embedding's tensor" if shared else "",
    )
    if not spec.output_bias:
        return [projection]
    return [projection, Row(part="output", component="bias", each=spec.target_vocabulary)]


def _stack_rows(part: str, stack: StackSpec, width: int) -> list[Row]:
    block, layers = stack.block, stack.num_layers

    def row(component: str, each: int, count: int = layers, note: str = "") -> Row:
        return Row(part=part, component=component, each=each, count=count, note=note)

    def attention_row(component: str, specs: list[AttentionSpec]) -> Row:
        counts = [attention_parameters(spec, width) for spec in specs]
        if not stack.is_pruned:
            return row(component, counts[0])
        return row(component, sum(counts), 1, "all layers, pruned")

    blocks = layers_of(stack, width)
    rows = [attention_row("self-attention", [each.self_attention for each in blocks])]
    per_layer_bias = bias_parameters(
        block.self_attention.position_bias, block.self_attention, width
    )
    if per_layer_bias:
        rows.append(row("position bias", per_layer_bias))
    if block.cross_attention is not None:
        cross = [each.cross_attention for each in blocks if each.cross_attention is not None]
        rows.append(attention_row("cross-attention", cross))
    rows.append(row("feed-forward", feedforward_parameters(block.feedforward, width)))
    rows.append(row("norms", norm_parameters(block.norm, width), layers * norms_per_block(block)))
    if stack.final_norm is not None:
        rows.append(row("final norm", norm_parameters(stack.final_norm, width), 1))
    shared_bias = bias_parameters(stack.shared_position_bias, block.self_attention, width)
    if shared_bias:
        rows.append(row("position bias of all layers", shared_bias, 1))
    return rows


def layers_of(stack: StackSpec, width: int) -> list[BlockSpec]:
    """The block of every layer with as many heads as pruning left it; to count by, not to build."""

    def left(spec: AttentionSpec) -> AttentionSpec:
        kept = spec.kept_heads
        if kept is None:
            return spec
        shared = spec.num_heads // (spec.num_kv_heads or spec.num_heads)
        counts = {
            "num_heads": len(kept),
            "num_kv_heads": len({head // shared for head in kept}),
            "head_width": head_width(spec, width),
            "kept_heads": None,
        }
        return spec.model_copy(update=counts)

    return [
        block.replace(**{name: left(each) for name, each in block.attentions().items()})
        for block in stack.blocks
    ]


def head_width(spec: AttentionSpec, width: int) -> int:
    """E: as set, or the model's width shared among the heads."""
    return spec.head_width if spec.head_width is not None else width // spec.num_heads


def key_value_width(spec: AttentionSpec, width: int) -> int:
    """K·E: how many numbers the keys of one token have (and its values as many)."""
    return (spec.num_kv_heads or spec.num_heads) * head_width(spec, width)


def query_width(spec: AttentionSpec, width: int) -> int:
    """H·E: how many numbers the queries of one token have."""
    return spec.num_heads * head_width(spec, width)


def attention_parameters(spec: AttentionSpec, width: int) -> int:
    """Parameters of the four projections of one attention: query, key, value, output."""
    queries, keys = query_width(spec, width), key_value_width(spec, width)
    weights = 2 * width * queries + 2 * width * keys
    output_bias = spec.bias if spec.output_bias is None else spec.output_bias
    return weights + (queries + 2 * keys if spec.bias else 0) + (width if output_bias else 0)


def bias_parameters(bias: BiasSpec | None, attention: AttentionSpec, width: int) -> int:
    """Parameters of one learned position bias: T5's buckets by heads, or Shaw's relative keys."""
    if isinstance(bias, T5BiasSpec):
        return bias.num_buckets * attention.num_heads
    if isinstance(bias, RelativeKeysSpec):
        return (2 * bias.max_distance + 1) * head_width(attention, width)
    return 0


def is_gated(spec: FeedForwardSpec) -> bool:
    """Whether the feed-forward network has a gate, and so three matrices instead of two."""
    return spec.activation in ("swiglu", "geglu", "geglu_tanh", "reglu")


def feedforward_parameters(spec: FeedForwardSpec, width: int) -> int:
    """Parameters of one position-wise network, or of all its experts and their router."""
    up = 2 if is_gated(spec) else 1
    weights = (up + 1) * width * spec.width
    each = weights + (up * spec.width + width if spec.bias else 0)
    if spec.experts is None:
        return each
    return spec.experts.num_experts * (each + width)


def norm_parameters(spec: NormSpec, width: int) -> int:
    """Parameters of one norm: a scale, and a shift where the mean is taken away."""
    return width if spec.kind == "rms" else 2 * width


def norms_per_block(block: BlockSpec) -> int:
    """One norm for each sub-layer, before or after it."""
    return 2 if block.cross_attention is None else 3
