"""Architectures that are a table entry beside another: read, equal in numbers, written again."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.engines.inference.prepare import prepare
from heedful.errors import ModelError
from heedful.interop.architecture import find_architecture
from heedful.models.build import build_around, canonical_weights

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 6}
ENCODER = {**SIZES, "max_position_embeddings": 20, "pad_token_id": 1}
MODERN = {
    **SIZES,
    "num_hidden_layers": 5,
    "local_attention": 4,
    "max_position_embeddings": 30,
    **{f"{name}_token_id": 0 for name in ("pad", "eos", "bos", "cls", "sep")},
}
MAMBA = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "state_size": 4}
MAMBA2 = {**MAMBA, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4}
RWKV = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "layer_norm_epsilon": 1e-3}
DISTIL = {
    "vocab_size": 40,
    "max_position_embeddings": 20,
    "dim": 16,
    "hidden_dim": 24,
    "n_layers": 3,
    "n_heads": 4,
}

PAIRS = {
    "vocab_size": 40,
    "d_model": 16,
    "max_position_embeddings": 20,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")},
}
MT5 = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
NEOX = {**SIZES, "num_attention_heads": 2, "use_parallel_residual": False}
BLOOM = {"vocab_size": 40, "hidden_size": 24, "n_layer": 3, "n_head": 6}
GPTJ = {"vocab_size": 40, "n_embd": 16, "n_layer": 3, "n_head": 2, "rotary_dim": 4}
FALCON = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
OPT = {**FALCON, "ffn_dim": 24, "max_position_embeddings": 20}
VIT = {name: size for name, size in SIZES.items() if name != "vocab_size"}
VIT |= {"image_size": 8, "patch_size": 4}
PHI = {**SIZES, "num_attention_heads": 2, "num_key_value_heads": 1}
DEBERTA = {
    **ENCODER,
    "relative_attention": True,
    "position_buckets": 4,
    "pos_att_type": "p2c|c2p",
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}
LATENT = {
    **SIZES,
    "num_key_value_heads": 4,
    "kv_lora_rank": 6,
    "v_head_dim": 5,
    "first_k_dense_replace": 1,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "moe_intermediate_size": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}
STRETCHED = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "rope_theta": 10_000.0,
    "beta_fast": 32,
    "beta_slow": 1,
}
CASES = {
    "gemma": ("GemmaForCausalLM", DECODER),
    "gemma, biases": ("GemmaForCausalLM", DECODER | {"attention_bias": True}),
    "gpt_neox": ("GPTNeoXForCausalLM", NEOX),
    "gpt_neox, half rotated, tied, no biases": (
        "GPTNeoXForCausalLM",
        NEOX | {"rotary_pct": 0.5, "tie_word_embeddings": True, "attention_bias": False},
    ),
    "gpt_neox, parallel": ("GPTNeoXForCausalLM", NEOX | {"use_parallel_residual": True}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {**LATENT, "q_lora_rank": None}),
    "deepseek_v2, groups, stretched": (
        "DeepseekV2ForCausalLM",
        {**LATENT, "q_lora_rank": 7, "topk_method": "group_limited_greedy", "n_group": 4}
        | {"topk_group": 2, "routed_scaling_factor": 1.5, "max_position_embeddings": 32}
        | {"rope_parameters": STRETCHED | {"mscale": 0.7, "mscale_all_dim": 0.9}},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {**LATENT, "q_lora_rank": 7, "n_group": 4, "topk_group": 2},
    ),
    "deepseek_v3, no groups, stretched": (
        "DeepseekV3ForCausalLM",
        {**LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "rope_interleave": False}
        | {"first_k_dense_replace": 0, "max_position_embeddings": 32, "norm_topk_prob": False}
        | {"rope_parameters": STRETCHED | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "mamba": ("MambaForCausalLM", MAMBA),
    "mamba, biases, a rank": (
        "MambaForCausalLM",
        MAMBA | {"use_bias": True, "time_step_rank": 3, "conv_kernel": 2, "expand": 3},
    ),
    "mamba2": ("Mamba2ForCausalLM", MAMBA2),
    "mamba2, groups, biases, tied": (
        "Mamba2ForCausalLM",
        MAMBA2 | {"n_groups": 2, "use_bias": True, "tie_word_embeddings": True, "conv_kernel": 2},
    ),
    "rwkv": ("RwkvForCausalLM", {**RWKV, "rescale_every": 2, "layer_norm_epsilon": 1e-5}),
    "rwkv, tied": (
        "RwkvForCausalLM",
        {**RWKV, "intermediate_size": 24, "tie_word_embeddings": True},
    ),
    "mpt": ("MptForCausalLM", {"vocab_size": 40, "d_model": 24, "n_layers": 2, "n_heads": 6}),
    "opt": ("OPTForCausalLM", OPT),
    "opt, no biases": ("OPTForCausalLM", OPT | {"enable_bias": False}),
    "bloom, heads that are no power of two": ("BloomForCausalLM", BLOOM),
    "gptj": ("GPTJForCausalLM", GPTJ),
    "gptj, whole heads rotated": ("GPTJForCausalLM", GPTJ | {"rotary_dim": 8, "n_inner": 40}),
    "phi": ("PhiForCausalLM", PHI),
    "falcon": ("FalconForCausalLM", FALCON),
    "falcon, groups": (
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon, in a row": (
        "FalconForCausalLM",
        FALCON | {"parallel_attn": False, "multi_query": False, "ffn_hidden_size": 24},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", SIZES | {"num_key_value_heads": 2}),
    "starcoder2, a window": (
        "Starcoder2ForCausalLM",
        SIZES | {"num_key_value_heads": 2, "sliding_window": 3, "use_bias": False},
    ),
    "stablelm": ("StableLmForCausalLM", {**PHI, "partial_rotary_factor": 0.5}),
    "stablelm, parallel": (
        "StableLmForCausalLM",
        {**PHI, "use_parallel_residual": True, "use_qkv_bias": True, "partial_rotary_factor": 0.25},
    ),
    "phi3": ("Phi3ForCausalLM", SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}),
    "phi3, a window, half rotated": (
        "Phi3ForCausalLM",
        PHI | {"sliding_window": 3, "partial_rotary_factor": 0.5, "pad_token_id": 0},
    ),
    "mixtral": ("MixtralForCausalLM", {**DECODER, "num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {**DECODER, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
    ),
    "qwen3_moe, weights of sum one": (
        "Qwen3MoeForCausalLM",
        {**DECODER, "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
        | {"norm_topk_prob": True},
    ),
    "gemma3_text": ("Gemma3ForCausalLM", {**DECODER, "sliding_window": 3, "num_hidden_layers": 7}),
    "gemma3_text, stretched": (
        "Gemma3ForCausalLM",
        {
            **DECODER,
            "sliding_window": 3,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
        }
        | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "final_logit_softcapping": 2.0},
    ),
    "olmo2": ("Olmo2ForCausalLM", SIZES | {"num_key_value_heads": 2}),
    "smollm3": ("SmolLM3ForCausalLM", SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}),
    "smollm3, layers by name": (
        "SmolLM3ForCausalLM",
        SIZES | {"num_key_value_heads": 2, "pad_token_id": 0, "no_rope_layers": [0, 1, 1]},
    ),
    "xlm-roberta": ("XLMRobertaForMaskedLM", ENCODER),
    "xlm-roberta, labels": ("XLMRobertaForSequenceClassification", ENCODER),
    "camembert": ("CamembertForTokenClassification", ENCODER),
    "xlm-roberta-xl": ("XLMRobertaXLForMaskedLM", ENCODER),
    "xlm-roberta-xl, labels": ("XLMRobertaXLForSequenceClassification", ENCODER),
    "distilbert": ("DistilBertForMaskedLM", DISTIL),
    "distilbert, labels": ("DistilBertForSequenceClassification", DISTIL),
    "electra": ("ElectraForMaskedLM", {**ENCODER, "embedding_size": 16}),
    "electra, labels": (
        "ElectraForSequenceClassification",
        {**ENCODER, "embedding_size": 16},
    ),
    "electra, wider embeddings": ("ElectraForMaskedLM", {**ENCODER, "embedding_size": 20}),
    "albert": ("AlbertForMaskedLM", {**ENCODER, "embedding_size": 12}),
    "albert, embeddings as wide": (
        "AlbertForMaskedLM",
        {**ENCODER, "embedding_size": 16, "tie_word_embeddings": False},
    ),
    "albert, labels of tokens": ("AlbertForTokenClassification", {**ENCODER, "embedding_size": 12}),
    "deberta-v2": ("DebertaV2ForMaskedLM", DEBERTA),
    "deberta-v2, own maps": (
        "DebertaV2ForSequenceClassification",
        {**DEBERTA, "share_att_key": False, "position_buckets": 2, "type_vocab_size": 2},
    ),
    "deberta-v2, one term, no buckets": (
        "DebertaV2ForTokenClassification",
        {
            **ENCODER,
            "relative_attention": True,
            "pos_att_type": ["p2c"],
            "max_relative_positions": 5,
        },
    ),
    "mpnet": ("MPNetForMaskedLM", ENCODER),
    "mpnet, labels": ("MPNetForSequenceClassification", ENCODER),
    "modernbert": ("ModernBertForMaskedLM", MODERN),
    "modernbert, every other layer": (
        "ModernBertForMaskedLM",
        MODERN | {"global_attn_every_n_layers": 2, "tie_word_embeddings": False},
    ),
    "mbart": ("MBartForConditionalGeneration", PAIRS | {"scale_embedding": True}),
    "m2m_100": ("M2M100ForConditionalGeneration", PAIRS),
    "pegasus": ("PegasusForConditionalGeneration", PAIRS),
    "mt5": ("MT5ForConditionalGeneration", MT5),
    "dinov2": (
        "Dinov2Model",
        {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
        | {"image_size": 8, "patch_size": 4},
    ),
    "deit": ("DeiTForImageClassification", {**VIT, "qkv_bias": False}),
    "deit, a teacher": ("DeiTForImageClassificationWithTeacher", VIT),
    "deit, states": ("DeiTModel", VIT),
    "ijepa": (
        "IJepaForImageClassification",
        VIT,
    ),
}


def read(name, directory):
    """A model of theirs in a directory as ours, with its architecture."""
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    architecture = find_architecture(name.partition(",")[0], where="")
    spec = architecture.read_config(config, where="config.json", names=tensors)
    ours = architecture.table(spec, tensors).to_ours(tensors, where="model.safetensors")
    return architecture, build_around(spec, ours, where="", dtype=torch.float32).eval()


def make(name, directory):
    """A tiny model of theirs whose tensors were drawn, saved."""
    import transformers

    cls, sizes = CASES[name]
    cls = getattr(transformers, cls)
    torch.manual_seed(0)
    model = cls(cls.config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("correction_bias"):
                buffer.add_(0.3 * torch.randn_like(buffer))
    model.save_pretrained(directory)
    return model


def read_in_two(engine, ids, at):
    """Logits of texts that an engine reads in two parts, from a cache or another state."""
    parts = []
    state = engine.start(ids[:, :0], at[:, :0])
    for part in (slice(0, 4), slice(4, 7)):
        states, state = engine.extend(state, ids[:, part], at[:, part])
        parts.append(engine.logits(states))
    return torch.cat(parts, 1)


def outputs(model, theirs):
    """What each makes of the same inputs."""
    if model.spec.reads == "images":
        images = torch.randn(2, 3, 8, 8)
        if not model.spec.class_names:
            return model(images), theirs(images).last_hidden_state
        return model.class_logits(model(images)), theirs(images).logits
    ids = torch.randint(5, 40, (2, 7))
    at = torch.arange(7).expand(2, -1)
    if model.spec.reads == "pairs":
        target = ids[:, :4].flip(1)
        found = model.logits(model(ids, at, target, at[:, :4]))
        return found, theirs(input_ids=ids, decoder_input_ids=target).logits
    if model.spec.generates:
        return read_in_two(prepare(model, "fp32"), ids, at), theirs(ids).logits
    (kind, head), states = *model.heads.items(), model(ids, at)
    return head(states[:, 0] if kind == "sequence" else states), theirs(ids).logits


def close(found, expected):
    """Equal to 1e-5 of the largest number."""
    scale = expected.abs().max()
    torch.testing.assert_close(found / scale, expected / scale, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_it_computes_the_same_in_and_out(name, tmp_path):
    theirs = make(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    architecture, model = read(name, tmp_path)
    spec = model.spec
    found, expected = outputs(model, theirs)
    assert expected.std() > 0.1
    close(found, expected)

    assert architecture.differences(spec) == []
    written = architecture.table(spec).to_theirs(canonical_weights(model))
    out = tmp_path / "out"
    out.mkdir()
    # Ids of special tokens come from the tokenizer.
    ids = {"pad_token_id": config["pad_token_id"]} if config.get("pad_token_id") is not None else {}
    (out / "config.json").write_text(json.dumps(ids | architecture.write_config(spec)))
    save_file(written, out / "model.safetensors", metadata={"format": "pt"})
    again, told = type(theirs).from_pretrained(out, output_loading_info=True)
    assert not any(told.values()), told
    found, expected = outputs(model, again.eval())
    close(found, expected)


# Tensors of ours that are one tensor of theirs.
SHARED = {
    "albert": "encoder.blocks.1.feedforward.up.weight",
    "deberta-v2": "encoder.blocks.1.self_attention.position_bias.weight",
    "falcon": "decoder.blocks.1.feedforward_norm.weight",
}


@pytest.mark.parametrize(("name", "moved"), SHARED.items())
@torch.no_grad()
def test_weights_that_moved_apart_are_refused(name, moved, tmp_path):
    make(name, tmp_path)
    architecture, model = read(name, tmp_path)
    tensors = dict(canonical_weights(model))
    tensors[moved] = tensors[moved] + 1.0
    with pytest.raises(ModelError, match=f"{moved}.* one tensor there"):
        architecture.table(model.spec).to_theirs(tensors)


@pytest.mark.parametrize(("buckets", "farthest"), [(4, 20), (256, 512), (32, 40)])
def test_distances_share_buckets_as_in_deberta(buckets, farthest):
    from transformers.models.deberta_v2 import modeling_deberta_v2

    from heedful.nn.attention.disentangled import Disentangled
    from heedful.nn.bias_spec import DisentangledSpec

    spec = DisentangledSpec(num_buckets=buckets, max_distance=farthest)
    ours = Disentangled(spec, num_heads=1, head_width=2, width=2, scale=1.0)
    distances = torch.arange(-2 * farthest, 2 * farthest)
    theirs = modeling_deberta_v2.make_log_bucket_position(distances, buckets, farthest)
    expected = (theirs.long() + buckets).clamp(0, 2 * buckets - 1)
    assert torch.equal(ours._bucket(distances), expected)
