"""Export of language models like LLaMA to GGUF, the file format of llama.cpp.

The model is first written as transformers would have it, and then as llama.cpp's own converter
would: names of tensors come from the package `gguf`, and queries and keys of LLaMA are permuted,
since its rotation there pairs neighbouring channels.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file
from torch import Tensor

from heedful.errors import ConfigError, ModelError
from heedful.interop.hugging_face import export_model
from heedful.models.checkpoint import write_directory

FILE_NAME = "model.gguf"

Array = npt.NDArray[np.float32]


class _Target(NamedTuple):
    """An architecture of llama.cpp.

    Args:
        name: its name there.
        permuted: true if queries and keys are stored for a rotation of neighbouring channels.
        unit_offset: true if norms are stored as 1 + weight.
    """

    name: str
    permuted: bool = False
    unit_offset: bool = False


_TARGETS = {
    "llama": _Target("llama", permuted=True),
    "mistral": _Target("llama", permuted=True),
    "qwen2": _Target("qwen2"),
    "qwen3": _Target("qwen3"),
    "gemma2": _Target("gemma2", unit_offset=True),
}

# Names of types by our names of quantizations.
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "Q8_0"}

# How llama.cpp calls the splitting of texts that comes before byte-level BPE, by the pattern in
# tokenizer.json. With another pattern its tokens would silently differ from ours.
_DIGITS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {"": "gpt-2", _DIGITS + "{1,3}" + _REST: "llama-bpe", _DIGITS + _REST: "qwen2"}


def export_gguf(model: Path, out: Path, quantization: str) -> tuple[str, bool]:
    """Write a language model of ours as a directory with a file for llama.cpp.

    Args:
        model: model directory, or run directory (its best model is exported).
        out: directory to write, whose parent exists.
        quantization: storage type of matrices: float32, float16, bfloat16 or int8 (Q8_0).

    Returns:
        The architecture in llama.cpp, and True if the file has the tokenizer.

    Raises:
        ModelError: when llama.cpp has no architecture that computes the model.
        ConfigError: when the package gguf is not installed, or there is no such type.
        RunError: when the directory cannot be written.
    """
    if quantization not in _TYPES:
        raise ConfigError(
            f"GGUF is written as {', '.join(_TYPES)}, not as {quantization}",
            where=f"quantization = {quantization}",
        )
    gguf = _package()
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".gguf-") as folder:
        theirs = Path(folder) / "hf"
        config = export_model(model, theirs)
        target = _TARGETS.get(config["model_type"])
        if target is None:
            raise ModelError(
                f"Models of type {config['model_type']!r} are not written as GGUF",
                where=str(model),
                remedy=f"Known: {', '.join(_TARGETS)}; ctranslate2 and hf know others",
            )
        _check(config, str(model))
        tensors = load_file(str(theirs / "model.safetensors"))
        tokenizer = _read(theirs / "tokenizer.json")

    def write(fresh: Path) -> None:
        writer = gguf.GGUFWriter(fresh / FILE_NAME, target.name)
        _add_settings(writer, config, gguf)
        _add_tokenizer(writer, tokenizer, config)
        kind = gguf.GGMLQuantizationType[_TYPES[quantization]]
        _add_tensors(writer, tensors, config, target, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    write_directory(out, write)
    return target.name, _split_name(tokenizer) is not None


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise ConfigError(
            "The package gguf is not installed",
            where="--format gguf",
            remedy="Install it with: pip install 'heedful[gguf]'",
        ) from None
    return gguf


def _read(path: Path) -> Mapping[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _check(config: Mapping[str, Any], where: str) -> None:
    """Refuse settings that llama.cpp would ignore."""
    window, gemma = config.get("sliding_window"), config["model_type"] == "gemma2"
    scaling, length = _rope(config).get("rope_type", "default"), config["max_position_embeddings"]
    activation = config.get("hidden_activation" if gemma else "hidden_act")
    problems = {
        f"sliding_window = {window}": window is not None and not gemma and window < length,
        f"rope_type = {scaling}": scaling not in ("default", "linear", "llama3"),
        f"activation = {activation}": activation != ("gelu_pytorch_tanh" if gemma else "silu"),
        "attention_bias": bool(config.get("attention_bias"))
        and config["model_type"] in ("gemma2", "qwen3"),
    }
    if gemma:
        layers, scalar = config["num_hidden_layers"], config["query_pre_attn_scalar"]
        # The model of 27B, which has 46 layers, divides by another root than those of its heads.
        usual = config["hidden_size"] / config["num_attention_heads"]
        usual = usual if layers == 46 else _head_width(config)
        alternating = [("sliding_attention", "full_attention")[n % 2] for n in range(layers)]
        problems |= {
            f"query_pre_attn_scalar = {scalar}": not math.isclose(scalar, usual),
            "layer_types": config["layer_types"] != alternating,
        }
    if ignored := [name for name, is_there in problems.items() if is_there]:
        raise ModelError(
            f"llama.cpp's {config['model_type']} does not compute: {', '.join(ignored)}",
            where=where,
            remedy="Export it by --format hf or ctranslate2",
        )


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope


def _rope_base(config: Mapping[str, Any]) -> float:
    return float(_rope(config).get("rope_theta") or config.get("rope_theta", 10_000.0))


def _head_width(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _add_settings(writer: Any, config: Mapping[str, Any], gguf: Any) -> None:
    heads, rope = config["num_attention_heads"], _rope(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(_head_width(config))
    writer.add_value_length(_head_width(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(_head_width(config))
    writer.add_rope_freq_base(_rope_base(config))
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(float(config["attn_logit_softcapping"]))
        writer.add_final_logit_softcapping(float(config["final_logit_softcapping"]))
        writer.add_sliding_window(config["sliding_window"])


def _add_tensors(
    writer: Any,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    target: _Target,
    kind: Any,
) -> None:
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map, quants

    architecture = next(a for a in MODEL_ARCH if MODEL_ARCH_NAMES[a] == target.name)
    names = get_tensor_name_map(architecture, config["num_hidden_layers"])
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    for name, tensor in tensors.items():
        values: Array = tensor.float().numpy()
        if target.permuted and ".self_attn.q_proj." in name:
            values = _interleaved(values, heads)
        if target.permuted and ".self_attn.k_proj." in name:
            values = _interleaved(values, kv_heads)
        if target.unit_offset and name.endswith("norm.weight"):
            values = values + 1
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known is not None, name  # the architectures are those of the table above
        # Vectors stay float32, as llama.cpp's own converter keeps them.
        own = kind if values.ndim > 1 else type(kind).F32
        if own.name == "Q8_0" and values.shape[-1] % 32:
            own = type(kind).F16  # blocks of Q8_0 have 32 numbers
        writer.add_tensor(known, quants.quantize(values, own), raw_dtype=own)
    if _rope(config).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _frequency_factors(config))


def _interleaved(values: Array, heads: int) -> Array:
    """Move channels i and i + E/2 of each head next to each other."""
    shape = values.shape
    split = values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(shape))


def _frequency_factors(config: Mapping[str, Any]) -> Array:
    """Return the divisors of the rotation's frequencies by wavelength (LLaMA 3.1) [E / 2]."""
    rope, width = _rope(config), _head_width(config)
    base = _rope_base(config)
    length, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for channel in range(0, width, 2):
        turns = length / (2 * math.pi * base ** (channel / width))
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - share) / factor + share))
    return np.array(factors, np.float32)


def _add_tokenizer(writer: Any, content: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Add the tokenizer where llama.cpp has the same, and otherwise none: tokens are then ids."""
    from gguf import TokenType

    split = _split_name(content)
    if split is None:
        writer.add_tokenizer_model("none")
        return
    added = {each["id"]: each for each in content["added_tokens"]}
    ids = {number: text for text, number in content["model"]["vocab"].items()}
    ids |= {number: each["content"] for number, each in added.items()}
    texts, types = [], []
    for number in range(config["vocab_size"]):
        texts.append(ids.get(number, f"[PAD{number}]"))
        if number not in ids:
            types.append(TokenType.UNUSED)
        elif number in added:
            special = added[number]["special"]
            types.append(TokenType.CONTROL if special else TokenType.USER_DEFINED)
        else:
            types.append(TokenType.NORMAL)
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    for role in ("bos", "eos", "unk", "pad"):
        special_id = config.get(f"{role}_token_id")
        if isinstance(special_id, int):
            getattr(writer, f"add_{role}_token_id")(special_id)


def _split_name(content: Mapping[str, Any]) -> str | None:
    """Return llama.cpp's name for the steps before byte-level BPE; None where it has no such."""
    steps = content.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    model, normalizer = content["model"], content.get("normalizer")
    if normalizer is not None or model["type"] != "BPE" or model.get("byte_fallback"):
        return None
    last = steps[-1]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if len(steps) == 1:
        return _SPLITS[""] if last.get("use_regex", True) else None
    first = steps[0]
    if len(steps) > 2 or first.get("type") != "Split" or last.get("use_regex", True):
        return None
    return _SPLITS.get(first["pattern"].get("Regex", "-"))
