"""Prepare a finished model for inference: the engine that runs it fastest on its device.

A processor runs translators and language models by kernels in C, or by oneDNN's packed matmuls
where the kernels were not compiled; a GPU replays their decoding steps as CUDA graphs. In 8 bits
every kind of model is packed. The definition computes all other models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import torch

from heedful.device import Precision, RunningPrecision, resolve_precision
from heedful.engines.class_exchange import copy_model
from heedful.engines.inference.cpu_model import read_positions, use_kernels
from heedful.engines.inference.packed_linear import (
    Int8NativeLinear,
    MakeLayer,
    NativeLinear,
    PackedLinear,
    PackedProjection,
    int8_linear,
    pack_linear,
    packs,
)
from heedful.errors import ConfigError
from heedful.kernels import library
from heedful.memory import reuse_freed

if TYPE_CHECKING:
    from pathlib import Path

    from heedful.models.build import AnyModel
    from heedful.models.causal_lm import CausalLM
    from heedful.models.translator import Translator

M = TypeVar("M", bound="AnyModel")


def prepare(
    model: M,
    precision: Precision | RunningPrecision = "auto",
    device: torch.device | None = None,
    *,
    donate: bool = False,
    shared: Path | None = None,
) -> M:
    """Make an engine of a finished model: another object with the same methods.

    Args:
        model: finished model, which does not change and can still be trained, unless it is donated.
        precision: numeric precision. `auto` is float32 by the fastest exact route: PyTorch's routes
            are timed to choose one, kernels in C leave no choice. `bf16` stores the weights of
            decoders in bfloat16, so that no step converts them (without bfloat16 instructions
            matmuls are float32). `int8` quantizes the weights of all linear layers.
        device: device of the engine; the model's own if None.
        donate: flag that the parameters are taken from the model, which is unusable afterwards.
            Each parameter is freed as soon as it is packed.
        shared: folder in which processes share weights, see `map_weights`; None for no sharing.

    Returns:
        The engine, in eval mode; `precision_of` tells its precision.

    Raises:
        ConfigError: when the device does not have the precision.
    """
    if device is None:
        device = next(model.parameters()).device
    if not isinstance(precision, Precision):
        precision = _choose_precision(model, precision, device)
    engine = copy_model(model, donate=donate)
    engine.to(device).eval()
    if device.type == "cpu":
        read_positions(engine)
    # `nn.Module.__setattr__` is bypassed, so that no state dict contains this attribute.
    vars(engine)["precision"] = _convert(engine, precision, shared)
    return engine


def precision_of(model: torch.nn.Module) -> Precision | None:
    """Return the precision that a model was prepared in; None for a model that is no engine."""
    return cast("Precision | None", vars(model).get("precision"))


def _choose_precision(model: AnyModel, name: RunningPrecision, device: torch.device) -> Precision:
    # A named precision needs no timing, which matters at a cold start.
    native = model.spec.generates and device.type == "cpu" and library.kernels() is not None
    if name == "auto" and native:
        return Precision("fp32", "cpu", reason="kernels in C")
    return resolve_precision(name, device, width=model.spec.width, exact=True)


def _convert(engine: AnyModel, precision: Precision, shared: Path | None) -> Precision:
    """Replace the parts of an engine; return the precision it runs in."""
    generates = engine.spec.generates
    if generates and precision.device == "cpu":
        # Each decoding step frees and takes the same megabytes; page faults took a tenth of the
        # time of a small model.
        reuse_freed()
    if precision.name == "int8":
        linear = int8_linear()
        if linear is None:
            raise ConfigError(
                "This processor or this PyTorch has no exact products of 8-bit integers",
                where="precision = int8",
                remedy="Use auto, fp32 or bf16",
            )
        _pack(engine, linear, shared)
        use_kernels(engine, native=linear is Int8NativeLinear)
        return replace(precision, stored=True)
    if not generates or precision.device not in ("cpu", "cuda"):
        return precision
    # Stored once in bfloat16: autocast would convert all weights in every decoding step.
    if precision.name == "bf16":
        engine.to(torch.bfloat16)
        precision = replace(precision, stored=True)
    if precision.device == "cuda":
        from heedful.engines.inference.gpu_model import use_cuda_graphs  # a processor has no graphs

        use_cuda_graphs(engine)
    elif precision.name == "fp32" and library.kernels() is not None:
        _pack(engine, NativeLinear, shared)
        use_kernels(engine, native=True)
    # oneDNN serves bfloat16, and float32 where no kernels in C were compiled.
    elif packs(torch.bfloat16 if precision.name == "bf16" else torch.float32):
        _pack(engine, PackedLinear, shared)
    # PyTorch would emulate bfloat16 here, at a tenth of the rate of float32.
    elif precision.name == "bf16" and library.kernels() is not None:
        _pack(engine, NativeLinear, shared)
        reason = "no bfloat16 products here: numbers are rounded to it, products are of float32"
        precision = replace(precision, reason=reason)
    return precision


def _pack(engine: AnyModel, linear: MakeLayer, shared: Path | None) -> None:
    """Replace all linear layers by packed ones, and the output projection of a decoder."""
    pack_linear(engine, linear)
    if engine.spec.generates:
        decoder = cast("Translator | CausalLM", engine)
        decoder.output_projection = PackedProjection(
            decoder.output_projection, decoder.output_bias, linear
        )
    # Weights are shared after packing, as processes share the packed form, and before addresses are
    # taken.
    if shared is not None:
        from heedful.engines.inference.mapped_weights import map_weights  # for workers of a server

        map_weights(engine, shared)
