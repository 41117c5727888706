"""StarCoder 2 (Lozhkov 2024): grouped heads with a window, layer norms, a plain network."""

from __future__ import annotations

from typing import Any

from heedful.interop.architectures.decoders.llama import window_mask, window_of
from heedful.interop.config_fields import Fields
from heedful.interop.plain_decoders import LLAMA_LAYER, Part, PlainDecoder
from heedful.interop.rotary_fields import read_rotary, write_share
from heedful.models.model_spec import CausalLMSpec


def _further(fields: Fields, head_width: int, length: int) -> Part:
    bias = fields.flag("use_bias", True)
    return Part(
        attention={
            "bias": bias,
            "num_kv_heads": fields.integer("num_key_value_heads", 2),
            "rotary": read_rotary(fields, length),
            "mask": window_mask(fields.optional_integer("sliding_window")),
        },
        network={"bias": bias},
        embedding={"dropout": fields.number("embedding_dropout", 0.0)},
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    attention = spec.decoder.block.self_attention
    return {
        "use_bias": attention.bias,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "sliding_window": window_of(spec.decoder.block),
        "embedding_dropout": spec.embedding.dropout,
        **write_share(spec),
    }


ARCHITECTURE = PlainDecoder(
    model_type="starcoder2",
    classes=("Starcoder2ForCausalLM", "Starcoder2Model"),
    keys={
        "width": ("hidden_size", 3072),
        "heads": ("num_attention_heads", 24),
        "layers": ("num_hidden_layers", 30),
        "inner": ("intermediate_size", 12288),
        "length": ("max_position_embeddings", 4096),
        "vocabulary": ("vocab_size", 49152),
        "epsilon": ("norm_epsilon", 1e-5),
        "activation": ("hidden_act", "gelu_pytorch_tanh"),
        "dropout": ("residual_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
    },
    tied=True,
    prefix="model.",
    modules={"embed_tokens": "embedding", "norm": "decoder.final_norm"},
    layers="layers",
    layer={
        **LLAMA_LAYER,
        "mlp.c_fc": "feedforward.up",
        "mlp.c_proj": "feedforward.down",
    },
    further=_further,
    write=_write,
).architecture()
