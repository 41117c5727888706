"""What a model that Heedful trained tells another project about generating with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.models.family import CausalLMSpec, ModelSpec
from heedful.models.spec import TranslatorSpec
from heedful.text.protocol import TextTokenizer

GENERATION_FILE = "generation_config.json"

_BEAM = 4
_LENGTH_PENALTY = 0.6  # the exponent of a length; theirs lacks the paper's added constant


def token_ids(spec: ModelSpec, tokenizer: TextTokenizer) -> dict[str, int]:
    """The ids of special tokens that their config.json names.

    Args:
        spec: of the model.
        tokenizer: of its targets.
    """
    ids = {
        "pad_token_id": tokenizer.pad,
        "eos_token_id": tokenizer.eos,
        "bos_token_id": tokenizer.bos,
    }
    if isinstance(spec, TranslatorSpec):
        ids["decoder_start_token_id"] = tokenizer.bos
    return ids


def generation_settings(spec: ModelSpec, ids: Mapping[str, int]) -> dict[str, Any]:
    """The content of generation_config.json; empty for a model that generates no text.

    Args:
        spec: of the model.
        ids: what `token_ids` gives.
    """
    if not isinstance(spec, TranslatorSpec | CausalLMSpec):
        return {}
    settings: dict[str, Any] = {
        **ids,
        "suppress_tokens": sorted({ids["pad_token_id"], ids["bos_token_id"]}),
    }
    if spec.max_length is not None:
        settings["max_length"] = spec.max_length
    if isinstance(spec, TranslatorSpec):
        settings |= {"num_beams": _BEAM, "length_penalty": _LENGTH_PENALTY}
    return settings
