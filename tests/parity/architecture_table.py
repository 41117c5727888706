"""The guide's table of architectures, from the cases that compare them with transformers.

`python -m tests.parity.architecture_table` writes it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from heedful.interop.architecture import MODEL_TYPES, find_architecture

from .architecture_cases import CASES, CLOSE

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "other-models.md"
BEGIN, END = "<!-- architectures: begin -->\n", "<!-- architectures: end -->\n"
BECOMES = {
    "encoder": "EncoderModel",
    "causal_lm": "CausalLM",
    "translator": "Translator",
    "transcriber": "Transcriber",
    "vision": "VisionModel",
    "two_towers": "TwoTowers",
}
WORDS = {
    "albert": "ALBERT, whose one layer becomes copies",
    "bart": "BART",
    "bert": "BERT, with its heads",
    "bloom": "BLOOM, with penalties of distance",
    "camembert": "CamemBERT",
    "clip": "CLIP",
    "deberta-v2": "DeBERTa 2 and 3 without convolution, whose layers get copies",
    "deepseek_v2": "DeepSeek 2, with latent attention",
    "deepseek_v3": "DeepSeek 3, with latent attention",
    "deit": "DeiT, with a distillation token",
    "dinov2": "DINOv2, its states",
    "distilbert": "DistilBERT",
    "electra": "ELECTRA",
    "falcon": "Falcon with rotary positions",
    "gemma": "Gemma",
    "gemma2": "Gemma 2, with soft caps and windows in every other layer",
    "gemma3_text": "Gemma 3, its models of text",
    "gpt2": "GPT-2",
    "gpt_neox": "GPT-NeoX and Pythia",
    "gptj": "GPT-J",
    "ijepa": "I-JEPA",
    "llama": "LLaMA, with grouped heads and scaled rotary positions",
    "m2m_100": "M2M-100 and NLLB",
    "mamba": "Mamba, which has no attention",
    "mamba2": "Mamba 2, which has no attention",
    "marian": "Marian, of OPUS-MT",
    "mbart": "mBART",
    "mistral": "Mistral, with a sliding window",
    "mixtral": "Mixtral, with experts",
    "modernbert": "ModernBERT, and its masked language model",
    "mpnet": "MPNet, with biases of distances",
    "mpt": "MPT, with penalties of distance",
    "mt5": "mT5",
    "olmo2": "OLMo 2, with norms of outputs",
    "opt": "OPT with norms before parts",
    "pegasus": "PEGASUS",
    "phi": "Phi 1 and 2",
    "phi3": "Phi 3 and 4, without longrope",
    "qwen2": "Qwen 2, with windows in some layers",
    "qwen3": "Qwen 3, with norms of queries and keys",
    "qwen3_moe": "Qwen 3, with experts",
    "roberta": "RoBERTa, with its heads",
    "rwkv": "RWKV 4, which has no attention",
    "siglip": "SigLIP",
    "smollm3": "SmolLM 3, with layers that do not rotate",
    "stablelm": "StableLM",
    "starcoder2": "StarCoder 2",
    "t5": "T5 1.0 and 1.1",
    "vit": "ViT",
    "whisper": "Whisper, from sound to text",
    "xlm-roberta": "XLM-RoBERTa",
    "xlm-roberta-xl": "XLM-RoBERTa-XL",
}


def text() -> str:
    """The lines of the table, with how many configurations of each were compared."""
    compared = Counter(name.partition(",")[0] for name in CASES)
    rows = {kind: [] for kind in BECOMES}
    for name in MODEL_TYPES:
        kind = find_architecture(name, where="").kind
        count = compared[name]
        rows[kind].append(f"| {WORDS[name]} | `{name}` | `{BECOMES[kind]}` | {count} |\n")
    head = "| architecture | `model_type` | becomes | compared |\n|---|---|---|---|\n"
    table = head + "".join(row for of_kind in rows.values() for row in of_kind)
    told = (
        "\nEach is read and written again. *Compared* counts the tiny configurations with random "
        f"weights\nwhose outputs equal those of `transformers` to {CLOSE:g} of the largest number, "
        "both ways.\n"
    )
    return table + told


def write(page: str) -> str:
    """The page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + text() + END + after


if __name__ == "__main__":
    GUIDE.write_text(write(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
