"""Tiny configurations of every architecture that is read, by which each is compared."""

from __future__ import annotations

# Of the largest number of their output.
CLOSE = 1e-5
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
WHISPER = {
    **{name: size for name, size in PAIRS.items() if name != "max_position_embeddings"},
    "num_mel_bins": 6,
    "max_source_positions": 10,
    "max_target_positions": 20,
    **{f"{role}_token_id": 1 for role in ("pad", "bos", "eos", "decoder_start")},
}
NEOX = {**SIZES, "num_attention_heads": 2, "use_parallel_residual": False}
BLOOM = {"vocab_size": 40, "hidden_size": 24, "n_layer": 3, "n_head": 6}
GPT2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 20}
GPTJ = {"vocab_size": 40, "n_embd": 16, "n_layer": 3, "n_head": 2, "rotary_dim": 4}
FALCON = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
OPT = {**FALCON, "ffn_dim": 24, "max_position_embeddings": 20}
VIT = {name: size for name, size in SIZES.items() if name != "vocab_size"}
VIT |= {"image_size": 8, "patch_size": 4}
CLIP = {
    "text_config": {**ENCODER, "num_hidden_layers": 2, "eos_token_id": 39},
    "vision_config": VIT,
    "projection_dim": 12,
}
SIGLIP = {
    "text_config": {**ENCODER, "hidden_size": 20, "projection_size": 16},
    "vision_config": VIT,
}
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
    "bert": ("BertForMaskedLM", ENCODER),
    "roberta": ("RobertaForMaskedLM", ENCODER),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", DECODER),
    "mistral": ("MistralForCausalLM", DECODER | {"sliding_window": 3}),
    "qwen2": ("Qwen2ForCausalLM", SIZES | {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3ForCausalLM", DECODER),
    "gemma2": ("Gemma2ForCausalLM", DECODER | {"sliding_window": 3}),
    "bart": ("BartForConditionalGeneration", PAIRS),
    "marian": ("MarianMTModel", PAIRS | {"pad_token_id": 0, "decoder_start_token_id": 0}),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "whisper, other sizes of both stacks": (
        "WhisperForConditionalGeneration",
        WHISPER
        | {"encoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 40}
        | {"activation_function": "relu", "num_mel_bins": 5},
    ),
    "t5": ("T5ForConditionalGeneration", MT5),
    "vit": ("ViTForImageClassification", VIT),
    "vit, states": ("ViTModel", VIT),
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
    "clip": ("CLIPModel", CLIP),
    "clip, the end token with the highest id": (
        "CLIPModel",
        {
            "text_config": CLIP["text_config"] | {"eos_token_id": 2, "hidden_act": "gelu"},
            "vision_config": {**VIT, "num_channels": 3, "hidden_size": 24, "layer_norm_eps": 1e-3},
        },
    ),
    "siglip": ("SiglipModel", SIGLIP),
    "siglip, other activations": (
        "SiglipModel",
        {
            "text_config": {**ENCODER, "hidden_size": 16, "hidden_act": "gelu"},
            "vision_config": {**VIT, "hidden_act": "relu", "layer_norm_eps": 1e-3},
        },
    ),
    "ijepa": (
        "IJepaForImageClassification",
        VIT,
    ),
}
