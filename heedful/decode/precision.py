"""Weights kept in the precision that a model runs in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from heedful.device import Precision
from heedful.models.causal_lm import CausalLM
from heedful.models.translator import Translator
from heedful.nn.quantized import quantize

if TYPE_CHECKING:
    from heedful.models.build import AnyModel


def keep_in(model: AnyModel, precision: Precision) -> Precision:
    """Convert a model that will not be trained, in place.

    Args:
        model: on its device.
        precision: bfloat16 becomes the type of decoders' weights, which saves converting them and
            what they are multiplied with at every step; int8 that of all products' weights.

    Returns:
        The precision to run it in.
    """
    decodes = isinstance(model, Translator | CausalLM)
    if precision.name == "int8":
        if decodes:
            model.shrink()
        else:
            quantize(model)
    elif precision.name == "bf16" and decodes:
        model.to(torch.bfloat16)
    else:
        return precision
    return replace(precision, stored=True)
