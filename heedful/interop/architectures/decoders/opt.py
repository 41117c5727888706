"""OPT (Zhang 2022): GPT-2's block with ReLU and positions that begin in the third row."""

from __future__ import annotations

from typing import Any

from heedful.interop.config_fields import Fields
from heedful.interop.plain_decoders import Part, PlainDecoder
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import PositionSpec

_UNUSED = 2  # Fairseq's rows of the begin and the padding token


def _further(fields: Fields, head_width: int, length: int) -> Part:
    # The model of 350 million parameters norms after the sums, and its embeddings are narrower.
    fields.refuse_unless("do_layer_norm_before", [True], True)
    fields.refuse_unless("_remove_final_layer_norm", [False], False)
    fields.refuse_unless("layer_norm_elementwise_affine", [True], True)
    width = fields.integer("hidden_size", 768)
    fields.refuse_unless("word_embed_proj_dim", [width], width)
    positions = PositionSpec(kind="learned", max_length=length, unused_rows=_UNUSED)
    bias = fields.flag("enable_bias", True)
    return Part(
        attention={"bias": bias}, network={"bias": bias}, embedding={"positions": positions}
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    return {
        "enable_bias": spec.decoder.block.self_attention.bias,
        "word_embed_proj_dim": spec.width,
        "max_position_embeddings": spec.embedding.positions.max_length,
    }


ARCHITECTURE = PlainDecoder(
    model_type="opt",
    classes=("OPTForCausalLM", "OPTModel"),
    keys={
        "width": ("hidden_size", 768),
        "heads": ("num_attention_heads", 12),
        "layers": ("num_hidden_layers", 12),
        "inner": ("ffn_dim", 3072),
        "length": ("max_position_embeddings", 2048),
        "vocabulary": ("vocab_size", 50272),
        "activation": ("activation_function", "relu"),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.0),
    },
    tied=True,
    prefix="model.decoder.",
    modules={
        "embed_tokens": "embedding",
        "embed_positions": "input.positions",
        "final_layer_norm": "decoder.final_norm",
    },
    layers="layers",
    layer={
        "self_attn_layer_norm": "self_attention_norm",
        "final_layer_norm": "feedforward_norm",
        "self_attn.q_proj": "self_attention.query",
        "self_attn.k_proj": "self_attention.key",
        "self_attn.v_proj": "self_attention.value",
        "self_attn.out_proj": "self_attention.output",
        "fc1": "feedforward.up",
        "fc2": "feedforward.down",
    },
    further=_further,
    write=_write,
    # Whole layers are dropped in training alone.
    inert=("layerdrop",),
).architecture()
