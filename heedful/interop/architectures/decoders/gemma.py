"""Gemma (Mesnard 2024): LLaMA with scaled embeddings and other norms; Gemma 2 keeps most of it."""

from __future__ import annotations

from typing import Any

from heedful.config import Activation
from heedful.interop.architecture import Names
from heedful.interop.architectures.decoders.llama import (
    GATED,
    decoder_architecture,
    read_decoder,
    write_decoder,
)
from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec
from heedful.nn.spec import NormPlacement, NormSpec

# Defaults of transformers' GemmaConfig, those of the 7B model.
_SIZES = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}
_TANH = "gelu_pytorch_tanh"


def as_gemma(
    spec: CausalLMSpec, fields: Fields, norm_placement: NormPlacement, activation: Activation
) -> CausalLMSpec:
    """Return a decoder with what Gemma and Gemma 2 change in all layers.

    Args:
        spec: spec with the structure of LLaMA.
        fields: fields of config.json.
        norm_placement: place of the norms of every sub-layer.
        activation: activation of the feed-forward networks.
    """
    # The factor is 1 + weight, so that weight decay pulls it to 1; the files hold the weight.
    norm = NormSpec(kind="rms", epsilon=spec.decoder.pattern[0].norm.epsilon, unit_offset=True)

    def changed(block: BlockSpec) -> BlockSpec:
        feedforward = block.feedforward.model_copy(update={"activation": activation})
        return block.replace(feedforward=feedforward, norm=norm, norm_placement=norm_placement)

    pattern = tuple(map(changed, spec.decoder.pattern))
    return spec.model_copy(
        update={
            "decoder": spec.decoder.model_copy(update={"pattern": pattern, "final_norm": norm}),
            # The factor sqrt(D) is cast to the dtype of the states first:
            # for a width of 3072 it is 55.5 in bfloat16, not 55.43.
            "embedding": spec.embedding.model_copy(update={"scale": "rounded"}),
            "tied": fields.flag("tie_word_embeddings", True),
        }
    )


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    fields.refuse_unless("use_bidirectional_attention", [False], False)
    fields.refuse_unless("hidden_activation", [_TANH], _TANH)
    spec = read_decoder(fields, _SIZES, activation=_TANH, bias=fields.flag("attention_bias", False))
    # The first files say "gelu" and mean its tanh approximation.
    activation = fields.choice("hidden_act", {**GATED, "gelu": GATED[_TANH]}, _TANH)
    return as_gemma(spec, fields, "before", activation)


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    return {
        "architectures": ["GemmaForCausalLM"],
        **write_decoder(spec),
        "attention_bias": spec.decoder.pattern[0].self_attention.bias,
    }


ARCHITECTURE = decoder_architecture("gemma", _read, _write, "GemmaForCausalLM", "GemmaModel")
