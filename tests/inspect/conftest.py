"""Small models of every class and of every architecture that is read, made without training."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from heedful.inspect import Subject
from heedful.interop.architecture import find_architecture
from heedful.models.build import build_model, load_weights
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.images.vision_spec import VisionSpec
from heedful.models.model_spec import CausalLMSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

ALPHABET = "abcdefgh ijklmnop"
SHAPE = {
    "width": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "num_heads": 4,
    "feedforward": 32,
    "max_length": 32,
}


SMALL = {"vocab_size": 40, "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 2}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = SMALL | LAYERS | {"intermediate_size": 24, "max_position_embeddings": 16}
SEQ = SMALL | {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
}
ROBERTA = ENCODER | {"pad_token_id": 1}
T5 = SMALL | {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
VISION = LAYERS | {
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
    "attn_implementation": "eager",
}
GROUPED = ENCODER | {"num_key_value_heads": 2}
LATENT = ENCODER | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 6,
    "v_head_dim": 5,
    "first_k_dense_replace": 1,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}
BLOOM = {"hidden_size": 16, "n_layer": 2, "n_head": 4}
EAGER = {"attn_implementation": "eager"}
TOWERS = EAGER | {"text_config": ENCODER, "vision_config": VISION}
TOYS = {
    "clip": ("CLIPModel", "CLIPConfig", TOWERS | {"text_config": ENCODER | {"eos_token_id": 39}}),
    "siglip": ("SiglipModel", "SiglipConfig", TOWERS),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **{name: SEQ[name] for name in SEQ if name != "max_position_embeddings"},
            "num_mel_bins": 6,
            "max_source_positions": 10,
            "max_target_positions": 16,
        },
    ),
    "bert": ("BertForMaskedLM", "BertConfig", ENCODER),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", ROBERTA),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        SMALL | {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", ENCODER | {"num_key_value_heads": 2}),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        ENCODER | {"num_key_value_heads": 2, "sliding_window": 3},
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", ENCODER | {"num_key_value_heads": 2}),
    "qwen3": (
        "Qwen3ForCausalLM",
        "Qwen3Config",
        ENCODER | {"num_key_value_heads": 2, "head_dim": 4},
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        ENCODER | {"num_key_value_heads": 2, "head_dim": 4, "sliding_window": 3, "pad_token_id": 0},
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ),
    "marian": ("MarianMTModel", "MarianConfig", SEQ),
    "vit": ("ViTForImageClassification", "ViTConfig", VISION),
    "gemma": (
        "GemmaForCausalLM",
        "GemmaConfig",
        ENCODER | {"num_key_value_heads": 2, "head_dim": 6, "pad_token_id": 0},
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        ENCODER | {"use_parallel_residual": False, "rotary_pct": 0.5},
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        "SmolLM3Config",
        ENCODER | {"num_key_value_heads": 2, "pad_token_id": 0, "no_rope_layers": [0, 1]},
    ),
    "xlm-roberta": ("XLMRobertaForMaskedLM", "XLMRobertaConfig", ROBERTA),
    "camembert": ("CamembertForMaskedLM", "CamembertConfig", ROBERTA),
    "xlm-roberta-xl": ("XLMRobertaXLForMaskedLM", "XLMRobertaXLConfig", ROBERTA),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", SEQ),
    "m2m_100": ("M2M100ForConditionalGeneration", "M2M100Config", SEQ),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", SEQ),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5),
    "ijepa": ("IJepaForImageClassification", "IJepaConfig", VISION),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        SMALL | {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4},
    ),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", ENCODER | {"embedding_size": 16}),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", ENCODER | {"embedding_size": 12}),
    "deberta-v2": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        ENCODER
        | {"relative_attention": True, "position_buckets": 4, "pos_att_type": ["c2p", "p2c"]},
    ),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", ROBERTA),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        ENCODER | {"pad_token_id": 1, "cls_token_id": 0, "sep_token_id": 2, "local_attention": 4},
    ),
    "opt": ("OPTForCausalLM", "OPTConfig", SMALL | LAYERS | {"ffn_dim": 24}),
    "bloom": ("BloomForCausalLM", "BloomConfig", SMALL | BLOOM),
    "mpt": ("MptForCausalLM", "MptConfig", SMALL | {"d_model": 16, "n_layers": 2, "n_heads": 4}),
    "gptj": (
        "GPTJForCausalLM",
        "GPTJConfig",
        SMALL | {"n_embd": 16, "n_layer": 2, "n_head": 4, "rotary_dim": 2},
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", ENCODER),
    "falcon": ("FalconForCausalLM", "FalconConfig", SMALL | LAYERS),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", GROUPED),
    "stablelm": (
        "StableLmForCausalLM",
        "StableLmConfig",
        GROUPED | {"partial_rotary_factor": 0.5},
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED | {"pad_token_id": 0}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", GROUPED | {"num_local_experts": 3}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        GROUPED
        | {"head_dim": 4, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        GROUPED | {"head_dim": 4, "sliding_window": 3, "pad_token_id": 0},
    ),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "dinov2": (
        "Dinov2Model",
        "Dinov2Config",
        {n: VISION[n] for n in VISION if n != "intermediate_size"},
    ),
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", VISION),
    "deepseek_v2": ("DeepseekV2ForCausalLM", "DeepseekV2Config", LATENT | {"q_lora_rank": None}),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        LATENT | {"q_lora_rank": 7, "n_group": 2, "topk_group": 1},
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
        | {"num_heads": 4, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
    ),
    "rwkv": (
        "RwkvForCausalLM",
        "RwkvConfig",
        {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2},
    ),
}


def tokenizers():
    return train_pair(TokenizerSpec(kind="characters"), [ALPHABET] * 3, [ALPHABET] * 3)


def made(spec):
    """A model in which no tensor is at its neutral start."""
    torch.manual_seed(0)
    model = build_model(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def translator(**changes):
    pair = tokenizers()
    shape = TranslatorShape.parse({**SHAPE, **changes})
    return Subject(made(translator_spec(shape, pair.source.size, pair.target.size)), pair)


def stack(*, causal=False, **changes):
    attention = {"num_heads": 4}
    if causal:
        attention["mask"] = {"kind": "causal"}
    block = {"self_attention": attention, "feedforward": {"width": 24}, **changes.pop("block", {})}
    return {"num_layers": 2, "block": block, **changes}


def causal_lm(**changes):
    pair = tokenizers()
    pre = {
        "block": {"norm_placement": "pre", "norm": {"kind": "rms"}},
        "final_norm": {"kind": "rms"},
    }
    values = {"width": 16, "vocabulary": pair.source.size, "max_length": 24}
    spec = CausalLMSpec.parse({**values, "decoder": stack(causal=True, **pre), **changes})
    return Subject(made(spec), pair)


def encoder(heads=({"kind": "masked_lm"},)):
    pair = tokenizers()
    values = {"width": 16, "vocabulary": pair.source.size, "max_length": 24, "heads": heads}
    return Subject(made(EncoderSpec.parse({**values, "encoder": stack()})), pair)


def vision():
    values = {"width": 16, "image_size": 12, "patch_size": 4, "num_classes": 3}
    return Subject(made(VisionSpec.parse({**values, "encoder": stack()})))


@pytest.fixture(scope="session")
def toys():
    return SimpleNamespace(
        translator=translator, causal_lm=causal_lm, encoder=encoder, vision=vision, stack=stack
    )


def theirs_and_ours(name, directory):
    import transformers

    model_class, config_class, settings = TOYS[name]
    torch.manual_seed(0)
    theirs = getattr(transformers, model_class)(
        getattr(transformers, config_class)(**settings)
    ).eval()
    with torch.no_grad():
        for parameter in (p for p in theirs.parameters() if p.requires_grad):
            parameter.add_(0.3 * torch.randn_like(parameter))
    theirs.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    stored = load_file(directory / "model.safetensors")
    architecture = find_architecture(config["model_type"], where="")
    spec = architecture.read_config(config, where="", names=stored.keys())
    ours = build_model(spec)
    table = architecture.table(spec, stored.keys())
    load_weights(ours, table.to_ours(stored, where=""), where="")
    return theirs, ours


@pytest.fixture(scope="session")
def imported(tmp_path_factory):
    """Makes a toy of an architecture by their library, and ours of what it wrote."""
    return lambda name: theirs_and_ours(name, tmp_path_factory.mktemp(name))
