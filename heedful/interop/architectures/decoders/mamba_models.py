"""Mamba (Gu and Dao 2023): blocks of one selective state space and no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import Fields
from heedful.interop.rewrites import scaled_embeddings
from heedful.interop.tensor_table import (
    AFFINE,
    LINEAR,
    Rule,
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
    sizes = {"hidden_size": 768, "vocab_size": 50280, "num_hidden_layers": 32}
    return read_state_spaces(fields, mixer, sizes, tied=True)


def read_state_spaces(
    fields: Fields, mixer: Any, sizes: Mapping[str, int], *, tied: bool
) -> CausalLMSpec:
    """Return the spec of blocks of one mixer and no network.

    Args:
        fields: fields of config.json.
        mixer: spec of the mixer.
        sizes: defaults of sizes that config.json leaves out.
        tied: flag of an output that is the embedding, where config.json does not say.
    """
    norm = NormSpec(kind="rms", epsilon=fields.number("layer_norm_epsilon", 1e-5))
    block = BlockSpec.of(norm_placement="pre", norm=norm, self_attention=mixer, feedforward=None)
    width, vocabulary, layers = (fields.integer(name, usual) for name, usual in sizes.items())
    return CausalLMSpec(
        width=width,
        vocabulary=vocabulary,
        embedding=EmbeddingSpec(scale=False, positions=PositionSpec(kind="none")),
        decoder=StackSpec.of(num_layers=layers, block=block, final_norm=norm),
        tied=fields.flag("tie_word_embeddings", tied),
    )


def _mixer(spec: CausalLMSpec) -> Any:
    """Return the spec of the mixer; a default one, which differs, of a block with another."""
    part = spec.decoder.block.part("mixer")
    return part if part is not None and part.kind == "mamba" else MambaSpec()


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    mixer = _mixer(spec)
    return {
        "architectures": ["MambaForCausalLM"],
        **write_state_spaces(spec, mixer),
        "expand": mixer.expansion,
        "time_step_rank": mixer.rank or "auto",
    }


def write_state_spaces(spec: CausalLMSpec, mixer: Any) -> dict[str, Any]:
    """Return the fields that Mamba and Mamba 2 have in common.

    Args:
        spec: spec of the model.
        mixer: spec of its mixer.
    """
    return {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.decoder.num_layers,
        "layer_norm_epsilon": spec.decoder.block.norm.epsilon,
        "state_size": mixer.state_size,
        "conv_kernel": mixer.convolution,
        "use_bias": mixer.bias,
        "tie_word_embeddings": spec.tied,
    }


def _table(spec: CausalLMSpec, names: Names) -> Table:
    mixer = _mixer(spec)
    inner = mixer.expansion * spec.width
    taps = (inner, mixer.convolution)
    parts = AFFINE if mixer.bias else LINEAR

    def rules_of(theirs: str, ours: str) -> list[Rule]:
        halves = [[f"{ours}{name}.{part}" for name in ("value", "gate")] for part in parts]
        return [
            reshaped(f"{theirs}conv1d.weight", f"{ours}taps", (inner, 1, taps[1]), taps),
            same(f"{theirs}conv1d.bias", f"{ours}taps_bias"),
            same(f"{theirs}x_proj.weight", f"{ours}selection.weight"),
            *renamed({"dt_proj": "step_size"}, theirs=theirs, ours=ours),
            same(f"{theirs}A_log", f"{ours}log_decay"),
            same(f"{theirs}D", f"{ours}skip"),
            *renamed({"out_proj": "output"}, theirs=theirs, ours=ours, parts=parts),
            *(
                concatenated(f"{theirs}in_proj.{part}", own, [inner, inner])
                for part, own in zip(parts, halves, strict=True)
            ),
        ]

    return state_space_table(spec, names, rules_of)


def state_space_table(
    spec: CausalLMSpec, names: Names, rules_of: Callable[[str, str], list[Rule]]
) -> Table:
    """Return the tensor table of blocks of one mixer and no network.

    Args:
        spec: spec of the model.
        names: names of their tensors, with or without the prefix "backbone.".
        rules_of: function from the beginnings of a mixer's names, theirs and ours, to its rules.
    """
    prefix = prefix_of(names, "backbone.")
    embedding = f"{prefix}embeddings.weight"
    rules = [
        same(embedding, "embedding.weight"),
        same(f"{prefix}norm_f.weight", "decoder.final_norm.weight"),
    ]
    for number in range(spec.decoder.num_layers):
        layer, block = f"{prefix}layers.{number}.", f"decoder.blocks.{number}."
        rules.append(same(f"{layer}norm.weight", f"{block}mixer_norm.weight"))
        rules += rules_of(f"{layer}mixer.", f"{block}mixer.")
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
