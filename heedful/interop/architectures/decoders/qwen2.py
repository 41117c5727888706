"""Qwen 2 (Yang 2024): LLaMA with biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Names
from heedful.interop.architectures.decoders.llama import (
    FULL,
    decoder_architecture,
    read_decoder,
    read_windows,
    write_decoder,
    write_windows,
)
from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec

# Defaults of transformers' Qwen2Config.
SIZES = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}
# Default of `max_window_layers`: layers from this index on have the window.
_FIRST_SLIDING = 28


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    windows = read_qwen_windows(fields, names)
    # Fixed by the class, so config.json has no field for it.
    return read_decoder(fields, SIZES, bias=True, output_bias=False, windows=windows)


def read_qwen_windows(fields: Fields, names: Names) -> list[int | None]:
    """Return the window of each layer: none, or the window in the last layers only."""
    # Published files name a `sliding_window` and turn it off by this flag.
    if not fields.flag("use_sliding_window", False):
        fields.ignore("sliding_window", "max_window_layers")
        if not {FULL}.issuperset(fields.texts("layer_types")):
            raise fields.wrong("layer_types", "use_sliding_window is false")
        return [None]
    first = fields.integer("max_window_layers", _FIRST_SLIDING)
    return read_windows(fields, SIZES, lambda number: number >= first, names)


def write_qwen_windows(spec: CausalLMSpec) -> dict[str, Any]:
    """Return the fields that `read_qwen_windows` reads."""
    windows = write_windows(spec)
    if windows["sliding_window"] is None:
        return {"use_sliding_window": False}
    return {"use_sliding_window": True, **windows}


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    config = write_decoder(spec) | write_qwen_windows(spec)
    if spec.decoder.pattern[0].self_attention.head_width is None:
        # Their config has no such field, though their model reads it if it is there.
        del config["head_dim"]
    return {"architectures": ["Qwen2ForCausalLM"], **config}


ARCHITECTURE = decoder_architecture("qwen2", _read, _write, "Qwen2ForCausalLM", "Qwen2Model")
