"""From the spec of a part to its module, which is imported with the first model that has it."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from torch import nn

from heedful.nn.spec import AttentionSpec, BiasSpec, PartSpec

if TYPE_CHECKING:
    from heedful.nn.attention.relative_positions import Bias
    from heedful.nn.attention.relative_values import RelativeValues


def build_part(width: int, spec: PartSpec) -> nn.Module:
    """Build the module that a spec names; a translator of attention alone imports no other mixer.

    Args:
        width: model width D.
        spec: spec of the part.
    """
    part: nn.Module = resolve_name(spec.module)(width, spec)
    return part


def build_bias(spec: BiasSpec, attention: AttentionSpec, width: int) -> Bias:
    """Build the bias that a spec describes.

    Args:
        spec: spec of the bias.
        attention: spec of the attention whose scores it is added to.
        width: model width D.
    """
    bias: Bias = resolve_name(spec.module).of_spec(spec, attention, width)
    return bias


def build_relative_values(head_width: int, max_distance: int) -> RelativeValues:
    """Build the vectors of distances that attention adds to its values.

    Args:
        head_width, max_distance: arguments of `RelativeValues`.
    """
    kind: type[RelativeValues] = resolve_name("heedful.nn.attention.relative_values:RelativeValues")
    return kind(head_width, max_distance)
