"""Settings of a config.json that do not change what a model computes, each with the reason.

Whatever stands in a config.json and is neither read nor here is refused: a `granite` that calls
itself `llama` differs by four such factors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_WRITER = {  # about the file and the program that wrote it
    *("model_type", "architectures", "transformers_version", "_name_or_path", "name_or_path"),
    *("_commit_hash", "adapters_version", "unsloth_fixed", "unsloth_version", "license", "tags"),
    *(
        "_comment",
        "description",
        "name",
        "base_model",
        "_diffusers_version",
        "sbert_ce_default_activation_function",
    ),
    # The code beside the weights is never run; `architectures` is compared instead.
    *("auto_map", "custom_pipelines", "sentence_transformers", "transformers.js_config"),
    *("tokenizer_class", "processor_class", "feature_extractor_type", "language", "directionality"),
    # Adapters have tensors of their own, which are refused.
    *("adapters", "model_max_length"),
}
_KERNELS = {  # how the same numbers are computed, stored or returned
    *("torch_dtype", "dtype", "use_cache", "output_attentions", "output_hidden_states"),
    *("output_past", "return_dict", "torchscript", "use_bfloat16", "gradient_checkpointing"),
    *("chunk_size_feed_forward", "attn_implementation", "_attn_implementation"),
    *("_attn_implementation_autoset", "_flash_attn_2_enabled", "use_flash_attention"),
    *("use_flash_attn", "flash_attention", "use_memory_efficient_attention", "pretraining_tp"),
    *("experts_implementation", "_experts_implementation", "fused_dropout_add"),
    # Tensors of quantised layers have other names or types, and these are refused.
    *("quantization_config", "quantization"),
}
_TRAINING = {  # first values, and what only a loss or an optimiser sees
    *("initializer_range", "initializer_factor", "init_std", "initializer_cutoff_factor"),
    *("embedding_initializer_range", "use_scaled_init", "classifier_dropout", "classif_dropout"),
    *("problem_type", "finetuning_task", "keys_to_ignore_at_inference", "label_smoothing"),
    # Names of classes are read where there is a head that predicts them.
    *("id2label", "label2id", "num_labels", "_num_labels", "task_specific_params"),
    # Heads and poolers that the accepted classes do not have.
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"),
    *("summary_use_proj", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
    *("pooler_size_per_head", "pooler_type", "encoder_stride"),
}
_GENERATION = {  # defaults of `generate`; searches have settings of their own here
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping"),
    *("do_sample", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k"),
    *("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty"),
    *("encoder_repetition_penalty", "length_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("encoder_no_repeat_ngram_size", "renormalize_logits", "remove_invalid_values"),
    *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
    *("num_return_sequences", "output_scores", "return_dict_in_generate", "prefix", "max_time"),
    *("force_bos_token_to_be_generated", "use_mtp", "penalty_alpha", "guidance_scale"),
    *("cache_implementation",),
    # Both say of the class what `architectures` says.
    *("is_encoder_decoder", "is_decoder"),
}
_EVERYWHERE = _WRITER | _KERNELS | _TRAINING | _GENERATION

_TOKEN_ID = ("_token_id", "_token_ids", "_token_index")
"""Endings of the names of special tokens' ids, which belong to the tokenizer."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
    # Where it is not read, the class has no such bias; tensors would be too many otherwise.
    "attention_bias": (False,),
    "mlp_bias": (False,),
    # Factors of LLaMA's relatives, where they multiply by nothing.
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    # The other pairing of rotated channels, and positions with several axes.
    "rope_interleaved": (False,),
    "use_mrope": (False,),
}
"""Settings that change nothing at these values."""


def is_inert(key: str, value: Any, more: Collection[str]) -> bool:
    """Return True for a setting without effect on the outputs of a model.

    Args:
        key: name of the setting in config.json.
        value: its value.
        more: settings without effect in this architecture.
    """
    if key in _EVERYWHERE or key in more or key.endswith(_TOKEN_ID):
        return True
    # `type`, since 1 == True: a number in place of a flag was not written by transformers.
    return any(value == item and type(value) is type(item) for item in _NEUTRAL.get(key, ()))
