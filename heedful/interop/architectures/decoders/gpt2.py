"""GPT-2 (Radford 2019): a pre-norm decoder with learned positions and biases."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from heedful.interop.rewrites import scaled_embeddings, tabled_positions
from heedful.interop.tensor_table import (
    Table,
    concatenated,
    output_projection,
    prefix_of,
    renamed,
    same,
    transposed,
)
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Causal
from heedful.nn.spec import AttentionSpec, EmbeddingSpec, FeedForwardSpec, NormSpec, PositionSpec

_NORMS = {"ln_1": "self_attention_norm", "ln_2": "feedforward_norm"}
_LINEAR = {
    "attn.c_proj": "self_attention.output",
    "mlp.c_fc": "feedforward.up",
    "mlp.c_proj": "feedforward.down",
}
"""Modules of the class Conv1D, whose weight is stored as [in, out] instead of [out, in]."""


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    fields.check_aliases(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        max_position_embeddings="n_positions",
    )
    # This option scales the scores of every layer differently.
    fields.refuse_unless("scale_attn_by_inverse_layer_idx", [False], False)
    fields.refuse_unless("add_cross_attention", [False], False)
    # `reorder_and_upcast_attn` computes scores in float32, which is always done here; the call only
    # checks its type.
    fields.flag("reorder_and_upcast_attn", False)
    width = fields.integer("n_embd", 768)
    norm = NormSpec(epsilon=fields.number("layer_norm_epsilon", 1e-5))
    positions = fields.integer("n_positions", 1024)
    block = BlockSpec.of(
        norm_placement="pre",
        norm=norm,
        self_attention=AttentionSpec(
            num_heads=fields.integer("n_head", 12),
            scale=None if fields.flag("scale_attn_weights", True) else 1.0,
            dropout=fields.number("attn_pdrop", 0.1),
            mask=Causal(),
        ),
        feedforward=FeedForwardSpec(
            # The field is null in most files, which means 4 D.
            width=fields.optional_integer("n_inner") or 4 * width,
            activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        ),
        dropout=fields.number("resid_pdrop", 0.1),
    )
    return CausalLMSpec(
        width=width,
        vocabulary=fields.integer("vocab_size", 50257),
        embedding=EmbeddingSpec(
            scale=False,
            positions=PositionSpec(kind="learned", max_length=positions),
            dropout=fields.number("embd_pdrop", 0.1),
        ),
        decoder=StackSpec.of(
            num_layers=fields.integer("n_layer", 12), block=block, final_norm=norm
        ),
        tied=fields.flag("tie_word_embeddings", True),
        max_length=positions,
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    block = spec.decoder.block
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": spec.vocabulary,
        "n_positions": spec.embedding.positions.max_length,
        "n_embd": spec.width,
        "n_layer": spec.decoder.num_layers,
        "n_head": block.self_attention.num_heads,
        "n_inner": block.feedforward.width,
        "activation_function": ACTIVATION_NAMES.get(block.feedforward.activation),
        "layer_norm_epsilon": block.norm.epsilon,
        "scale_attn_weights": block.self_attention.scale is None,
        "resid_pdrop": block.dropout,
        "embd_pdrop": spec.embedding.dropout,
        "attn_pdrop": block.self_attention.dropout,
        "tie_word_embeddings": spec.tied,
    }


def _table(spec: CausalLMSpec, names: Names) -> Table:
    prefix = prefix_of(names, "transformer.")
    embedding = f"{prefix}wte.weight"
    rules = [
        same(embedding, "embedding.weight"),
        same(f"{prefix}wpe.weight", "input.positions.weight"),
        *renamed({"ln_f": "decoder.final_norm"}, theirs=prefix),
    ]
    for number in range(spec.decoder.num_layers):
        layer, block = f"{prefix}h.{number}.", f"decoder.blocks.{number}."
        rules += renamed(_NORMS, theirs=layer, ours=block)
        # `c_attn` is q, k and v side by side, [D, 3 D]; its transpose has them below each other.
        for part in ("weight", "bias"):
            maps = [f"{block}self_attention.{name}.{part}" for name in ("query", "key", "value")]
            name, sizes = f"{layer}attn.c_attn.{part}", [spec.width] * 3
            rules.append(concatenated(name, maps, sizes, transpose=part == "weight"))
        for theirs, ours in _LINEAR.items():
            rules.append(transposed(f"{layer}{theirs}.weight", f"{block}{ours}.weight"))
            rules.append(same(f"{layer}{theirs}.bias", f"{block}{ours}.bias"))
    head, copies = output_projection("lm_head.weight", embedding if spec.tied else None)
    # Buffers: the causal mask and the score of hidden keys, −10,000.
    ignored = (r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",)
    return Table((*rules, *head), tuple(copies), ignored)


ARCHITECTURE = Architecture(
    model_type="gpt2",
    kind="causal_lm",
    read=_read,
    write=_write,
    tensors=_table,
    rewrites=(scaled_embeddings, tabled_positions),
    classes=("GPT2LMHeadModel", "GPT2Model"),
    # The size of the stored causal mask; tokens that were to be added to the vocabulary.
    inert=("n_ctx", "n_special", "predict_special_tokens"),
)
