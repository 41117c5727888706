"""Mamba 2 (Dao and Gu 2024): blocks of one state space of heads and no network."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import Fields
from heedful.interop.rewrites import scaled_embeddings
from heedful.interop.tensor_table import (
    AFFINE,
    LINEAR,
    Table,
    concatenated,
    output_projection,
    prefix_of,
    renamed,
    reshaped,
    same,
)
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.mamba2_spec import Mamba2Spec
from heedful.nn.spec import EmbeddingSpec, NormSpec, PositionSpec

_LAYER = {
    "dt_bias": "step_bias",
    "A_log": "log_decay",
    "D": "skip",
    "norm.weight": "norm_weight",
    "conv1d.bias": "taps_bias",
}


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    fields.refuse_unless("hidden_act", ["silu"], "silu")
    fields.refuse_unless("use_conv_bias", [True], True)
    _check_limits(fields)
    width, heads = fields.integer("hidden_size", 4096), fields.integer("num_heads", 128)
    head_width = fields.integer("head_dim", 64)
    if fields.number("expand", 2) * width != heads * head_width:
        raise fields.wrong("expand", f"num_heads times head_dim are {heads * head_width}")
    epsilon = fields.number("layer_norm_epsilon", 1e-5)
    norm = NormSpec(kind="rms", epsilon=epsilon)
    mixer: Any = Mamba2Spec(
        num_heads=heads,
        head_width=head_width,
        num_groups=fields.integer("n_groups", 8),
        state_size=fields.integer("state_size", 128),
        convolution=fields.integer("conv_kernel", 4),
        bias=fields.flag("use_bias", False),
        norm_epsilon=epsilon,
    )
    return CausalLMSpec(
        width=width,
        vocabulary=fields.integer("vocab_size", 32768),
        embedding=EmbeddingSpec(scale=False, positions=PositionSpec(kind="none")),
        decoder=StackSpec.of(
            num_layers=fields.integer("num_hidden_layers", 64),
            block=BlockSpec.of(
                norm_placement="pre", norm=norm, self_attention=mixer, feedforward=None
            ),
            final_norm=norm,
        ),
        tied=fields.flag("tie_word_embeddings", False),
    )


def _check_limits(fields: Fields) -> None:
    """Refuse step sizes with bounds, which 0 and infinity are none of."""
    limits = fields.get("time_step_limit")
    # JSON has no infinity: transformers writes it as a table, older files as a word.
    infinity = ({"__float__": "Infinity"}, float("inf"), "Infinity")
    if limits is not None and not (limits[0] == 0 and limits[1] in infinity):
        raise fields.wrong("time_step_limit", "steps without bounds are needed, 0 and infinity")


def _mixer(spec: CausalLMSpec) -> Any:
    """Return the spec of the mixer; a default one, which differs, of a block with another."""
    part: Any = spec.decoder.block.part("mixer")
    return part if part is not None and part.kind == "mamba2" else Mamba2Spec(num_heads=1)


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    mixer = _mixer(spec)
    inner = mixer.num_heads * mixer.head_width
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.decoder.num_layers,
        "layer_norm_epsilon": spec.decoder.block.norm.epsilon,
        # A whole number wherever it can be, as their class writes it.
        "expand": inner // spec.width if inner % spec.width == 0 else inner / spec.width,
        "num_heads": mixer.num_heads,
        "head_dim": mixer.head_width,
        "n_groups": mixer.num_groups,
        "state_size": mixer.state_size,
        "conv_kernel": mixer.convolution,
        "use_bias": mixer.bias,
        "tie_word_embeddings": spec.tied,
    }


def _table(spec: CausalLMSpec, names: Names) -> Table:
    prefix, mixer = prefix_of(names, "backbone."), _mixer(spec)
    inner, group = mixer.num_heads * mixer.head_width, mixer.num_groups * mixer.state_size
    embedding = f"{prefix}embeddings.weight"
    rules = [
        same(embedding, "embedding.weight"),
        same(f"{prefix}norm_f.weight", "decoder.final_norm.weight"),
    ]
    taps = (inner + 2 * group, mixer.convolution)
    parts = AFFINE if mixer.bias else LINEAR
    maps = {"gate": inner, "value": inner, "write": group, "read": group, "step": mixer.num_heads}
    for number in range(spec.decoder.num_layers):
        layer, block = f"{prefix}layers.{number}.", f"decoder.blocks.{number}."
        theirs, ours = f"{layer}mixer.", f"{block}mixer."
        rules.append(same(f"{layer}norm.weight", f"{block}mixer_norm.weight"))
        rules += [same(f"{theirs}{name}", f"{ours}{own}") for name, own in _LAYER.items()]
        shape = (taps[0], 1, taps[1])
        rules.append(reshaped(f"{theirs}conv1d.weight", f"{ours}taps", shape, taps))
        rules += renamed({"out_proj": "output"}, theirs=theirs, ours=ours, parts=parts)
        for part in parts:
            own = [f"{ours}{name}.{part}" for name in maps]
            rules.append(concatenated(f"{theirs}in_proj.{part}", own, list(maps.values())))
    head, copies = output_projection("lm_head.weight", embedding if spec.tied else None)
    return Table((*rules, *head), tuple(copies))


ARCHITECTURE = Architecture(
    model_type="mamba2",
    kind="causal_lm",
    read=_read,
    write=_write,
    tensors=_table,
    rewrites=(scaled_embeddings,),
    classes=("Mamba2ForCausalLM", "Mamba2Model"),
    # First values, and ways to compute the same.
    inert=(
        *("time_step_min", "time_step_max", "time_step_floor", "time_step_rank"),
        *(
            "rescale_prenorm_residual",
            "residual_in_fp32",
            "chunk_size",
            "rms_norm",
            "norm_before_gate",
        ),
    ),
)
