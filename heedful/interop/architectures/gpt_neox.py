"""GPT-NeoX (Black 2022) with sub-layers in a row: LayerNorm, biases and rotary positions.

It computes what a language model trained here with `--model.positions rotary` does. The published
models, Pythia among them, have parallel sub-layers, which no block here can express.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.llama import read_rotary, write_scaling
from heedful.interop.config_fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from heedful.interop.rewrites import scaled_embeddings
from heedful.interop.tensor_table import (
    AFFINE,
    LINEAR,
    Rule,
    Table,
    output_projection,
    prefix_of,
    renamed,
    same,
)
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Causal
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
)

_NORMS = {
    "input_layernorm": "self_attention_norm",
    "post_attention_layernorm": "feedforward_norm",
}
_NETWORK = {"mlp.dense_h_to_4h": "feedforward.up", "mlp.dense_4h_to_h": "feedforward.down"}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    fields.refuse_unless("use_parallel_residual", [False], True)
    width, heads = fields.integer("hidden_size", 6144), fields.integer("num_attention_heads", 64)
    max_length = fields.integer("max_position_embeddings", 2048)
    norm = NormSpec(epsilon=fields.number("layer_norm_eps", 1e-5))
    dropout = fields.number("hidden_dropout", 0.0)
    block = BlockSpec.of(
        norm_placement="pre",
        norm=norm,
        self_attention=AttentionSpec(
            num_heads=heads,
            bias=fields.flag("attention_bias", True),
            dropout=fields.number("attention_dropout", 0.0),
            rotary=_read_rotary(fields, width // heads, max_length),
            mask=Causal(),
        ),
        feedforward=FeedForwardSpec(
            width=fields.integer("intermediate_size", 24576),
            activation=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        ),
        dropout=dropout,
    )
    return CausalLMSpec(
        width=width,
        vocabulary=fields.integer("vocab_size", 50432),
        embedding=EmbeddingSpec(scale=False, positions=PositionSpec(kind="none"), dropout=dropout),
        decoder=StackSpec.of(
            num_layers=fields.integer("num_hidden_layers", 44), block=block, final_norm=norm
        ),
        tied=fields.flag("tie_word_embeddings", False),
        max_length=max_length,
    )


def _read_rotary(fields: Fields, head_width: int, max_length: int) -> RotarySpec:
    rotary = read_rotary(fields, max_length, base_key="rotary_emb_base")
    # The share of a head's channels that are rotated, in a newer and an older place.
    rope = fields.table("rope_parameters")
    share = fields.number("rotary_pct", 0.25)
    share = share if rope is None else rope.number("partial_rotary_factor", share)
    rotated = int(head_width * share)
    return rotary if rotated == head_width else rotary.model_copy(update={"width": rotated})


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    block = spec.decoder.block
    attention = block.self_attention
    rotary = attention.rotary or RotarySpec()
    head_width = attention.width_of_heads(spec.width)
    scaling = write_scaling(rotary)
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "intermediate_size": block.feedforward.width,
        "num_hidden_layers": spec.decoder.num_layers,
        "num_attention_heads": attention.num_heads,
        "hidden_act": ACTIVATION_NAMES.get(block.feedforward.activation),
        # The field is required there, while a model of ours need not have a longest sequence.
        "max_position_embeddings": spec.max_length or max(2048, 2 * (rotary.original_length or 0)),
        "layer_norm_eps": block.norm.epsilon,
        "hidden_dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "attention_bias": attention.bias,
        "use_parallel_residual": False,
        "rotary_emb_base": rotary.base,
        "rotary_pct": (rotary.width or head_width) / head_width,
        **({"rope_scaling": scaling} if scaling else {}),
        "tie_word_embeddings": spec.tied,
    }


def _table(spec: CausalLMSpec, names: Names) -> Table:
    prefix = prefix_of(names, "gpt_neox.")
    embedding = f"{prefix}embed_in.weight"
    attention = spec.decoder.block.self_attention
    shape = (attention.num_heads, 3, attention.width_of_heads(spec.width))
    parts = AFFINE if attention.bias else LINEAR
    rules = [
        same(embedding, "embedding.weight"),
        *renamed({"final_layer_norm": "decoder.final_norm"}, theirs=prefix),
    ]
    for number in range(spec.decoder.num_layers):
        layer, block = f"{prefix}layers.{number}.", f"decoder.blocks.{number}."
        rules += renamed(_NORMS | _NETWORK, theirs=layer, ours=block)
        output = {"attention.dense": "self_attention.output"}
        rules += renamed(output, theirs=layer, ours=block, parts=parts)
        for part in parts:
            maps = [f"{block}self_attention.{name}.{part}" for name in ("query", "key", "value")]
            rules.append(_by_heads(f"{layer}attention.query_key_value.{part}", maps, shape))
    head, copies = output_projection("embed_out.weight", embedding if spec.tied else None)
    # Buffers: the causal mask, the score of hidden keys, the frequencies of the rotation.
    buffers = r"(masked_)?bias|rotary_emb\.inv_freq"
    ignored = (rf"(gpt_neox\.)?layers\.\d+\.attention\.({buffers})",)
    return Table((*rules, *head), tuple(copies), ignored)


def _by_heads(theirs: str, ours: Sequence[str], shape: tuple[int, int, int]) -> Rule:
    """Return the rule for queries, keys and values that are stored head by head, [H, 3, E]."""

    def split(tensors: Sequence[Tensor]) -> list[Tensor]:
        rows = tensors[0].unflatten(0, shape)
        return [rows[:, i].flatten(0, 1).contiguous() for i in range(3)]

    def join(tensors: Sequence[Tensor]) -> list[Tensor]:
        heads = [tensor.unflatten(0, (shape[0], shape[2])) for tensor in tensors]
        return [torch.stack(heads, 1).flatten(0, 2)]

    return Rule((theirs,), tuple(ours), split, join)


ARCHITECTURE = Architecture(
    model_type="gpt_neox",
    kind="causal_lm",
    read=_read,
    write=_write,
    tensors=_table,
    rewrites=(scaled_embeddings,),
    classes=("GPTNeoXForCausalLM", "GPTNeoXModel"),
)
