"""Mamba 2 (Dao and Gu 2024): blocks of one state space of heads and no network."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.decoders.mamba_models import (
    read_state_spaces,
    state_space_table,
    write_state_spaces,
)
from heedful.interop.config_fields import Fields
from heedful.interop.rewrites import scaled_embeddings
from heedful.interop.tensor_table import (
    AFFINE,
    LINEAR,
    Rule,
    Table,
    concatenated,
    renamed,
    reshaped,
    same,
)
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.mamba2_spec import Mamba2Spec

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
    mixer: Any = Mamba2Spec(
        num_heads=heads,
        head_width=head_width,
        num_groups=fields.integer("n_groups", 8),
        state_size=fields.integer("state_size", 128),
        convolution=fields.integer("conv_kernel", 4),
        bias=fields.flag("use_bias", False),
        norm_epsilon=fields.number("layer_norm_epsilon", 1e-5),
    )
    sizes = {"hidden_size": 4096, "vocab_size": 32768, "num_hidden_layers": 64}
    return read_state_spaces(fields, mixer, sizes, tied=False)


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
        **write_state_spaces(spec, mixer),
        # A whole number wherever it can be, as their class writes it.
        "expand": inner // spec.width if inner % spec.width == 0 else inner / spec.width,
        "num_heads": mixer.num_heads,
        "head_dim": mixer.head_width,
        "n_groups": mixer.num_groups,
    }


def _table(spec: CausalLMSpec, names: Names) -> Table:
    mixer = _mixer(spec)
    inner, group = mixer.num_heads * mixer.head_width, mixer.num_groups * mixer.state_size
    channels, parts = inner + 2 * group, AFFINE if mixer.bias else LINEAR
    taps = (channels, mixer.convolution)
    maps = {"gate": inner, "value": inner, "write": group, "read": group, "step": mixer.num_heads}

    def rules_of(theirs: str, ours: str) -> list[Rule]:
        rules = [same(f"{theirs}{name}", f"{ours}{own}") for name, own in _LAYER.items()]
        shape = (channels, 1, mixer.convolution)
        rules.append(reshaped(f"{theirs}conv1d.weight", f"{ours}taps", shape, taps))
        rules += renamed({"out_proj": "output"}, theirs=theirs, ours=ours, parts=parts)
        for part in parts:
            own = [f"{ours}{name}.{part}" for name in maps]
            rules.append(concatenated(f"{theirs}in_proj.{part}", own, list(maps.values())))
        return rules

    return state_space_table(spec, names, rules_of)


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
