"""Choice of device and precision; on a processor `auto` measures which precision is faster.

On some processors float32 matmuls have a faster route through oneDNN that is as exact, or bfloat16
is several times faster; on others both are slower. So `auto` times them once and reports the rates.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from heedful.errors import ConfigError

if TYPE_CHECKING:
    import torch

RunningPrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
"""Precisions of inference."""

Name = TypeVar("Name")


def usable_cores() -> int:
    """Number of cores that this process may use."""
    # A container or batch system often allows fewer cores than the machine has.
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


own_products: ContextVar[bool] = ContextVar("own_products", default=True)
"""True if matmuls of training may use Heedful's own kernels."""

_WORTH_IT = 1.15  # smaller gains are within the noise of timings, and the plain route is kept
_EXACT = 8.0
"""Largest error of a route that counts as exact, relative to the error of plain float32: another
order of summation errs a few times as much, bfloat16 a thousand times."""


@dataclass(frozen=True)
class Precision:
    """The precision and route of matmuls.

    Args:
        name: `fp32`, `bf16`, `fp16` or `int8`.
        device: type of the device, such as `cpu`.
        onednn: flag that float32 matmuls take oneDNN's exact route (processors only).
        reason: reason for the choice.
        stored: flag that the weights are stored in this precision, so autocast is not needed.
        own: permission for large matmuls of training to use Heedful's own kernels.
    """

    name: Literal["fp32", "bf16", "fp16", "int8"]
    device: str
    onednn: bool = False
    reason: str = ""
    stored: bool = False
    own: bool = True

    @property
    def needs_scaler(self) -> bool:
        """True for float16, whose gradients underflow without a loss scaler."""
        return self.name == "fp16"

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """A context in which a forward pass runs in this precision."""
        before = own_products.set(self.own)
        try:
            with self.matmul(), self.in_thread():
                yield
        finally:
            own_products.reset(before)

    def in_thread(self) -> AbstractContextManager[object]:
        """The context that each worker thread needs while the main thread is in `autocast`."""
        if self.name not in ("bf16", "fp16") or self.stored:
            return nullcontext()
        import torch

        # Autocast is a setting of each thread: workers do not inherit it.
        return torch.autocast(self.device, torch.bfloat16 if self.name == "bf16" else torch.float16)

    def matmul(self) -> AbstractContextManager[None]:
        """A context in which float32 matmuls take the chosen route; backward passes need it, too.

        PyTorch's setting is global to the process; leaving the context restores it.
        """
        return _onednn_route() if self.onednn else nullcontext()

    def describe(self) -> str:
        """Describe the precision in a few words."""
        route = " through oneDNN" if self.onednn else ""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.name}{route} on {self.device}{reason}"


@dataclass(frozen=True)
class MatmulRates:
    """Measured rates of a linear layer in GFLOP/s; None for a route that does not exist here.

    Args:
        fp32: rate of float32 by PyTorch's default route.
        onednn: rate of float32 through oneDNN; None also where it is less exact.
        bf16: rate under bfloat16 autocast, with its conversions.
    """

    fp32: float
    onednn: float | None
    bf16: float | None


@contextmanager
def standard_tensors() -> Iterator[None]:
    """A context, or a decorator, in which new tensors are float32 on the processor by default.

    A notebook may have called `torch.set_default_device` or `torch.set_default_dtype`; kernels in C
    would then get addresses of another device, which ends the process.
    """
    torch = sys.modules.get("torch")  # what is not loaded has no other defaults
    with ExitStack() as stack:
        if torch is not None and torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if torch is not None and torch.get_default_dtype() != torch.float32:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        yield


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device of a name.

    Args:
        name: `auto` (CUDA, else Apple's MPS, else the processor), `cpu`, `cuda`, `cuda:1`, `mps`.

    Raises:
        ConfigError: when the machine has no such device.
    """
    import torch

    # No measurement: an accelerator is always taken.
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(
            f"Unknown device {name!r}", where="device", remedy="Use auto, cpu, cuda, cuda:N or mps"
        )
    count = 1
    if device.type == "cuda":
        count = torch.cuda.device_count()
    elif device.type == "mps":
        count = int(torch.backends.mps.is_available())
    if (device.index or 0) >= count:
        raise ConfigError(
            f"This machine has no device {name!r}",
            where="device",
            remedy=f"Use {_devices_here()}, or check the driver and the build of PyTorch",
        )
    return device


def _devices_here() -> str:
    """List the devices of this machine, such as `auto, cpu or cuda:0`."""
    import torch

    names = ["auto", "cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    return f"{', '.join(names[:-1])} or {names[-1]}"


def resolve_precision(
    requested: RunningPrecision,
    device: torch.device,
    *,
    width: int = 512,
    exact: bool = False,
) -> Precision:
    """Choose the precision; `auto` measures on a processor.

    A precision by name takes PyTorch's default route without a measurement, so that runs with the
    same seed are equal; `auto` is for speed.

    Args:
        requested: name of a precision, or `auto` for the fastest one on this device.
        device: device of the model.
        width: width D of the measured matmuls.
        exact: restriction of `auto` to routes as exact as float32.

    Raises:
        ConfigError: when there is no such precision, or the device does not support it.
    """
    import torch

    kind = device.type
    if requested not in get_args(RunningPrecision):
        raise ConfigError(
            f"Unknown precision {requested!r}",
            where="precision",
            remedy=f"Use {', '.join(get_args(RunningPrecision))}",
        )
    if requested == "fp16" and kind != "cuda":
        raise ConfigError(
            f"fp16 is not supported on {kind}", where="precision", remedy="Use auto, fp32 or bf16"
        )
    if requested == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError(
            "This GPU has no bfloat16", where="precision", remedy="Use auto, fp32 or fp16"
        )
    if requested == "int8" and kind != "cpu":
        raise ConfigError(
            f"int8 is not supported on {kind}", where="precision", remedy="Use auto, fp32 or bf16"
        )
    if requested != "auto":
        return Precision(requested, kind, reason="asked for")
    if kind != "cpu":
        half = kind == "cuda" and torch.cuda.is_bf16_supported() and not exact
        return Precision("bf16" if half else "fp32", kind, reason="the device's best")
    # Measured, not assumed: oneDNN's route doubled the rate of float32 on one generation of a
    # processor (AMD, family 26) and gave a tenth more on the one before (family 25), with two
    # threads nothing (docs/design/log.md).
    rates = measure_matmul(measured_width(width))
    onednn = (rates.onednn or 0.0) >= _WORTH_IT * rates.fp32
    # bfloat16 must beat the better of the two exact routes.
    best_fp32 = max(rates.fp32, rates.onednn or 0.0)
    result = f"GFLOP/s: fp32 {rates.fp32:.0f}, {_rate('through oneDNN', rates.onednn)}, "
    result += _rate("bf16", rates.bf16)
    if not exact and (rates.bf16 or 0.0) >= _WORTH_IT * best_fp32:
        return Precision("bf16", kind, onednn, result)
    return Precision("fp32", kind, onednn, result)


@functools.lru_cache(maxsize=8)
def measure_matmul(width: int) -> MatmulRates:
    """Time a linear layer in each precision on the processor, in about 0.1 seconds.

    Args:
        width: width D of the layer's input and output.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    # About 2^28 operations a matmul, with 64 to 1,024 rows.
    rows = max(64, min(1024, 2**27 // (width * width)))
    x = torch.randn(rows, width, generator=generator)
    weight = torch.randn(width, width, generator=generator)
    routes: dict[str, Any] = {"fp32": nullcontext}
    if _has_onednn_route() and _onednn_is_exact(x, weight):
        routes["onednn"] = _onednn_route
    if torch.backends.mkldnn.is_available():
        routes["bf16"] = functools.partial(torch.autocast, "cpu", torch.bfloat16)

    def multiply(route: Callable[[], AbstractContextManager[object]]) -> None:
        with route():
            torch.nn.functional.linear(x, weight)

    ways = {name: functools.partial(multiply, route) for name, route in routes.items()}
    # Rates of the forward pass; gradients are matmuls of the same sizes.
    with torch.no_grad():
        best = best_seconds(ways, turns=8)
    work = 2e-9 * rows * width * width  # 10^9 operations: a multiplication and an addition each
    rates = {name: work / seconds for name, seconds in best.items()}
    return MatmulRates(rates["fp32"], rates.get("onednn"), rates.get("bf16"))


def full_precision(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """A context without autocast for operations on a tensor's device."""
    import torch

    return torch.autocast(tensor.device.type, enabled=False)


def requested_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the type of matmuls with a tensor: that of autocast if it is on, or its own."""
    import torch

    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


@contextmanager
def _onednn_route() -> Iterator[None]:
    import torch

    mkldnn: Any = torch.backends.mkldnn
    settings = mkldnn.matmul
    before = settings.fp32_precision
    # This permits rounding to bfloat16; some processors then use a faster kernel that is exact.
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _has_onednn_route() -> bool:
    import torch

    mkldnn: Any = torch.backends.mkldnn
    available = bool(mkldnn.is_available())
    return available and hasattr(getattr(mkldnn, "matmul", None), "fp32_precision")


def _onednn_is_exact(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return True if oneDNN's route, which may round to bfloat16, is exact on this processor."""
    import torch

    # Float64 as the reference: both float32 routes round.
    truth = x.double() @ weight.double().T

    def error() -> float:
        return float((torch.nn.functional.linear(x, weight) - truth).abs().max())

    usual = error()
    with _onednn_route():
        return error() <= _EXACT * usual


def best_seconds(ways: Mapping[Name, Callable[[], object]], *, turns: int) -> dict[Name, float]:
    """Time several functions; return the fastest turn of each in seconds.

    The functions take turns and the best turn counts, so that other load on the machine matters
    little.

    Args:
        ways: functions by name.
        turns: number of turns of each function.
    """
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(turns):
        for name, way in ways.items():
            # Turns alternate between the functions instead of timing one after the other.
            began = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def measured_width(width: int) -> int:
    """Round a width down to a power of two between 64 and 1024, which is quick to time."""
    # Five widths in all, so the cache of `measure_matmul` holds every result of a process.
    return 1 << max(6, min(10, width.bit_length() - 1))


def _rate(name: str, rate: float | None) -> str:
    return f"{name} not available" if rate is None else f"{name} {rate:.0f}"
