"""BLOOM (Scao 2022): linear penalties of distance, and a norm of the embeddings."""

from __future__ import annotations

from typing import Any

from heedful.interop.config_fields import Fields
from heedful.interop.plain_decoders import Part, PlainDecoder
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import AlibiSpec, NormSpec


def _further(fields: Fields, head_width: int, length: int) -> Part:
    fields.check_aliases(n_embed="hidden_size", num_attention_heads="n_head")
    # The residual sum would begin from the normed stream.
    fields.refuse_unless("apply_residual_connection_post_layernorm", [False], False)
    norm = NormSpec(epsilon=fields.number("layer_norm_epsilon", 1e-5))
    # Theirs is a slope times the place of the key: the same scores but for a constant of each
    # query, which softmax takes away.
    return Part(attention={"position_bias": AlibiSpec()}, embedding={"norm": norm, "dropout": 0.0})


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    return {}


ARCHITECTURE = PlainDecoder(
    model_type="bloom",
    classes=("BloomForCausalLM", "BloomModel"),
    keys={
        "width": ("hidden_size", 64),
        "heads": ("n_head", 8),
        "layers": ("n_layer", 2),
        "vocabulary": ("vocab_size", 250880),
        "epsilon": ("layer_norm_epsilon", 1e-5),
        "dropout": ("hidden_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
    },
    tied=True,
    prefix="transformer.",
    modules={
        "word_embeddings": "embedding",
        "word_embeddings_layernorm": "input.norm",
        "ln_f": "decoder.final_norm",
    },
    layers="h",
    layer={
        "input_layernorm": "self_attention_norm",
        "post_attention_layernorm": "feedforward_norm",
        "self_attention.dense": "self_attention.output",
        "mlp.dense_h_to_4h": "feedforward.up",
        "mlp.dense_4h_to_h": "feedforward.down",
    },
    fused="self_attention.query_key_value",
    further=_further,
    write=_write,
    # Ways to sum in parts, and the length of training, which no table limits.
    inert=("slow_but_exact", "seq_length", "masked_softmax_fusion", "bias_dropout_fusion"),
).architecture()
