"""From the spec of a sub-layer's part to its module."""

from __future__ import annotations

from pkgutil import resolve_name

from torch import nn

from heedful.nn.spec import PartSpec


def build_part(width: int, spec: PartSpec) -> nn.Module:
    """Build the module that a spec names; a translator of attention alone imports no other mixer.

    Args:
        width: model width D.
        spec: spec of the part.
    """
    part: nn.Module = resolve_name(spec.module)(width, spec)
    return part
