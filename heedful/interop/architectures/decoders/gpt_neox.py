"""GPT-NeoX (Black 2022), Pythia among its models: parallel or sequential sub-layers.

With sub-layers in a row it computes what a language model trained here with `--model.positions
rotary` does.
"""

from __future__ import annotations

from typing import Any

from heedful.interop.config_fields import Fields
from heedful.interop.plain_decoders import Part, PlainDecoder, is_parallel
from heedful.interop.rotary_fields import read_share, share_of, write_share
from heedful.models.model_spec import CausalLMSpec


def _further(fields: Fields, head_width: int, length: int) -> Part:
    rotary = read_share(
        fields, head_width, length, 0.25, key="rotary_pct", base_key="rotary_emb_base"
    )
    return Part(
        attention={"bias": fields.flag("attention_bias", True), "rotary": rotary},
        parallel=fields.flag("use_parallel_residual", True),
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    return {
        "attention_bias": spec.decoder.block.self_attention.bias,
        "use_parallel_residual": is_parallel(spec),
        "rotary_pct": share_of(spec),
        **write_share(spec, "rotary_emb_base"),
    }


ARCHITECTURE = PlainDecoder(
    model_type="gpt_neox",
    classes=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    keys={
        "width": ("hidden_size", 6144),
        "heads": ("num_attention_heads", 64),
        "layers": ("num_hidden_layers", 44),
        "inner": ("intermediate_size", 24576),
        "length": ("max_position_embeddings", 2048),
        "vocabulary": ("vocab_size", 50432),
        "epsilon": ("layer_norm_eps", 1e-5),
        "activation": ("hidden_act", "gelu"),
        "dropout": ("hidden_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
    },
    tied=False,
    prefix="gpt_neox.",
    modules={"embed_in": "embedding", "final_layer_norm": "decoder.final_norm"},
    layers="layers",
    layer={
        "input_layernorm": "self_attention_norm",
        "post_attention_layernorm": "feedforward_norm",
        "attention.dense": "self_attention.output",
        "mlp.dense_h_to_4h": "feedforward.up",
        "mlp.dense_4h_to_h": "feedforward.down",
    },
    fused="attention.query_key_value",
    head="embed_out",
    further=_further,
    write=_write,
    # Buffers: the causal mask, the score of hidden keys, the frequencies of the rotation.
    ignored=(r"layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",),
).architecture()
