"""Mamba (Gu and Dao 2023): blocks of one selective state space and no network."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import Fields
from heedful.interop.rewrites import scaled_embeddings
from heedful.interop.tensor_table import (
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
from heedful.nn.mixer_spec import MambaSpec
from heedful.nn.spec import EmbeddingSpec, NormSpec, PositionSpec


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    fields.refuse_unless("hidden_act", ["silu"], "silu")
    fields.refuse_unless("use_conv_bias", [True], True)
    width, rank = fields.integer("hidden_size", 768), fields.get("time_step_rank")
    expansion = fields.integer("expand", 2)
    fields.refuse_unless("intermediate_size", [expansion * width], expansion * width)
    norm = NormSpec(kind="rms", epsilon=fields.number("layer_norm_epsilon", 1e-5))
    mixer = MambaSpec(
        state_size=fields.integer("state_size", 16),
        expansion=expansion,
        convolution=fields.integer("conv_kernel", 4),
        rank=None if rank in ("auto", None) else fields.integer("time_step_rank"),
        bias=fields.flag("use_bias", False),
    )
    # A sixteenth of the width is what an unset rank means, too.
    if mixer.rank == -(-width // 16):
        mixer = mixer.model_copy(update={"rank": None})
    block = BlockSpec.of(norm_placement="pre", norm=norm, self_attention=mixer, feedforward=None)
    return CausalLMSpec(
        width=width,
        vocabulary=fields.integer("vocab_size", 50280),
        embedding=EmbeddingSpec(scale=False, positions=PositionSpec(kind="none")),
        decoder=StackSpec.of(
            num_layers=fields.integer("num_hidden_layers", 32), block=block, final_norm=norm
        ),
        tied=fields.flag("tie_word_embeddings", True),
    )


def _mixer(spec: CausalLMSpec) -> Any:
    """Return the spec of the mixer; a default one, which differs, of a block with another."""
    part = spec.decoder.block.part("mixer")
    return part if part is not None and part.kind == "mamba" else MambaSpec()


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    mixer = _mixer(spec)
    return {
        "architectures": ["MambaForCausalLM"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.decoder.num_layers,
        "layer_norm_epsilon": spec.decoder.block.norm.epsilon,
        "state_size": mixer.state_size,
        "expand": mixer.expansion,
        "conv_kernel": mixer.convolution,
        "time_step_rank": mixer.rank or "auto",
        "use_bias": mixer.bias,
        "tie_word_embeddings": spec.tied,
    }


def _table(spec: CausalLMSpec, names: Names) -> Table:
    prefix, mixer = prefix_of(names, "backbone."), _mixer(spec)
    inner = mixer.expansion * spec.width
    embedding = f"{prefix}embeddings.weight"
    rules = [
        same(embedding, "embedding.weight"),
        same(f"{prefix}norm_f.weight", "decoder.final_norm.weight"),
    ]
    taps = (inner, mixer.convolution)
    for number in range(spec.decoder.num_layers):
        layer, block = f"{prefix}layers.{number}.", f"decoder.blocks.{number}."
        theirs, ours = f"{layer}mixer.", f"{block}mixer."
        parts = ("weight", "bias") if mixer.bias else LINEAR
        rules += [
            same(f"{layer}norm.weight", f"{block}mixer_norm.weight"),
            reshaped(f"{theirs}conv1d.weight", f"{ours}taps", (inner, 1, taps[1]), taps),
            same(f"{theirs}conv1d.bias", f"{ours}taps_bias"),
            same(f"{theirs}x_proj.weight", f"{ours}selection.weight"),
            *renamed({"dt_proj": "step_size"}, theirs=theirs, ours=ours),
            same(f"{theirs}A_log", f"{ours}log_decay"),
            same(f"{theirs}D", f"{ours}skip"),
            *renamed({"out_proj": "output"}, theirs=theirs, ours=ours, parts=parts),
        ]
        for part in parts:
            halves = [f"{ours}{name}.{part}" for name in ("value", "gate")]
            rules.append(concatenated(f"{theirs}in_proj.{part}", halves, [inner, inner]))
    head, copies = output_projection("lm_head.weight", embedding if spec.tied else None)
    return Table((*rules, *head), tuple(copies))


ARCHITECTURE = Architecture(
    model_type="mamba",
    kind="causal_lm",
    read=_read,
    write=_write,
    tensors=_table,
    rewrites=(scaled_embeddings,),
    classes=("MambaForCausalLM", "MambaModel"),
    # First values, and ways to compute the same.
    inert=(
        *("time_step_scale", "time_step_min", "time_step_max", "time_step_init_scheme"),
        *("time_step_floor", "rescale_prenorm_residual", "residual_in_fp32", "use_mambapy"),
        *("use_associative_scan", "d_model", "d_inner", "n_layer", "ssm_cfg", "rms_norm"),
        *("fused_add_norm", "pad_vocab_size_multiple", "conv_bias"),
    ),
)
