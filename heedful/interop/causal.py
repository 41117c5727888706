"""Whether another project's config.json says all there is to say about a causal model."""

from __future__ import annotations

from heedful.models.family import CausalLMSpec
from heedful.nn.spec import AllOfSpec, CausalSpec, SegmentSpec


def is_round_trip(spec: CausalLMSpec, again: CausalLMSpec) -> bool:
    """Whether two specs give the same model, for texts that are not packed.

    Args:
        spec: the model.
        again: read from the config.json that was written for it.
    """
    return _essence(spec) == _essence(again)


def _essence(spec: CausalLMSpec) -> CausalLMSpec:
    """Without what only training asks for, and with every default written out.

    Dropout is for training, segments are for packed texts, and `max_length` is advice.
    """
    stack, block = spec.decoder, spec.decoder.block
    attention = block.self_attention
    mask = attention.mask
    if isinstance(mask, AllOfSpec) and set(map(type, mask.parts)) == {CausalSpec, SegmentSpec}:
        mask = CausalSpec()
    head_width = attention.head_width or spec.width // attention.num_heads
    attention = attention.model_copy(
        update={
            "mask": mask,
            "dropout": 0.0,
            "num_kv_heads": attention.num_kv_heads or attention.num_heads,
            "head_width": head_width,
            "scale": attention.scale or head_width**-0.5,
            "output_bias": (
                attention.bias if attention.output_bias is None else attention.output_bias
            ),
        }
    )
    block = block.model_copy(
        update={
            "self_attention": attention,
            "feedforward": block.feedforward.model_copy(update={"dropout": 0.0}),
            "dropout": 0.0,
        }
    )
    return spec.model_copy(
        update={
            "decoder": stack.model_copy(update={"block": block, "final_dropout": 0.0}),
            "embedding": spec.embedding.model_copy(update={"dropout": 0.0}),
            "max_length": None,
        }
    )
