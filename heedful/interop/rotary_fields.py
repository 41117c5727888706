"""Fields of a config.json about rotary positions: base, scaling, share of a head's channels."""

from __future__ import annotations

import math
from typing import Any

from heedful.interop.config_fields import Fields
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.spec import RotarySpec

_SCALINGS = ("default", "linear", "llama3", "yarn")
_BASE = 10_000.0


def read_rotary(fields: Fields, max_length: int, base_key: str = "rope_theta") -> RotarySpec:
    """Return the rotary embedding from `rope_parameters`, or the base and `rope_scaling`.

    Args:
        fields: fields of config.json.
        max_length: longest text in tokens.
        base_key: name of the base in files without `rope_parameters`.
    """
    base = fields.number(base_key, _BASE)
    older, rope = fields.table("rope_scaling"), fields.table("rope_parameters")
    if older and rope and fields.get("rope_scaling") != fields.get("rope_parameters"):
        raise fields.wrong("rope_scaling", "rope_parameters says something else")
    rope = rope or older
    return RotarySpec(base=base) if rope is None else rotary_of(rope, base, max_length)


def rotary_of(rope: Fields, base: float, max_length: int) -> RotarySpec:
    """Return the rotary embedding that a table such as `rope_parameters` describes.

    Args:
        rope: fields of the table.
        base: base of a table without one.
        max_length: longest text in tokens.
    """
    # `rope_parameters`, of transformers 5, holds the base as well.
    base = rope.number("rope_theta", base)
    # Older files say `type`.
    if rope.has("rope_type"):
        rope.check_aliases(type="rope_type")
    key = "rope_type" if rope.has("rope_type") else "type"
    scaling = rope.choice(key, {name: name for name in _SCALINGS}, "default")
    if scaling == "default":
        return RotarySpec(base=base)
    if scaling == "linear":
        return RotarySpec(base=base, scaling="linear", factor=rope.number("factor"))
    # A stretched model's `max_position_embeddings` is the new length, the original is the trained
    # one.
    length = rope.integer("original_max_position_embeddings", max_length)
    if scaling == "llama3":
        return RotarySpec(
            base=base,
            scaling="by_wavelength",
            factor=rope.number("factor"),
            original_length=length,
            # The factors count turns over the trained length; a wavelength is length / factor.
            beta_fast=rope.number("high_freq_factor"),
            beta_slow=rope.number("low_freq_factor"),
        )
    # Rounded bounds of the ramp, as in the paper's code; gpt-oss turns the rounding off.
    rope.refuse_unless("truncate", [True], True)
    factor = rope.number("factor", max_length / length)
    return RotarySpec(
        base=base,
        scaling="yarn",
        factor=factor,
        original_length=length,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        temperature=_read_temperature(rope, factor),
    )


def _read_temperature(rope: Fields, factor: float) -> float | None:
    """Return YaRN's factor on queries and keys; None for the factor of Peng (2023)."""
    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    # DeepSeek's variant: a ratio of two of the paper's factors, each with a weight of its own.
    above, below = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if above and below:
        growth = 0.1 * math.log(factor)
        return (above * growth + 1.0) / (below * growth + 1.0)
    return None


def read_share(
    fields: Fields,
    head_width: int,
    length: int,
    default: float,
    *,
    key: str = "partial_rotary_factor",
    base_key: str = "rope_theta",
) -> RotarySpec:
    """Return the rotation of a share of a head's channels.

    Args:
        fields: fields of config.json.
        head_width: channels of a head, E.
        length: longest text in tokens.
        default: share of files without it.
        key: name of the share in older files; in newer ones it stands in `rope_parameters`.
        base_key: name of the base in older files.
    """
    rotary = read_rotary(fields, length, base_key)
    rope = fields.table("rope_parameters")
    share = fields.number(key, default)
    share = share if rope is None else rope.number("partial_rotary_factor", share)
    rotated = int(head_width * share)
    return rotary if rotated == head_width else rotary.model_copy(update={"width": rotated})


def write_share(spec: CausalLMSpec, base: str = "rope_theta") -> dict[str, Any]:
    """Return the fields of a rotation but the share, under the name of the base."""
    rotary = spec.decoder.block.self_attention.rotary or RotarySpec()
    scaling = write_scaling(rotary)
    return {base: rotary.base, **({"rope_scaling": scaling} if scaling else {})}


def share_of(spec: CausalLMSpec) -> float:
    """Return the share of a head's channels that are rotated."""
    attention = spec.decoder.block.self_attention
    width = attention.width_of_heads(spec.width)
    rotary = attention.rotary or RotarySpec()
    return (rotary.width or width) / width


def write_scaling(rotary: RotarySpec) -> dict[str, Any]:
    """Return the table `rope_scaling` that `read_rotary` reads; empty without scaling."""
    if rotary.scaling == "none":
        return {}
    if rotary.scaling == "linear":
        return {"rope_type": "linear", "factor": rotary.factor}
    if rotary.scaling == "by_wavelength":
        return {
            "rope_type": "llama3",
            "factor": rotary.factor,
            "original_max_position_embeddings": rotary.original_length,
            "high_freq_factor": rotary.beta_fast,
            "low_freq_factor": rotary.beta_slow,
        }
    written: dict[str, Any] = {
        "rope_type": rotary.scaling,
        "factor": rotary.factor,
        "original_max_position_embeddings": rotary.original_length,
        "beta_fast": rotary.beta_fast,
        "beta_slow": rotary.beta_slow,
    }
    if rotary.temperature is not None:
        written["attention_factor"] = rotary.temperature
    return written
