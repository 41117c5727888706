"""Gemma 2 (Riviere 2024): LLaMA with sandwich norms, soft caps and alternating windows."""

from __future__ import annotations

import functools
from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.decoders.gemma import as_gemma
from heedful.interop.architectures.decoders.llama import (
    GATED,
    GATED_NAMES,
    decoder_table,
    read_decoder,
    read_windows,
    write_decoder,
    write_windows,
)
from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec

# Defaults of transformers' Gemma2Config, which a config.json may leave out.
_SIZES = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
}
# `post_attention_layernorm` is a norm of the attention's output here; in LLaMA the same name is the
# norm of the feed-forward network's input.
NORMS = {
    "input_layernorm": "self_attention_norm",
    "post_attention_layernorm": "self_attention_output_norm",
    "pre_feedforward_layernorm": "feedforward_norm",
    "post_feedforward_layernorm": "feedforward_output_norm",
}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    fields.refuse_unless("use_bidirectional_attention", [False], False)
    spec = read_decoder(
        fields,
        _SIZES,
        # Layers 0, 2, 4 … have a window; newer files list them in `layer_types`.
        windows=read_windows(fields, _SIZES, lambda number: number % 2 == 0, names),
        bias=fields.flag("attention_bias", False),
        # This is not always the head width: the 27B model divides by sqrt(144) with heads of 128.
        scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        softcap=read_softcap(fields, "attn_logit_softcapping", 50.0),
    )
    # Their code uses this field; `hidden_act` is in some files too and may differ.
    activation = fields.choice("hidden_activation", GATED, "gelu_pytorch_tanh")
    softcap = read_softcap(fields, "final_logit_softcapping", 30.0)
    spec = as_gemma(spec, fields, "both", activation)
    return spec.model_copy(update={"logits_softcap": softcap})


def read_softcap(fields: Fields, key: str, default: float | None) -> float | None:
    """Return a soft cap: the default if the field is missing, None if it is null."""
    if fields.is_null(key) or not (fields.has(key) or default):
        return None
    return fields.number(key, default)


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    block = spec.decoder.pattern[0]
    attention = block.self_attention
    config = write_decoder(spec) | write_windows(spec)
    # Their field is `hidden_activation`.
    del config["hidden_act"]
    width = config["head_dim"]
    return {
        "architectures": ["Gemma2ForCausalLM"],
        **config,
        "hidden_activation": GATED_NAMES.get(block.feedforward.activation),
        "attention_bias": attention.bias,
        # The field is an integer: reading it back refuses a scale that is not the inverse square
        # root of one.
        "query_pre_attn_scalar": round(attention.scale**-2) if attention.scale else width,
        "attn_logit_softcapping": attention.softcap,
        "final_logit_softcapping": spec.logits_softcap,
    }


ARCHITECTURE = Architecture(
    model_type="gemma2",
    kind="causal_lm",
    read=_read,
    write=_write,
    tensors=functools.partial(decoder_table, norms=NORMS),
    classes=("Gemma2ForCausalLM", "Gemma2Model"),
)
