"""Weights kept in the precision that a model runs in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from heedful.device import Precision
from heedful.errors import ConfigError
from heedful.models.causal_lm import CausalLM
from heedful.models.translator import Translator
from heedful.nn.running_weights import (
    Int8Linear,
    PackedLinear,
    multiplies_int8,
    packs,
    replace_linear,
)

if TYPE_CHECKING:
    from heedful.models.build import AnyModel


def keep_in(model: AnyModel, precision: Precision) -> Precision:
    """Convert a model that will not be trained, in place, to what its device runs fastest.

    Args:
        model: on its device.
        precision: bfloat16 becomes the type of decoders' weights, which saves converting them and
            what they are multiplied with at every step; int8 that of all products' weights.

    Returns:
        The precision to run it in.

    Raises:
        ConfigError: when this processor does not multiply 8-bit integers exactly.
    """
    decoder = model if isinstance(model, Translator | CausalLM) else None
    if precision.name == "int8":
        if not multiplies_int8():
            raise ConfigError(
                "This processor or this PyTorch has no exact products of 8-bit integers",
                where="precision = int8",
                remedy="Use auto, fp32 or bf16",
            )
        if decoder is None:
            replace_linear(model, Int8Linear)
        else:
            decoder.settle(Int8Linear)
        return replace(precision, stored=True)
    if decoder is None or precision.device != "cpu":
        return precision
    if precision.name == "bf16":
        decoder.to(torch.bfloat16)
        precision = replace(precision, stored=True)
    if packs():
        decoder.settle(PackedLinear)
    return precision
