"""MPT (MosaicML 2023): penalties of distance, and no bias anywhere."""

from __future__ import annotations

from typing import Any

from heedful.interop.config_fields import Fields
from heedful.interop.plain_decoders import Part, PlainDecoder
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import AlibiSpec, NormSpec


def _further(fields: Fields, head_width: int, length: int) -> Part:
    # Their class has no bias and no positions, whatever these two say.
    fields.refuse_unless("no_bias", [True], True)
    fields.ignore("learned_pos_emb")
    fields.refuse_unless("logit_scale", [None], None)
    dropout = 0.0
    if (own := fields.table("attn_config")) is not None:
        own.refuse_unless("attn_type", ["multihead_attention"], "multihead_attention")
        own.refuse_unless("alibi", [True], True)
        own.refuse_unless("alibi_bias_max", [8], 8)
        own.refuse_unless("qk_ln", [False], False)
        own.refuse_unless("prefix_lm", [False], False)
        own.refuse_unless("clip_qkv", [None], None)
        own.refuse_unless("softmax_scale", [None], None)
        # Kernels, and texts packed in a row, which training alone has.
        own.ignore("attn_impl", "attn_uses_sequence_id", "model_type")
        dropout = own.number("attn_pdrop", 0.0)
    norm = NormSpec(epsilon=fields.number("layer_norm_epsilon", 1e-5), bias=False)
    width = fields.integer("d_model", 2048)
    return Part(
        attention={"bias": False, "position_bias": AlibiSpec(), "dropout": dropout},
        network={"bias": False, "width": width * fields.integer("expansion_ratio", 4)},
        norm=norm,
        embedding={"dropout": fields.number("emb_pdrop", 0.0)},
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    block = spec.decoder.block
    return {
        "no_bias": True,
        # Half of a width is no whole number, so reading back shows the difference.
        "expansion_ratio": block.feedforward.width // spec.width,
        "emb_pdrop": spec.embedding.dropout,
        # Their field is a whole number, whose zero is no float.
        "attn_config": {"alibi": True, "attn_pdrop": block.self_attention.dropout or 0},
    }


ARCHITECTURE = PlainDecoder(
    model_type="mpt",
    classes=("MptForCausalLM", "MptModel", "MPTForCausalLM"),
    keys={
        "width": ("d_model", 2048),
        "heads": ("n_heads", 16),
        "layers": ("n_layers", 24),
        "length": ("max_seq_len", 2048),
        "vocabulary": ("vocab_size", 50368),
        "epsilon": ("layer_norm_epsilon", 1e-5),
        "dropout": ("resid_pdrop", 0.0),
    },
    tied=True,
    prefix="transformer.",
    modules={"wte": "embedding", "norm_f": "decoder.final_norm"},
    layers="blocks",
    layer={
        "norm_1": "self_attention_norm",
        "norm_2": "feedforward_norm",
        "attn.out_proj": "self_attention.output",
        "ffn.up_proj": "feedforward.up",
        "ffn.down_proj": "feedforward.down",
    },
    fused="attn.Wqkv",
    by_heads=False,
    usual_activation="gelu",
    further=_further,
    write=_write,
    inert=("init_device", "norm_type", "embedding_fraction", "verbose"),
).architecture()
