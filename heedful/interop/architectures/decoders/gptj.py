"""GPT-J (Wang 2021): attention and network read one norm, and rotation pairs neighbours."""

from __future__ import annotations

from typing import Any

from heedful.interop.config_fields import Fields
from heedful.interop.plain_decoders import Part, PlainDecoder, is_parallel
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import RotarySpec


def _further(fields: Fields, head_width: int, length: int) -> Part:
    fields.check_aliases(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        max_position_embeddings="n_positions",
    )
    rotated = fields.integer("rotary_dim", 64)
    rotary = RotarySpec(layout="pairs", width=None if rotated == head_width else rotated)
    return Part(
        attention={"bias": False, "rotary": rotary},
        embedding={"dropout": fields.number("embd_pdrop", 0.0)},
        model={"output_bias": True},
        parallel=True,
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    attention = spec.decoder.block.self_attention
    rotary = attention.rotary or RotarySpec()
    return {
        "rotary_dim": rotary.width or attention.width_of_heads(spec.width),
        "embd_pdrop": spec.embedding.dropout,
    }


ARCHITECTURE = PlainDecoder(
    model_type="gptj",
    classes=("GPTJForCausalLM", "GPTJModel"),
    keys={
        "width": ("n_embd", 4096),
        "heads": ("n_head", 16),
        "layers": ("n_layer", 28),
        "inner": ("n_inner", None),
        "length": ("n_positions", 2048),
        "vocabulary": ("vocab_size", 50400),
        "epsilon": ("layer_norm_epsilon", 1e-5),
        "activation": ("activation_function", "gelu_new"),
        "dropout": ("resid_pdrop", 0.0),
        "attention_dropout": ("attn_pdrop", 0.0),
    },
    tied=False,
    prefix="transformer.",
    modules={"wte": "embedding", "ln_f": "decoder.final_norm"},
    layers="h",
    layer={
        "ln_1": "self_attention_norm",
        "attn.q_proj": "self_attention.query",
        "attn.k_proj": "self_attention.key",
        "attn.v_proj": "self_attention.value",
        "attn.out_proj": "self_attention.output",
        "mlp.fc_in": "feedforward.up",
        "mlp.fc_out": "feedforward.down",
    },
    norms_shared=is_parallel,
    further=_further,
    write=_write,
    # The size of the stored causal mask; a scale that is always on.
    inert=("n_ctx", "scale_attn_weights", "rotary"),
    ignored=(r"h\.\d+\.attn\.((masked_)?bias|embed_positions)",),
).architecture()
