"""StableLM (Bellagente 2024): LLaMA's block with layer norms, a quarter of each head rotated."""

from __future__ import annotations

from typing import Any

from heedful.interop.architectures.decoders.llama import GATED, GATED_NAMES
from heedful.interop.config_fields import Fields
from heedful.interop.plain_decoders import LLAMA_LAYER, Part, PlainDecoder, is_parallel
from heedful.interop.rotary_fields import read_share, share_of, write_share
from heedful.models.model_spec import CausalLMSpec


def _further(fields: Fields, head_width: int, length: int) -> Part:
    fields.refuse_unless("qk_layernorm", [False], False)
    rotary = read_share(fields, head_width, length, 0.25)
    return Part(
        attention={
            "bias": fields.flag("use_qkv_bias", False),
            "output_bias": False,
            "num_kv_heads": fields.integer("num_key_value_heads", 32),
            "rotary": rotary,
        },
        network={"bias": False},
        embedding={"dropout": 0.0},
        parallel=fields.flag("use_parallel_residual", False),
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    attention = spec.decoder.block.self_attention
    return {
        "use_qkv_bias": attention.bias,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "partial_rotary_factor": share_of(spec),
        "use_parallel_residual": is_parallel(spec),
        **write_share(spec),
    }


ARCHITECTURE = PlainDecoder(
    model_type="stablelm",
    classes=("StableLmForCausalLM", "StableLmModel"),
    keys={
        "width": ("hidden_size", 2560),
        "heads": ("num_attention_heads", 32),
        "layers": ("num_hidden_layers", 32),
        "inner": ("intermediate_size", 6912),
        "length": ("max_position_embeddings", 4096),
        "vocabulary": ("vocab_size", 50304),
        "epsilon": ("layer_norm_eps", 1e-5),
        "activation": ("hidden_act", "silu"),
        "dropout": ("hidden_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
    },
    tied=False,
    prefix="model.",
    modules={"embed_tokens": "embedding", "norm": "decoder.final_norm"},
    layers="layers",
    layer={
        **LLAMA_LAYER,
        "mlp.gate_proj": "feedforward.gate",
        "mlp.up_proj": "feedforward.up",
        "mlp.down_proj": "feedforward.down",
    },
    norms_shared=is_parallel,
    activations=GATED,
    names_of_activations=GATED_NAMES,
    further=_further,
    write=_write,
).architecture()
