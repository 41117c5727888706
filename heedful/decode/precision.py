"""Weights kept in the precision that a model runs in."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from heedful.device import (
    Precision,
    RunningPrecision,
    best_seconds,
    measured_width,
    resolve_precision,
)
from heedful.errors import ConfigError
from heedful.memory import reuse_freed
from heedful.models.block import Block
from heedful.models.causal_lm import CausalLM
from heedful.models.graphed_stack import GraphedStack, record_on_gpu
from heedful.models.native_block import NativeBlock, runs_natively
from heedful.models.native_stack import NativeStack, passes_natively
from heedful.models.stack import Stack
from heedful.models.translator import Translator
from heedful.nn.embeddings import InputEmbedding
from heedful.nn.native import library
from heedful.nn.native.linear import Int8NativeLinear, NativeLinear
from heedful.nn.running_weights import (
    Int8Linear,
    Linear,
    PackedLinear,
    multiplies_int8,
    packs,
    replace_linear,
)

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

_ROWS = 256
"""Of a batch of some dozen sentences, each continued in a few ways."""


def ready_to_run(model: AnyModel, precision: RunningPrecision, device: torch.device) -> Precision:
    """Move a model that will not be trained to its device, and convert it to run fastest there.

    Args:
        model: converted in place.
        precision: auto is float32, on the fastest route that is as exact. Which of PyTorch's that
            is has to be measured; where kernels in C multiply instead there is nothing to choose.
        device: where it will run.

    Returns:
        The precision to run it in.

    Raises:
        ConfigError: when the device cannot do what was asked for.
    """
    decodes = isinstance(model, Translator | CausalLM)
    if precision == "auto" and decodes and device.type == "cpu" and library.kernels() is not None:
        chosen = Precision("fp32", "cpu", reason="kernels in C")
    else:
        chosen = resolve_precision(precision, device, width=model.spec.width, exact=True)
    return keep_in(model.to(device).eval(), chosen)


def keep_in(model: AnyModel, precision: Precision) -> Precision:
    """Convert a model that will not be trained, in place, to what its device runs fastest.

    Args:
        model: on its device.
        precision: bfloat16 becomes the type of decoders' weights, which saves converting them and
            what they are multiplied with at every step (where there are no products of it, numbers
            are as coarse, but products are float32's); int8 that of all products' weights.

    Returns:
        The precision to run it in.

    Raises:
        ConfigError: when this processor does not multiply 8-bit integers exactly.
    """
    decoder = model if isinstance(model, Translator | CausalLM) else None
    if decoder is not None and precision.device == "cpu":
        reuse_freed()
    if precision.name == "int8":
        linear = int8_linear()
        if linear is None:
            raise ConfigError(
                "This processor or this PyTorch has no exact products of 8-bit integers",
                where="precision = int8",
                remedy="Use auto, fp32 or bf16",
            )
        if decoder is None:
            replace_linear(model, linear)
        else:
            decoder.settle(linear)
        _run_natively(model)
        return replace(precision, stored=True)
    if decoder is None or precision.device not in ("cpu", "cuda"):
        return precision
    if precision.name == "bf16":
        decoder.to(torch.bfloat16)
        precision = replace(precision, stored=True)
    if precision.device == "cuda":
        pool = torch.cuda.graph_pool_handle()
        record = functools.partial(record_on_gpu, pool=pool)
        decoder.decoder.running = GraphedStack(decoder.decoder, record)
        return precision
    if precision.name == "fp32" and library.kernels() is not None:
        decoder.settle(NativeLinear)
        _run_natively(decoder)
    elif packs(torch.bfloat16 if precision.name == "bf16" else torch.float32):
        decoder.settle(PackedLinear)
    elif precision.name == "bf16" and library.kernels() is not None:
        decoder.settle(NativeLinear)
        reason = "no bfloat16 products here: numbers are rounded to it, products are of float32"
        precision = replace(precision, reason=reason)
    return precision


def int8_linear() -> Linear | None:
    """What multiplies in 8 bits here; None where nothing does exactly."""
    if library.multiplies_int8():
        return Int8NativeLinear
    return Int8Linear if multiplies_int8() else None


def measure_int8(width: int) -> float | None:
    """Time a linear layer of `width` in 8 bits, rounding included: its rate in GFLOP/s.

    Args:
        width: D.

    Returns:
        The best of eight turns; None where there are no such products.
    """
    linear = int8_linear()
    if linear is None:
        return None
    width = measured_width(width)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, width, generator=generator)
    layer = linear(torch.randn(width, width, generator=generator), None)
    with torch.inference_mode():
        best = best_seconds({"int8": functools.partial(layer, x)}, turns=8)
    return 2e-9 * _ROWS * width * width / best["int8"]


def _run_natively(model: AnyModel) -> None:
    """Have kernels in C compute whole blocks, and all of them in one call, where they can."""
    modules = list(model.modules())
    for module in modules:
        if isinstance(module, Block) and runs_natively(module):
            module.running = NativeBlock(module)
        elif isinstance(module, InputEmbedding | Stack):
            module.runs_natively = True
    for module in modules:
        if isinstance(module, Stack) and passes_natively(module):
            module.running = NativeStack(module)
