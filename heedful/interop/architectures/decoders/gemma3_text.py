"""Gemma 3 (2025), its models of text: a window in five of six layers, norms of heads."""

from __future__ import annotations

import functools
from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.decoders.gemma import as_gemma
from heedful.interop.architectures.decoders.gemma2 import NORMS, read_softcap
from heedful.interop.architectures.decoders.llama import (
    FULL,
    GATED,
    GATED_NAMES,
    SLIDING,
    decoder_table,
    read_decoder,
    read_windows,
    window_of,
    write_decoder,
    write_windows,
)
from heedful.interop.config_fields import Fields
from heedful.interop.rotary_fields import rotary_of, write_scaling
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec
from heedful.nn.spec import NormSpec, RotarySpec

# Defaults of transformers' Gemma3TextConfig.
_SIZES = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_BASES = {FULL: 1_000_000.0, SLIDING: 10_000.0}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    fields.refuse_unless("use_bidirectional_attention", [False], False)
    every = fields.integer("sliding_window_pattern", 6)
    rotary = _read_rotaries(fields)
    spec = read_decoder(
        fields,
        _SIZES,
        # The last of every six layers has no window; newer files list them in `layer_types`.
        windows=read_windows(fields, _SIZES, lambda number: (number + 1) % every != 0, names),
        bias=fields.flag("attention_bias", False),
        scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        softcap=read_softcap(fields, "attn_logit_softcapping", None),
        rotary=rotary[FULL],
        query_key_norm=NormSpec(
            kind="rms", epsilon=fields.number("rms_norm_eps", 1e-6), unit_offset=True
        ),
    )
    activation = fields.choice("hidden_activation", GATED, "gelu_pytorch_tanh")
    spec = as_gemma(spec, fields, "both", activation)

    def rotated(block: BlockSpec) -> BlockSpec:
        kind = FULL if window_of(block) is None else SLIDING
        attention = block.self_attention.model_copy(update={"rotary": rotary[kind]})
        return block.replace(self_attention=attention)

    pattern = tuple(map(rotated, spec.decoder.pattern))
    return spec.model_copy(
        update={
            "decoder": spec.decoder.model_copy(update={"pattern": pattern}),
            "logits_softcap": read_softcap(fields, "final_logit_softcapping", None),
        }
    )


def _read_rotaries(fields: Fields) -> dict[str, RotarySpec]:
    """Return the rotation of layers without and with a window."""
    length = fields.integer("max_position_embeddings", _SIZES["max_position_embeddings"])
    # Of files before transformers 5.
    bases = {
        FULL: fields.number("rope_theta", _BASES[FULL]),
        SLIDING: fields.number("rope_local_base_freq", _BASES[SLIDING]),
    }
    tables, scaling = fields.table("rope_parameters"), fields.table("rope_scaling")
    found = {FULL: scaling, SLIDING: None}
    if tables is not None:
        found = {kind: tables.table(kind) for kind in _BASES}
    return {
        kind: RotarySpec(base=base) if rope is None else rotary_of(rope, base, length)
        for kind, base in bases.items()
        for rope in [found[kind]]
    }


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    block = spec.decoder.pattern[0]
    attention = block.self_attention
    config = write_decoder(spec) | write_windows(spec)
    for name in ("hidden_act", "rope_theta", "rope_scaling"):
        config.pop(name, None)
    rotaries = {
        FULL if window_of(each) is None else SLIDING: each.self_attention.rotary or RotarySpec()
        for each in spec.decoder.pattern
    }
    return {
        "architectures": ["Gemma3ForCausalLM"],
        **config,
        "hidden_activation": GATED_NAMES.get(block.feedforward.activation),
        "attention_bias": attention.bias,
        "query_pre_attn_scalar": round(attention.scale**-2)
        if attention.scale
        else config["head_dim"],
        "attn_logit_softcapping": attention.softcap,
        "final_logit_softcapping": spec.logits_softcap,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": rotary.base, **write_scaling(rotary)}
            for kind, rotary in rotaries.items()
        },
    }


ARCHITECTURE = Architecture(
    model_type="gemma3_text",
    kind="causal_lm",
    read=_read,
    write=_write,
    tensors=functools.partial(decoder_table, norms=NORMS),
    classes=("Gemma3ForCausalLM", "Gemma3TextModel"),
    # Their code writes it beside the `layer_types` that follow from it.
    inert=("_sliding_window_pattern",),
)
